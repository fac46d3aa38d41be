"""The likelihood of text: its bound against enumeration, bytes, unknown tokens, and causal models."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.readers.sources import Document
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.models.bert import BertForMaskedLM, BertInputs, HeadConfig
from bertjax.models.losses import cross_entropy
from bertjax.tasks import likelihood, minimal_pairs
from bertjax.tasks.language_models import LanguageModel, language_models

WORDS = ("aa", "bb", "cc", "dd")
TOKENIZER = WordPiece((*SPECIALS, *WORDS, "##가", "나"), lowercase=True, nfc=True)
SIZE = 5
BYTES = 3 * SIZE - 1
ENCODER = HeadConfig(
    vocab_size=len(TOKENIZER.vocab),
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=16,
    dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.5,
    activation="gelu",
    norm_eps=1e-12,
    type_vocab_size=0,
)


@pytest.fixture(scope="module")
def params():
    ids = np.zeros((1, 1), np.int32)
    inputs = BertInputs(ids, ids, ids)
    return BertForMaskedLM(ENCODER).init(jax.random.key(2), inputs, ids, deterministic=True)["params"]


def results(models, instances, params, draws=8):
    """The examples with the outputs of their rows, of one batch for each length."""
    infer = jax.jit(minimal_pairs.FloatModel(models[0], (8, 16)).infer)
    examples = [likelihood.example(instance, models, TOKENIZER, draws) for instance in instances]
    rows = [row for example in examples for row in example.rows]
    padded = {
        name: np.stack([np.pad(row[name], (0, 16 - row[name].size)) if row[name].ndim else row[name] for row in rows])
        for name in rows[0]
    }
    outputs = iter(np.asarray(infer(params, padded)["log_probabilities"]))
    return [(example, [{"log_probabilities": next(outputs)} for _ in example.rows]) for example in examples]


@pytest.mark.parametrize("predict_at", ["same", "previous"])
def test_the_estimate_is_that_of_the_sum_over_all_hidden_sets(params, predict_at):
    """A language of 1,024 texts of 5 words, and 31 sets of hidden words of each."""
    texts = np.array(list(itertools.product(range(len(SPECIALS), len(SPECIALS) + 4), repeat=SIZE)), np.int32)
    ids = np.pad(texts, ((0, 0), (1, 1)), constant_values=TOKENIZER.cls_id)
    ids[:, -1] = TOKENIZER.sep_id
    bound = np.zeros(len(texts))
    infer = jax.jit(minimal_pairs.FloatModel(LanguageModel(ENCODER, "masked_lm"), (SIZE + 2,)).infer)
    for k in range(1, SIZE + 1):
        for hidden in itertools.combinations(range(1, SIZE + 1), k):
            masked = ids.copy()
            masked[:, hidden] = TOKENIZER.mask_id
            ones = np.ones_like(ids)
            shift = -1 if predict_at == "previous" else 0
            positions = np.tile(np.array(hidden, np.int32) + np.int32(shift), (len(ids), 1))
            batch = {"input_ids": masked, "token_type_ids": 0 * ids, "segment_ids": ones}
            batch |= {"masked_positions": positions, "masked_labels": ids[:, hidden]}
            losses = -np.asarray(infer(params, batch)["log_probabilities"], np.float64).sum(axis=1)
            bound += SIZE / k * losses / SIZE / math.comb(SIZE, k)
    model = LanguageModel(ENCODER, "masked_lm", predict_at)
    instances = [likelihood.Instance(i, 0, text.tolist(), BYTES, 0) for i, text in enumerate(texts)]
    metrics = likelihood.score(results([model], instances, params), [model], 8)
    error = metrics["bits_per_byte_draws_error"] * BYTES * math.log(2) / SIZE
    assert error < 0.02
    assert metrics["nats_per_token"] == pytest.approx(bound.mean() / SIZE, abs=3 * error)
    assert metrics["bits_per_byte"] == pytest.approx(metrics["nats_per_token"] * SIZE / BYTES / math.log(2))
    documents = np.std(bound) / math.sqrt(len(texts)) / BYTES / math.log(2)
    assert metrics["bits_per_byte_documents_error"] == pytest.approx(documents, rel=0.3)
    by_rate = [metrics[f"likelihood/rate_{end}"] for end in ("0.25", "0.5", "0.75", "1")]
    assert len(set(by_rate)) == 4


def test_a_causal_model_and_the_causal_rows_of_a_mixed_one_have_the_exact_likelihood(params):
    (instance,) = likelihood.instances([Document(["aa bb cc dd aa"], "")], TOKENIZER, 16)
    masking = MaskingConfig(causal_share=0.5)
    mixed = language_models(ENCODER, "masked_lm", masking)
    causal = LanguageModel(dataclasses.replace(ENCODER, direction="left_to_right"), "causal_lm")
    ids = np.array([[TOKENIZER.cls_id, *instance.ids, TOKENIZER.sep_id]], np.int32)
    inputs = BertInputs(ids, np.zeros_like(ids), np.ones_like(ids))
    logits = BertForMaskedLM(causal.encoder).apply({"params": params}, inputs, np.arange(5)[None], deterministic=True)
    expected = float(cross_entropy(logits, ids[:, 1:6]).mean())
    alone = likelihood.score(results([causal], [instance], params), [causal], 8)
    both = likelihood.score(results(mixed, [instance], params), mixed, 8)
    assert alone["nats_per_token"] == pytest.approx(expected, rel=1e-5)
    assert both["causal_nats_per_token"] == pytest.approx(expected, rel=1e-5)
    assert "bits_per_byte_draws_error" not in alone and both["nats_per_token"] != both["causal_nats_per_token"]


def test_instances_have_the_bytes_of_the_text_that_their_tokens_stand_for(params):
    documents = [Document(["aa bb", "나 나가"], ""), Document(["dd zz"], "")]
    first, second, third = likelihood.instances(documents, TOKENIZER, 6)
    assert [first.document, first.start, first.num_bytes] == [0, 0, len("aa bb 나 나가".encode())]
    assert [second.document, second.start, len(second.ids), second.num_unknown, second.num_bytes] == [0, 4, 1, 0, 0]
    assert third.num_unknown == 1
    model = LanguageModel(ENCODER, "masked_lm")
    metrics = likelihood.score(results([model], [first, third], params), [model], 8)
    assert "bits_per_byte" not in metrics and metrics["likelihood/unknown"] == 1 / 6
