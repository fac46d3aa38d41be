"""Our BertSumAbs compared with PreSumm's own code: checkpoint, log-probabilities, gradients and summaries.

golden/make_presumm_abs_golden.py makes the golden files; see test_presumm.py.
"""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build, part
from bertjax.data.text.wordpiece import WordPiece
from bertjax.decoding.config import DecodingConfig
from bertjax.experiments.bertsum_abs import ModelConfig
from bertjax.interop import huggingface
from bertjax.interop.families import presumm
from bertjax.interop.published import open_weights
from bertjax.models.bert import HeadConfig
from bertjax.models.bertsum_abs import BertSumAbs, BertSumAbsConfig
from bertjax.models.encoder_decoder import Seq2SeqInputs
from bertjax.models.losses import cross_entropy
from bertjax.tasks import seq2seq
from bertjax.tasks.seq2seq import TargetIds
from tests.experiments.commands import done, flags, lines_of
from tests.parity.test_presumm import CHOICES
from tests.trees import distance

GOLDEN = Path(__file__).with_name("golden") / "presumm_abs"
FIRST_WORD, FIRST_PIECE, VOCAB = 8, 26, 37
# Two of its words stand for the special tokens that every vocabulary has.
VOCABULARY = (
    *("[PAD]", "[unused0]", "[unused1]", "[unused2]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
    *(f"w{number}" for number in range(FIRST_WORD, FIRST_PIECE)),
    *(f"##p{number}" for number in range(FIRST_PIECE, VOCAB)),
)
IDS = TargetIds(start=1, end=2, pad=0)
# PreSumm's beam search with the lengths of the golden files.
DECODING = DecodingConfig(
    method="beam_search",
    max_length=20,
    max_ratio=0.0,
    max_extra=20,
    min_extra=4,
    num_beams=5,
    length_penalty="gnmt",
    alpha=0.95,
    count_eos=True,
    block_ngrams=3,
    stopping="presumm",
)


def read(path):
    """Returns the model of a checkpoint, and its parameters."""
    choices = {key: value for key, value in CHOICES.items() if not key.startswith("scorer")}
    checkpoint = presumm.read(path)
    values = {**presumm.describe(checkpoint), **choices, "num_heads": 2, "decoder_dropout": 0.0}
    config = build(ModelConfig, values, "model")
    model = BertSumAbs(part(HeadConfig, config), part(BertSumAbsConfig, config))
    params, report = presumm.load(checkpoint, shapes(model))
    assert report == ((), ("bert.pooler.dense.bias", "bert.pooler.dense.weight"))
    return model, params


@functools.cache
def shapes(model):
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(model.init, deterministic=True, return_attention=False)
    return jax.eval_shape(init, jax.random.key(0), Seq2SeqInputs(ids, ids, ids, ids))["params"]


def documents():
    """Returns inputs for `bertjax.tasks.seq2seq`."""
    found = dict(np.load(GOLDEN / "documents.npz"))
    labels = found.pop("target_ids")[:, 1:]
    return {**found, "labels": labels, "target_segment_ids": (labels != 0).astype(np.int32)}


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch):
    """Returns log-probabilities of all words, and the gradient of the summed negative log-likelihood of the targets."""

    def loss(params):
        logits = seq2seq.apply(model, params, batch, IDS.start, None, return_attention=False).logits
        return jnp.sum(cross_entropy(logits, batch["labels"]) * batch["target_segment_ids"]), jax.nn.log_softmax(logits)

    gradient, scores = jax.grad(loss, has_aux=True)(params)
    return scores, gradient


@functools.partial(jax.jit, static_argnums=(0, 3))
def write(model, params, batch, config):
    continues = jnp.arange(model.config.vocab_size) >= FIRST_PIECE
    return seq2seq.generate(model, params, batch, config, IDS, 0, continues)


