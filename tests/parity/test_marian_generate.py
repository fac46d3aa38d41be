"""Translations of our model, loaded from a MarianMTModel folder, compared with `generate` of transformers (slow)."""

import functools

import jax
import numpy as np
import pytest

from bertjax.models.encoder_decoder import EncoderDecoder
from bertjax.tasks import seq2seq
from bertjax.tasks.seq2seq import TargetIds
from tests.decoding.toys import config as decoding_config
from tests.parity.test_marian import read

VOCABULARY, EOS, PAD, LENGTH, ROWS = 24, 0, 23, 12, 32


@functools.cache
def make_model():
    """A tiny Marian partly trained to copy: untrained models repeat one token, and well trained ones are certain."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    model = transformers.MarianMTModel(
        transformers.MarianConfig(vocab_size=VOCABULARY, dropout=0.0, init_std=0.3, **sizes, **heads, **ids)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(60):
        ids, mask = sources(step)
        ids, mask = torch.tensor(ids), torch.tensor(mask)
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def sources(seed):
    """Ids and mask [B, S] of rows with 3 to 8 tokens and an end token."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 9, ROWS)
    ids = random.integers(1, VOCABULARY - 1, (ROWS, 9))
    places = np.arange(9)
    ids = np.where(places < lengths[:, None], ids, np.where(places == lengths[:, None], EOS, PAD))
    return ids, (places <= lengths[:, None]).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_beams", "stopping", "alpha", "minimum", "block", "force_eos"),
    [
        (1, "hf", 1.0, 5, 2, False),
        (4, "hf", 2.0, 0, 2, False),
        (4, "hf_early", 0.6, 5, 0, True),
        (4, "hf", 1.0, 0, 0, True),
    ],
)
def test_live(tmp_path, num_beams, stopping, alpha, minimum, block, force_eos):
    import torch

    model = make_model()
    model.save_pretrained(tmp_path)
    config, params = read(tmp_path)
    # Rows that differ from the training rows.
    ids, mask = (np.concatenate(arrays) for arrays in zip(*map(sources, range(1000, 1003)), strict=True))
    options = {"early_stopping": stopping == "hf_early", "length_penalty": alpha} if num_beams > 1 else {}
    output = model.generate(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        num_beams=num_beams,
        max_new_tokens=LENGTH,
        min_new_tokens=minimum,
        no_repeat_ngram_size=block,
        bad_words_ids=[[PAD]],
        forced_eos_token_id=EOS if force_eos else None,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    expected = [[token for token in row.tolist() if token != PAD] for row in output.sequences]
    assert len({tuple(row) for row in expected}) > len(ids) / 4  # not only a few repeated outputs
    settings = decoding_config(
        num_beams=num_beams,
        stopping=stopping,
        length_penalty="length",
        alpha=alpha,
        max_length=LENGTH,
        max_extra=LENGTH,
        min_extra=minimum,
        block_ngrams=block,
        force_eos=force_eos,
    )
    write = functools.partial(
        seq2seq.generate, EncoderDecoder(config), config=settings, ids=TargetIds(PAD, EOS, PAD), seed=0
    )
    found = jax.jit(write)(params, {"input_ids": ids.astype(np.int32), "segment_ids": mask.astype(np.int32)})
    rows = [row[0, : length[0]].tolist() for row, length in zip(found["ids"], found["lengths"], strict=True)]
    assert rows == expected
    if num_beams > 1:
        np.testing.assert_allclose(found["scores"][:, 0], output.sequences_scores.numpy(), rtol=1e-4, atol=1e-5)
