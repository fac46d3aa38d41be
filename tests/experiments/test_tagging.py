"""Tagging, from words in a file of columns to tags of new text."""

import functools
import json
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.data.codecs.tagging import tagged_words
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.tagging.tagged_rows import sentence_rows
from bertjax.data.codecs.tagging.tagged_words import read_sentences
from bertjax.data.readers.lines import BadRows
from bertjax.errors import UserError
from bertjax.experiments import tagging
from bertjax.interop.published import open_weights
from bertjax.modes import stages
from bertjax.runs.checkpoints import restore_params
from tests import tiny
from tests.experiments import commands
from tests.experiments.commands import NO_DROPOUT, SIZES, done, flags, lines_of, trained, tree_of
from tests.random_params import random_params
from tests.showing import shown

SMALL = {
    "num_epochs": 6.0,
    "batch_size": 8,
    "log_every": 20,
    **SIZES,
    "data.seq_len": 16,
    "data.valid_fraction": 0.2,
    **NO_DROPOUT,
    "model.classifier_dropout": 0.0,
    "optimizer.learning_rate": 5e-3,
}
# Much longer than a row. Each old place and each person in it must be found.
LONG = " ".join(["old tree likes Kimmy Bell sees"] * 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to tag people and old places."""
    folder = tmp_path_factory.mktemp("tagging")
    return trained("tagging.py:tiny", folder, {**SMALL, **tiny.write_sentences(folder, count=600)})


def resolved(**overrides):
    return stages.of_config(tagging, tree_of("tagging", "tiny", {**SMALL, **overrides}))


def ready(folder, **overrides):
    """Returns a new run after the checks that need no sentences."""
    begun = resolved(**{**tiny.write_sentences(folder), **overrides})
    begun.example()
    return tiny.ready(begun.config, folder / "kept")


def columns(folder, *sentences):
    """Writes a file of sentences such as "Ann/B-PER sees/O"."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.conll"
    path.write_text("".join("\n".join(sentence.split()).replace("/", " ") + "\n\n" for sentence in sentences))
    return str(path)


def test_a_run_learns_and_keeps_its_tags(run):
    workdir, _ = run
    metrics = lines_of(workdir / "metrics.jsonl")
    assert 0.3 < metrics[0]["valid/majority_accuracy"] < 0.7
    scores = [line for line in metrics if "valid/f1" in line]
    assert len(scores) == 6
    assert scores[-1]["valid/f1"] > 0.95 and scores[-1]["valid/f1_LOC"] > 0.9 and scores[-1]["valid/f1_PER"] > 0.95
    config = json.loads((workdir / "config.json").read_text())
    assert config["data"]["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert config["data"]["scheme"] == "BIO"
    assert config["checkpoint"]["best_metric"] == "valid/f1"


def test_predictions_and_export(run, tmp_path):
    workdir, _ = run
    text = f"Ann likes old river the.\nKimmy Bell, Bob\n{LONG}\n".encode()
    outcome = done("--mode=predict", f"--workdir={workdir}", "--checkpoint=best", stdin=text)
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    keys = {"words", "tags", "start", "end", "entities"}
    assert [record.keys() for record in records] == [keys, keys, {*keys, "split"}]
    assert records[0]["words"] == ["Ann", "likes", "old", "river", "the", "."]
    assert records[0]["tags"] == ["B-PER", "O", "B-LOC", "I-LOC", "O", "O"]
    assert [records[0]["start"], records[0]["end"]] == [[0, 4, 10, 14, 20, 23], [3, 9, 13, 19, 23, 24]]
    entities = [tuple(each.values())[:4] for each in records[0]["entities"]]
    assert entities == [("PER", "Ann", 0, 3), ("LOC", "old river", 10, 19)]
    assert records[1]["words"] == ["Kimmy", "Bell", ",", "Bob"]
    assert records[1]["tags"][:2] == ["B-PER", "I-PER"]
    assert records[2]["words"] == LONG.split()
    assert records[2]["tags"] == ["B-LOC", "I-LOC", "O", "B-PER", "I-PER", "O"] * 8

    published = ["--config=configs/tagging.py", f"--config.init_from={workdir}", "--config.data.seq_len=16"]
    whole = tiny.run_on_one("--mode=predict", *published, "--config.data.split_punctuation=False", stdin=text)
    assert json.loads(whole.stdout.splitlines()[0])["words"] == ["Ann", "likes", "old", "river", "the."]


published = functools.partial(commands.published, "tagging", b"Ann\n")


def test_validation_sentences_are_scored_without_training_sentences(run, tmp_path):
    """The sentences may also have another scheme than the run."""
    source = tiny.write_sentences(tmp_path, scheme="IO")["data.source"]
    assert json.loads(published(run[0], "evaluate", **{"data.valid_source": source}).stdout)["valid/f1"] > 0.95


def test_validation_sentences_with_other_tags(run, tmp_path):
    outcome = published(run[0], "evaluate", **{"data.valid_source": columns(tmp_path, "Ann/NOUN sees/VERB")})
    expected = "tags of the model: O, B-LOC, I-LOC, B-PER, I-PER"
    tiny.check_message(outcome.error, what="0.conll:1", got="NOUN, VERB", expected=expected, fix="check the file")


def test_the_order_of_a_published_tagger_is_kept(run, tmp_path):
    published = shutil.copytree(run[0], tmp_path / "run")
    config = json.loads((published / "config.json").read_text())
    config["data"]["labels"].reverse()
    (published / "config.json").write_text(json.dumps(config))
    values = tiny.write_sentences(tmp_path / "text") | {"data.vocab_file": str(published), "init_from": str(published)}
    assert ready(tmp_path, **values).config["data"]["labels"] == ("I-PER", "B-PER", "I-LOC", "B-LOC", "O")


def test_a_file_of_columns_is_refused_as_text(run):
    workdir, _ = run
    row = "\t".join(["1", "Ann", "Ann", "PROPN", *"______"])
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={workdir}", stdin=f"# id = 1\n{row}\n\n".encode())
    tiny.check_message(outcome.error, what="input line 2", got="CoNLL-U", expected="one sentence per line", fix="write")


def test_lists_of_words_are_not_divided(tmp_path):
    task = ready(tmp_path, **{"data.text_field": "tokens"}).task
    (tmp_path / "rows.jsonl").write_text('{"tokens": ["Ann", "Bell,"]}\n{"tokens": "Ann  Bell,"}\n')
    of_table = task.examples_of(str(tmp_path / "rows.jsonl"))
    of_objects = task.examples_in([["Ann", "Bell,"], "Ann  Bell,"])
    for examples in (of_table, of_objects):
        records = [task.record(each, [{"logits": np.eye(9, 5)}]) for each in examples]
        assert [(record["words"], record["start"]) for record in records] == [
            (["Ann", "Bell,"], [0, 4]),
            (["Ann", "Bell", ","], [0, 5, 9]),
        ]
        assert records[0]["entities"][0]["text"] == "Ann Bell,"
    with pytest.raises(UserError, match=r"^input 1: got NoneType as a word; expected text"):
        list(task.examples_in([["Ann", None]]))


def test_a_tagger_with_other_tags_is_reinitialized(run, tmp_path, caplog):
    workdir, _ = run
    source = columns(tmp_path / "text", *["Ann/NOUN sees/VERB"] * 30)
    values = {"init_from": str(workdir), "data.vocab_file": str(workdir), "data.source": source}
    task = ready(tmp_path, **values).task
    fresh = jax.device_put(random_params(task.init))
    params = task.warm_start(fresh, open_weights(workdir))
    assert params["classifier"] is fresh["classifier"] and params["bert"] is not fresh["bert"]
    assert "module classifier keeps its random initialization" in caplog.text


def test_entities_of_any_scheme_are_learned_in_bio(tmp_path):
    bio = ready(tmp_path / "bio")
    io = ready(tmp_path / "io", **tiny.write_sentences(tmp_path / "io_text", scheme="IO"))
    assert [each.config["data"]["scheme"] for each in (bio, io)] == ["BIO", "IO"]
    assert bio.task.labels == io.task.labels
    for ours, theirs in zip(bio.data.validation_examples(), io.data.validation_examples(), strict=True):
        assert in_bio(ours.source.item.tags) == in_bio(theirs.source.item.tags)
    assert score(io.task, io.data, lambda tag: tag)["f1"] == 1
    for scheme, end, single in (("BIOES", "E", "S"), ("BILOU", "L", "U")):
        ends = columns(tmp_path / "ends", *[f"Ann/B-PER my/I-PER Bell/{end}-PER Bob/{single}-PER sees/O"] * 30)
        found = ready(tmp_path / scheme, **{"data.source": ends}).config["data"]
        assert (found["scheme"], found["labels"]) == (scheme, ("O", "B-PER", "I-PER"))


def in_bio(tags):
    return tagged_words.in_scheme(tags, tagged_words.BIO)


def score(task, data, predicted):
    """Returns the scores of predictions that are a function of the right tags."""
    results = []
    for example in data.validation_examples():
        tags, outputs = iter(in_bio(example.source.item.tags)), []
        for row, positions in zip(example.rows, example.source.extra, strict=True):
            logits = np.zeros((24, len(task.labels)), np.float32)
            for position in positions:
                assert position < len(row["input_ids"]) - 1
                logits[position, task.labels.index(predicted(next(tags)))] = 20
            outputs.append({"logits": logits})
        assert next(tags, None) is None
        results.append((example, outputs))
    return task.score(results)


def test_every_word_is_scored_once(tmp_path):
    task, data, *_ = ready(tmp_path)
    assert max(len(example.rows) for example in data.validation_examples()) > 1
    right = score(task, data, lambda tag: tag)
    assert set(task.score_names()) | {"f1_LOC", "f1_PER"} == set(right)
    assert all(right[name] == 1 for name in right if name != "loss") and right["loss"] < 1e-6
    blind = score(task, data, lambda tag: tag if tag.endswith("PER") else "O")
    assert (blind["f1_PER"], blind["f1_LOC"], blind["precision"]) == (1, 0, 1)
    none = score(task, data, lambda _: "O")
    counts = [tag for example in data.validation_examples() for tag in example.source.item.tags]
    assert none["accuracy"] == counts.count("O") / len(counts)
    assert none["f1"] == 0


def test_characters_are_scored_and_predicted(tmp_path):
    """One token for "tree" gives tags to its four characters. The first begins the entity."""
    lines = [[*zip("old tree", ["O"] * 4 + ["B-LOC"] + ["I-LOC"] * 3, strict=True)], [("a", "O"), ("s", "O")]]
    text = "\n".join("".join(f"{character}\t{tag}\n" for character, tag in rows) for rows in lines * 4)
    (tmp_path / "a.tsv").write_text(text)
    values = {"data.source": str(tmp_path / "a.tsv"), "data.valid_source": str(tmp_path / "a.tsv")}
    task, data, *_ = ready(tmp_path, **values, **{"data.units": "characters"})
    right = score(task, data, lambda tag: tag.replace("I-", "B-"))
    assert set(task.score_names()) | {"f1_LOC"} == set(right)
    assert all(right[name] == 1 for name in right if name != "loss") and right["loss"] < 1e-6
    example = next(task.examples(iter(["the old  tree"])))
    (positions,) = example.source.extra
    logits = np.zeros((16, 3), np.float32)
    logits[positions[-1], task.labels.index("B-LOC")] = 20
    record = task.record(example, [{"logits": logits}])
    assert (record["words"], record["start"][6:]) == (list("theoldtree"), [9, 10, 11, 12])
    assert record["tags"][6:] == ["B-LOC", *["I-LOC"] * 3]
    assert [(entity["text"], entity["start"], entity["end"]) for entity in record["entities"]] == [("tree", 9, 13)]


def field(data, name):
    """Returns the values of each training row."""
    values, lengths = data.fields()[name]
    return [row.tolist() for row in np.split(np.asarray(values), np.cumsum(lengths)[:-1])]


def training_sentences(data, source):
    """Returns the words and tags of the training sentences, without the validation sentences."""
    every = read_sentences(source, "data.source", ColumnsConfig(0, -1), BadRows("stop"))
    held_out = [example.source.item.words for example in data.validation_examples()]
    return [(each.words, each.tags) for each in every if not (held_out[:1] == [each.words] and held_out.pop(0))]


@pytest.mark.parametrize("labels", [(), ("I-PER", "B-LOC", "B-PER", "I-LOC", "O")])
def test_prepared_rows_contain_all_sentences(tmp_path, labels):
    values = tiny.write_sentences(tmp_path / "text", scheme="IO")
    _, data, _, config = ready(tmp_path, **values, **{"data.labels": labels})
    order = config["data"]["labels"]
    assert order == labels or order == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    ids, tags, weights = [], [], []
    sentences = training_sentences(data, values["data.source"])
    for words, of_words in sentences:
        # No two entities of a type are adjacent, so an entity begins wherever the tag changes.
        before = ["O", *of_words]
        bio = [f"B{tag[1:]}" if tag not in ("O", before[i]) else tag for i, tag in enumerate(of_words)]
        left = iter(bio)
        for row in sentence_rows(words, data.vocabulary, 16)[0]:
            ids.append(row["input_ids"].tolist())
            owned = set(row["unit_starts"].tolist())
            tags.append([order.index(next(left)) if place in owned else 0 for place in range(len(ids[-1]))])
            weights.append([float(place in owned) for place in range(len(ids[-1]))])
        assert next(left, None) is None
    assert (field(data, "input_ids"), field(data, "labels"), field(data, "label_weights")) == (ids, tags, weights)
    assert field(data, "token_type_ids") == [[0] * len(row) for row in ids]
    dtypes = {name: each.values.dtype for name, each in data.fields().items()}
    assert dtypes == {"label_weights": np.float32} | dict.fromkeys(("input_ids", "token_type_ids", "labels"), np.int32)
    report = data.report()
    assert report["rows"] == {"train": len(sentences), "valid": 60 - len(sentences)}
    assert report["classes"]["train"]["B-LOC"] == sum(row.count(order.index("B-LOC")) for row in tags) > 0
    assert report["long_sentences"] > 0 and sum(report["lengths"].values()) == len(ids) > len(sentences)


def test_sentences_of_entity_tags_among_plain_tags_stay_as_written(tmp_path):
    values = tiny.write_sentences(tmp_path / "text", scheme="IO")
    path = Path(str(values["data.source"]))
    path.write_text(path.read_text() + "\nold\tx\tADJ\n")
    _, data, _, config = ready(tmp_path, **values, **{"data.scheme": "plain"})
    assert set(config["data"]["labels"]) >= {"I-LOC", "I-PER", "O"}
    assert data.prepared.facts["scheme"] == "plain"
    order = config["data"]["labels"]
    rows = zip(field(data, "labels"), field(data, "label_weights"), strict=True)
    found = [order[tag] for tags, weights in rows for tag, weight in zip(tags, weights, strict=True) if weight]
    sentences = training_sentences(data, values["data.source"])
    assert found == [tag for _, tags in sentences for tag in tags]


def test_the_loss_is_a_sum_over_words(tmp_path):
    task, data, *_ = ready(tmp_path)
    batch = next(data.batches("train", 0, np.arange(8)))
    params = random_params(task.init)
    every = batch["label_weights"]
    loss = jax.jit(lambda weights: task.loss(params, batch | {"label_weights": weights}, None))
    sums, metrics = loss(every)
    parts = [loss(every * (np.arange(8) == i)[:, None].astype(np.float32)) for i in range(8)]
    np.testing.assert_allclose(sums["tagging"], sum(part["tagging"] for part, _ in parts), rtol=1e-5)
    assert metrics["accuracy"][1] == every.sum() == task.denominators(batch)["tagging"]
    assert metrics["tokens"][0] == (batch["segment_ids"] != 0).sum()
    assert 1.2 < sums["tagging"] / every.sum() < 2.2  # about log(5) for 5 tags
    weighted = ready(tmp_path / "weighted", class_weights=(1.0, 3.0, 1.0, 1.0, 1.0)).task
    of_class = every * (batch["labels"] == 1)
    assert weighted.denominators(batch)["tagging"] == every.sum() + 2 * of_class.sum() > every.sum()
    expected = sums["tagging"] + 2 * loss(of_class)[0]["tagging"]
    found, same = weighted.loss(params, batch, None)
    np.testing.assert_allclose(found["tagging"], expected, rtol=1e-5)
    assert same["accuracy"] == metrics["accuracy"]


def test_a_bert_for_features_is_frozen_with_any_groups():
    frozen, other = ("^bert/", {"frozen": True}), ("kernel", {"learning_rate": 1e-3})
    for groups in ((), (other,), (other, frozen), (frozen, other)):
        found = resolved(**{"model.feature_layers": (-1,), "optimizer.groups": groups}).config["optimizer"]["groups"]
        assert [tuple(group) for group in found] == [frozen, *([other] if groups else [])]
    assert resolved().config["optimizer"]["groups"] == []


@pytest.mark.slow
def test_a_tagger_on_the_features_of_a_frozen_bert(run, tmp_path):
    before, _ = run
    values = {**SMALL, **tiny.write_sentences(tmp_path, count=300), "data.vocab_file": str(before)}
    for key in [key for key in values if key.startswith(("model.num", "model.hidden", "model.inter", "model.max"))]:
        del values[key]
    small = {"model.lstm_size": 16, "model.feature_layers": "(0, -1)", "num_epochs": 4.0}
    command = [f"--workdir={tmp_path / 'run'}", f"--config.init_from={before}", *flags({**values, **small})]
    outcome = done("--config=configs/tagging.py:features", *command)
    assert lines_of(tmp_path / "run" / "metrics.jsonl")[-1]["valid/f1"] > 0.9
    assert "module tagger keeps its random initialization" in outcome.stderr
    one, two = (restore_params(folder, "final", None)["bert"] for folder in (before, tmp_path / "run"))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    outcome = tiny.run_on_one("--mode=export", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'exported'}")
    tiny.check_message(outcome.error, "--mode=export", "on the features", expected="transformers", fix="predict")


def test_unknown_validation_tags_are_warned_about(tmp_path, caplog):
    valid = columns(tmp_path / "text", "Ann/B-PER old/B-ORG river/I-ORG", "old/B-ORG")
    with caplog.at_level(logging.WARNING, "bertjax"):
        task, data, *_ = ready(tmp_path, **{"data.valid_source": valid})
        assert len(list(data.validation_examples())) == 2
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "cannot predict: B-ORG at 2 words, I-ORG at 1 words" in warning
    scores = score(task, data, lambda tag: tag if tag in task.labels else "O")
    assert scores["accuracy"] == 1 / 4 and scores["recall"] == 1 / 3 and scores["precision"] == 1
    assert scores["loss"] < 1e-6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data.scheme": "IO"}, r"0\.conll:1, the sentence .*: got tag 'B-PER'; expected tags of scheme IO: O and I-T"),
        ({"data.tag_column": -2}, r"tags of the training sentences: got 'x' at every word of .*Fix: check config"),
        ({"data.labels": ("O", "B-LOC")}, r"0\.conll:1, .*: got tag 'B-PER', which is not in data\.labels"),
        ({"data.labels": ("O", "O")}, r"data\.labels: got O, O; expected two or more different tags"),
        ({"class_weights": (1.0,)}, r"class_weights: got \(1\.0,\); expected .* for each of O, B-PER, I-PER, not all"),
        ({"data.source": ""}, r"data\.labels: got no tags; expected .*--config\.data\.source=FILE"),
    ],
)
def test_wrong_configs(tmp_path, overrides, message):
    source = columns(tmp_path / "text", *["Ann/x/B-PER sees/x/O"] * 30)
    values = {**tiny.write_sentences(tmp_path), "data.source": source, **overrides}
    with pytest.raises(UserError, match=message):
        ready(tmp_path, **values)


