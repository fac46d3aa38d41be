"""Translations of our model, loaded from a MarianMTModel folder, compared with `generate` of transformers (slow)."""

import functools

import jax
import numpy as np
import pytest

from bertjax.models.encoder_decoder import EncoderDecoder
from bertjax.tasks import seq2seq
from bertjax.tasks.seq2seq import TargetIds
from tests.decoding import test_generate as toy
from tests.decoding.toys import config as decoding_config
from tests.parity.test_marian import read

BATCHES = range(1000, 1003)  # seeds of inputs, 32 each


def inputs():
    """Ids and mask of 96 random rows, which differ from the training rows."""
    parts = [toy.sources(seed) for seed in BATCHES]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def theirs(ids, mask, num_beams):
    import torch

    found = toy.make_model().generate(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        num_beams=num_beams,
        max_new_tokens=toy.LENGTH,
        bad_words_ids=[[toy.PAD]],
        forced_eos_token_id=toy.EOS,
    )
    return [[token for token in row.tolist() if token != toy.PAD] for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 4])
def test_live(tmp_path, num_beams):
    toy.make_model().save_pretrained(tmp_path)
    config, params = read(tmp_path)
    ids, mask = inputs()
    expected = theirs(ids, mask, num_beams)
    assert len({tuple(row) for row in expected}) > len(ids) / 4  # not only a few repeated outputs
    settings = decoding_config(
        num_beams=num_beams,
        stopping="hf",
        length_penalty="length",
        alpha=1.0,
        max_length=toy.LENGTH,
        max_extra=toy.LENGTH,
        force_eos=True,
    )
    write = functools.partial(
        seq2seq.generate, EncoderDecoder(config), config=settings, ids=TargetIds(toy.PAD, toy.EOS, toy.PAD), seed=0
    )
    found = jax.jit(write)(params, {"input_ids": ids.astype(np.int32), "segment_ids": mask.astype(np.int32)})
    rows = [row[0, : length[0]].tolist() for row, length in zip(found["ids"], found["lengths"], strict=True)]
    alike = sum(a == b for a, b in zip(rows, expected, strict=True))
    print(f"{alike} of {len(rows)} rows alike with {num_beams} beams")
    assert rows == expected
