"""Beam search compared with `generate` of transformers, whose settings `from_generation` reads (slow)."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.config import build
from bertjax.decoding.config import DecodingConfig
from bertjax.decoding.generation import from_generation
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from bertjax.tasks import seq2seq
from tests.interop.test_marian import CHOICES, load, read_config, shapes

VOCAB_SIZE = 48
PAD, END = VOCAB_SIZE - 1, 0
IDS = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END}
ALL = {
    "num_beams": 4,
    "length_penalty": 2.0,
    "early_stopping": True,
    "min_length": 5,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[PAD], [29], [29, 29], [8, 5], [PAD, 8]],
    "forced_bos_token_id": 29,
    "forced_eos_token_id": END,
}
CASES = [
    {"num_beams": 1},
    {"num_beams": 4, "length_penalty": -1.0},
    {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"},
    {"num_beams": 8, "length_penalty": 2.0, "early_stopping": False, "min_new_tokens": 3},
    {"num_beams": 8, "length_penalty": 1.0, "early_stopping": True, "no_repeat_ngram_size": 1},
    {**ALL, "num_beams": 1},
    {**ALL, "num_beams": 8, "length_penalty": -0.5, "early_stopping": "never", "renormalize_logits": True},
    ALL,
]
LENGTHS = np.array([9, 4, 2, 6, 7, 8])
SEGMENTS = (np.arange(9) < LENGTHS[:, None]).astype(np.int32)
SOURCES = np.where(SEGMENTS, np.random.default_rng(0).integers(1, PAD, SEGMENTS.shape), PAD).astype(np.int32)


@pytest.fixture(scope="module")
def theirs():
    """A random model whose sequences have many lengths and repetitions."""
    import torch
    import transformers

    torch.manual_seed(1)
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 16, "max_position_embeddings": 32, "init_std": 0.3}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 24}
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes, **IDS, forced_eos_token_id=None)).eval()
    model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    model.final_logits_bias[0, END] = 3.0
    return model


def run_theirs(model, values):
    """Returns ids [B, n, T] without the start token, and scores [B, n] or, of greedy search, None."""
    import torch
    import transformers

    config = transformers.GenerationConfig(**values, **IDS, return_dict_in_generate=True, output_scores=True)
    rows = {"input_ids": torch.tensor(SOURCES).long(), "attention_mask": torch.tensor(SEGMENTS)}
    output = model.generate(**rows, generation_config=config)
    ids = output.sequences[:, 1:].numpy()
    ids = np.pad(ids, ((0, 0), (0, 12 - ids.shape[1])), constant_values=PAD)
    scores = output.sequences_scores.numpy() if values["num_beams"] > 1 else None
    return ids.reshape(len(SOURCES), -1, 12), scores if scores is None else scores.reshape(len(SOURCES), -1)


@pytest.mark.slow
@pytest.mark.parametrize("values", CASES, ids=str)
def test_hypotheses_and_scores_are_those_of_transformers(theirs, tmp_path, values):
    theirs.save_pretrained(tmp_path)
    sizes = build(EncoderDecoderConfig, {**read_config(tmp_path), **CHOICES, "dropout": 0.0}, "model")
    params = load(tmp_path, shapes(sizes))
    count = min(values["num_beams"], 3)
    values = {"max_length": 13, "num_return_sequences": count, "bad_words_ids": [[PAD]], **values}
    expected, scores = run_theirs(theirs, values)
    settings = from_generation({**IDS, **values}, Path("file.json"), eos_id=END, pad_id=PAD, start_id=PAD)
    config = DecodingConfig(**{**settings, "max_ratio": 0.0, "max_extra": 12})
    ids = seq2seq.TargetIds(start=PAD, end=END, pad=PAD)
    generate = jax.jit(functools.partial(seq2seq.generate, EncoderDecoder(sizes), config=config, ids=ids, seed=0))
    ours = generate(params, {"input_ids": SOURCES, "segment_ids": SEGMENTS})
    np.testing.assert_array_equal(ours["ids"], expected)
    if scores is not None:
        np.testing.assert_allclose(ours["scores"], scores, rtol=1e-4, atol=1e-4)
