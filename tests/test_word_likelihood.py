"""The pseudo-log-likelihood of words: against masks written by hand, at any batch size, and for any vocabulary."""

import jax
import numpy as np
import pytest

from bertjax import evaluations
from bertjax.data.readers.sources import Document
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from bertjax.models.bert import BertForMaskedLM, BertInputs
from bertjax.tasks import word_likelihood
from tests import tiny

MODULE = evaluations.find("word_likelihood")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    WordPiece([*SPECIALS, "the", "cat", "##s", "##y", ",", "a"], lowercase=True).save(folder / "vocabulary")
    text = tiny.write_text(folder / "t.txt")
    return tiny.ready(tiny.config(text, data__vocab_file=str(folder / "vocabulary")), folder / "kept").task


@pytest.fixture(scope="module")
def params(task):
    params = task.init(jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf + 0.5 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)


def evaluation(task, folder, texts, **keys):
    for name, text in texts.items():
        (folder / name).write_text(text)
    source = tuple((name, str(folder / name)) for name in texts)
    return MODULE.evaluation(MODULE.Config(source=source, **keys), task, "stop")


def scores(evaluation, params, rows_at_once):
    """The metrics, from batches of this number of rows, which are padded."""
    examples = list(evaluation.examples())
    rows = [row for example in examples for row in example.rows]
    padded = {
        name: np.array([np.pad(row[name], (0, 12 - row[name].size)) if row[name].ndim else row[name] for row in rows])
        for name in rows[0]
    }
    outputs = []
    for start in range(0, len(rows), rows_at_once):
        batch = {name: array[start : start + rows_at_once] for name, array in padded.items()}
        outputs += [{"log_probabilities": value} for value in evaluation.view.infer(params, batch)["log_probabilities"]]
    parts = iter(outputs)
    return evaluation.score([(example, [next(parts) for _ in example.rows]) for example in examples])


def test_the_later_tokens_of_a_word_are_hidden(task, params, tmp_path):
    ids = {name: number for number, name in enumerate(task.tokenizer.vocab)}
    sentence = ["[CLS]", "the", "cat", "##s", "##y", ",", "a", "[SEP]"]  # the words "The", "catsy," and "a"
    hidden = {1: [1], 2: [2, 3, 4, 5], 3: [3, 4, 5], 4: [4, 5], 5: [5], 6: [6]}
    model = BertForMaskedLM(task.language_models[0].encoder)
    total = 0.0
    for place, masked in hidden.items():
        row = np.array([[ids["[MASK]" if i in masked else token] for i, token in enumerate(sentence)]])
        inputs = BertInputs(row, 0 * row, 0 * row + 1)
        logits = model.apply({"params": params}, inputs, np.array([[place]]), deterministic=True)
        total -= float(jax.nn.log_softmax(logits[0, 0])[ids[sentence[place]]])
    of_texts = evaluation(task, tmp_path, {"domain": "The\tcatsy, a", "general": "the the\n\nThe catsy, a\n"})
    metrics = scores(of_texts, params, 1)
    assert metrics["domain/nats_per_word"] == pytest.approx(total / 3, abs=1e-5)
    assert (metrics["domain/words"], metrics["domain/tokens"], metrics["domain/unknown"]) == (3, 6, 0)
    assert (metrics["general/words"], metrics["general/tokens"]) == (5, 8)
    assert scores(of_texts, params, 5) == pytest.approx(metrics, abs=1e-5)


def test_instances_have_the_same_words_with_all_vocabularies():
    short, long = (
        WordPiece([*SPECIALS, *pieces, *"abc", *(f"##{letter}" for letter in "abc")], lowercase=True)
        for pieces in ((), ("abc", "ab"))
    )
    documents = [Document(["abc \u00ad ab", "a abc"], ""), Document(["\u00ad"], ""), Document(["b c", "abcabc a"], "")]
    for tokenizer in (short, long):
        instances = list(word_likelihood.instances("x", documents, tokenizer, 3, 99))
        texts = [tokenizer.decode([token for word in each.words for token in word]) for each in instances]
        assert texts == ["abc ab", "a abc", "b c abcabc", "a"]
        assert [each.num_words for each in instances] == [3, 2, 4, 1]  # a soft hyphen has no tokens
    instances = list(word_likelihood.instances("x", documents, short, 3, 4))
    assert [list(map(len, each.words)) for each in instances] == [[3], [2], [1, 3], [1, 1], [4], [2], [1]]
    assert [each.num_words for each in instances] == [2, 1, 2, 3, 0, 1, 1]


def test_there_is_no_figure_of_text_with_many_unknown_words(task, params, tmp_path, caplog):
    of_texts = evaluation(task, tmp_path, {"domain": "the zebra", "general": "the cat"})
    metrics = scores(of_texts, params, 4)
    assert metrics.keys() >= {*of_texts.metrics}
    assert metrics["domain/unknown"] == 0.5 and "domain/nats_per_word" not in metrics
    assert metrics["general/nats_per_word"] > 0
    assert "no nats per word: 50.00 % of the tokens of domain are unknown, more than 0.1 %" in caplog.text


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ((), "no text"),
        ((("a b", "t.txt"),), "a b"),
        ((("a", "t.txt"), ("a", "u.txt")), "u.txt"),
        ((("a", "t.txt", "u.txt"),), "u.txt"),
    ],
)
def test_wrong_texts_are_errors(task, source, got):
    with pytest.raises(UserError, match=rf"word_likelihood\.source: got .*{got}"):
        MODULE.evaluation(MODULE.Config(source=source), task, "stop")
