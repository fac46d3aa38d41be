"""The "hf" stopping rules compared with `generate` of transformers, with the same tiny Marian model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding.beam_search import beam_search
from tests.decoding.toys import config

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


def theirs(num_beams, options):
    import torch

    ids, mask = (torch.tensor(array) for array in sources(1000))
    output = make_model().generate(
        input_ids=ids,
        attention_mask=mask,
        num_beams=num_beams,
        max_new_tokens=LENGTH,
        bad_words_ids=[[PAD]],
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    rows = [[token for token in row.tolist() if token != PAD] for row in output.sequences]
    return rows, output.sequences_scores.numpy() if num_beams > 1 else None


def ours(settings, minimum):
    """Our beam search, whose step runs the model's decoder on the whole prefix."""
    import torch

    model, (ids, mask) = make_model(), sources(1000)
    with torch.no_grad():
        memory = model.get_encoder()(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))[0]

    def decode(prefixes, index):
        prefixes = torch.tensor(np.asarray(prefixes)[:, :, : int(index) + 1]).long()
        rows, beams = prefixes.shape[:2]
        with torch.no_grad():
            logits = model(
                encoder_outputs=(memory.repeat_interleave(beams, 0),),
                attention_mask=torch.tensor(mask).repeat_interleave(beams, 0),
                decoder_input_ids=prefixes.reshape(rows * beams, -1),
            ).logits[:, -1]
        return logits.reshape(rows, beams, -1).numpy()

    def step(tokens, prefixes, beams):
        prefixes = jnp.take_along_axis(prefixes, beams.parents[..., None], axis=1)
        prefixes = prefixes.at[..., beams.index].set(tokens)
        shape = jax.ShapeDtypeStruct((*tokens.shape, VOCABULARY), jnp.float32)
        return jax.pure_callback(decode, shape, prefixes, beams.index), prefixes

    search = functools.partial(beam_search, step, config=settings, eos_id=EOS, pad_id=PAD, continues=None)
    found = jax.jit(search)(
        jnp.zeros((ROWS, settings.num_beams, LENGTH), jnp.int32),
        start_ids=jnp.full(ROWS, PAD),
        min_lengths=jnp.full(ROWS, minimum),
        max_lengths=jnp.full(ROWS, LENGTH),
    )
    rows = [ids[:length].tolist() for ids, length in zip(found.ids[:, 0], found.lengths[:, 0].tolist(), strict=True)]
    return rows, np.asarray(found.scores[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_beams", "early", "alpha", "minimum", "block", "force_eos"),
    [(1, False, 1.0, 5, 2, False), (4, False, 2.0, 0, 2, False), (4, True, 0.6, 5, 0, True)],
)
def test_beam_search_finds_the_same_as_generate(num_beams, early, alpha, minimum, block, force_eos):
    options = {"min_new_tokens": minimum, "no_repeat_ngram_size": block}
    options |= {"forced_eos_token_id": EOS} if force_eos else {}
    options |= {"early_stopping": early, "length_penalty": alpha} if num_beams > 1 else {}
    their_rows, their_scores = theirs(num_beams, options)
    assert len({tuple(row) for row in their_rows}) > ROWS / 2  # the rows must differ
    settings = config(
        num_beams=num_beams,
        stopping="hf_early" if early else "hf",
        length_penalty="length",
        alpha=alpha,
        max_length=LENGTH,
        block_ngrams=block,
        force_eos=force_eos,
    )
    rows, scores = ours(settings, minimum)
    print(f"{sum(a == b for a, b in zip(rows, their_rows, strict=True))} of {ROWS} rows are equal")
    assert rows == their_rows
    if their_scores is not None:
        np.testing.assert_allclose(scores, their_scores, rtol=1e-4, atol=1e-5)