@pytest.mark.parametrize(("tags", "got"), [("B-PER M-PER", "M-PER"), ("b-per O", "b-per"), ("B_X O", "B_X")])
def test_tags_of_an_unknown_scheme_are_not_plain(tmp_path, tags, got):
    source = columns(tmp_path / "text", *["Ann/{} Bell/{} sees/O".format(*tags.split())] * 30)
    with pytest.raises(UserError, match=rf"scheme=auto: got entity tags in an unknown form: {got}; .*=plain"):
        ready(tmp_path, **{"data.source": source})
    task, *_, config = ready(tmp_path, **{"data.source": source, "data.scheme": "plain"})
    assert task.score_names() == ("accuracy", "loss")
    assert config["checkpoint"]["best_metric"] == "valid/accuracy"


def test_bilou_that_an_earlier_version_prepared_as_plain_tags_is_an_error():
    with pytest.raises(UserError, match=r"got tags in BILOU, in rows that an earlier .* Fix: delete the folder"):
        tagged_words.detected_scheme({"scheme": "plain", "detected_from": ["B-PER", "L-PER", "O"]})


def test_samples_show_sentences_and_tags(tmp_path):
    task, data, *_ = ready(tmp_path)
    found = shown(task, data, tmp_path / "shown")
    for example, sentence in zip(found.examples, data.validation_examples(), strict=False):
        assert tuple(example["reference"]) == sentence.source.item.tags and set(example["tags"]) == {"O"}
        assert "".join(part["text"] + part["space"] for part in example["parts"]) == example["text"]