@pytest.mark.slow
def test_golden():
    model, params = read(GOLDEN / "model.pt")
    batch, expected = documents(), np.load(GOLDEN / "expected.npz")
    scores, gradient = run(model, params, batch)
    # Compares only real targets: PreSumm also feeds the end token, whose prediction has no meaning.
    real = np.asarray(batch["target_segment_ids"][:8], bool)
    difference = np.abs(scores[:8] - expected["log_probabilities"])[real].max()
    print(f"max abs difference of log-probabilities {difference:.1e}")
    assert expected["log_probabilities"][real].std() > 1
    assert difference <= 2e-5
    theirs, _ = presumm.load(presumm.read(GOLDEN / "gradient.pt"), shapes(model))
    print(f"relative distance of gradients {distance(gradient, theirs):.1e}")
    assert distance(gradient, theirs) <= 1e-5
    for name, config in {"blocked": DECODING, "free": dataclasses.replace(DECODING, block_ngrams=0)}.items():
        found = write(model, params, batch, config)
        same = (np.asarray(found["ids"][:, 0]) == expected[f"{name}_ids"]).all(1)
        print(f"{name}: {same.sum()} of {len(same)} summaries alike")
        assert len(same) == 50 and same.all()
        np.testing.assert_allclose(found["scores"][:, 0], expected[f"{name}_scores"], atol=2e-5)
    assert expected["blocked_scores"].min() > -1e9
    # Summaries differ, have different lengths, and blocking changes some.
    assert len(np.unique(expected["blocked_ids"], axis=0)) == 50
    assert len(set((expected["blocked_ids"] != 0).sum(1))) > 4
    assert (expected["blocked_ids"] != expected["free_ids"]).any(1).sum() > 10


def text_of(ids):
    """Returns the sentences of a golden document or summary, or None if it has no words."""
    sentences = [[]]
    for number in ids:
        if number in (4, IDS.pad):  # [CLS] starts a sentence
            continue
        if number in (5, 3, IDS.end):  # [SEP], [unused2]
            sentences.append([])
        elif number < FIRST_WORD or (number >= FIRST_PIECE and not sentences[-1]):
            return None
        elif number >= FIRST_PIECE:
            sentences[-1][-1] += f"p{number}"
        else:
            sentences[-1].append(f"w{number}")
    return [" ".join(words) for words in sentences if words]


@pytest.mark.slow
def test_the_launcher_predicts_with_a_checkpoint(tmp_path):
    sources, expected = np.load(GOLDEN / "documents.npz")["input_ids"], np.load(GOLDEN / "expected.npz")["blocked_ids"]
    texts = [(text_of(source), text_of(summary)) for source, summary in zip(sources, expected, strict=True)]
    texts = [(article, summary) for article, summary in texts if article and summary]
    assert len(texts) >= 5
    WordPiece(VOCABULARY, lowercase=True).save(tmp_path / "vocabulary")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"article": article}) + "\n" for article, _ in texts))
    values = {
        "init_from": GOLDEN / "model.pt",
        "model.num_heads": 2,
        "data.vocab_file": tmp_path / "vocabulary" / "vocab.txt",
        "data.lowercase": True,
        "data.words": "spaces",
        "data.seq_len": 24,
        "data.window_overlap": 8,
        "data.limits.min_words": 0,
        "decoding.max_length": DECODING.max_length,
        "decoding.max_extra": DECODING.max_extra,
        "decoding.min_extra": DECODING.min_extra,
    }
    files = [f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
    done("--mode=predict", "--config=configs/bertsum_abs.py", *flags(values), *files)
    records = lines_of(tmp_path / "out.jsonl")
    assert [record["summary"] for record in records] == [summary for _, summary in texts]


def test_round_trip(tmp_path):
    model, params = read(GOLDEN / "model.pt")
    presumm.save(tmp_path, params, model.config, model.head, {})
    loaded, report = huggingface.load(tmp_path, shapes(model))
    assert report == ((), ())
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert open_weights(tmp_path).fields.items() >= dataclasses.asdict(model.head).items()
