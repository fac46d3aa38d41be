"""Denoising: spans have the statistics of BART and T5, and source and target have all tokens of a text."""

import numpy as np
import pytest

from bertjax.data.pretraining.denoising import OBJECTIVES, SENTINELS, NoiseConfig, Texts
from bertjax.data.pretraining.masking import Draw

MASK = 4
NOISE = {"infilling": NoiseConfig(0.3, 3.0, permute_sentences=True), "span_corruption": NoiseConfig(0.15)}
MARKS = {"infilling": np.array([MASK], np.int32), "span_corruption": 5000 + np.arange(len(SENTINELS), dtype=np.int32)}


def noised(name, lengths, sentence=7, noise=None, first=0):
    """Texts of different tokens in sentences of some tokens, with their sources and targets, as lists."""
    lengths = np.array(lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    text = np.repeat(np.arange(len(lengths)), lengths)
    texts = Texts((10 + places).astype(np.int32), lengths, 1000 * text + places // sentence)
    draw = Draw(0, 0, first + np.arange(len(lengths)), np.zeros_like(lengths))
    result = OBJECTIVES[name].hide(texts, noise or NOISE[name], MARKS[name], draw)
    sources = np.split(result.sources, np.cumsum(result.source_lengths)[:-1])
    targets, hidden = (
        np.split(values, np.cumsum(result.target_lengths)[:-1]) for values in (result.targets, result.is_hidden)
    )
    return list(zip(sources, targets, hidden, strict=True))


@pytest.mark.parametrize(("name", "length"), [("infilling", 126), ("infilling", 510), ("span_corruption", 511)])
def test_the_share_and_the_mean_length_of_spans_are_those_of_the_papers(name, length):
    rows = noised(name, [length] * 10_000)
    hidden = sum(is_hidden.sum() for *_, is_hidden in rows)
    spans = sum(np.isin(source, MARKS[name]).sum() for source, *_ in rows)
    assert abs(hidden / (10_000 * length) - NOISE[name].rate) <= 0.5 / length
    # T5 rounds the number of spans of a row, here from 25.67 to 26.
    assert abs(hidden / spans - 3) <= (0.01 if name == "infilling" else 0.04)


def test_the_lengths_of_infilled_spans_are_nearly_poisson():
    noise = NoiseConfig(0.3, 3.0)
    counts = np.zeros(40)
    for source, target, _ in noised("infilling", [510] * 2000, noise=noise):
        kept = np.concatenate([[9], source, [target[-1] + 1]])  # with a token before and after the text
        is_mask = kept == MASK
        single = is_mask[1:-1] & ~is_mask[:-2] & ~is_mask[2:]  # of neighboring masks, only the sum is known
        widths = kept[2:][single] - kept[:-2][single] - 1
        counts += np.bincount(widths, minlength=40)
    poisson = np.exp(-3) * 3.0 ** np.arange(8) / [1, 1, 2, 6, 24, 120, 720, 5040]
    np.testing.assert_allclose(counts[:8] / counts.sum(), poisson, atol=0.01)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_source_and_target_have_all_tokens_of_any_length_within_their_widths(name):
    lengths = np.arange(1, 130)
    for length, (source, target, is_hidden) in zip(lengths, noised(name, lengths), strict=True):
        text = set(range(10, 10 + length))
        widths = OBJECTIVES[name].widths(int(length) + 1, 1, NOISE[name])
        assert len(source) < widths[0] and len(target) < widths[1]
        kept = source[~np.isin(source, MARKS[name])].tolist()
        hidden = target[is_hidden].tolist()
        assert len(kept) + len(hidden) == length and {*kept, *hidden} == text
        assert [len(hidden)] == NOISE[name].num_hidden(np.array([length])).tolist()


def test_sentinels_in_order_stand_for_spans_that_do_not_touch():
    for source, target, is_hidden in noised("span_corruption", [126] * 200):
        marks = MARKS["span_corruption"]
        spans = np.split(target, np.flatnonzero(~is_hidden))[1:]
        assert source[0] == 10 and [span[0] for span in spans] == marks[: len(spans)].tolist()
        filled = [spans[token - marks[0]][1:] if token >= marks[0] else [token] for token in source]
        assert np.concatenate(filled).tolist() == list(range(10, 136))
        assert not np.any(np.diff(np.flatnonzero(np.isin(source, marks))) == 1)


def test_sentences_are_permuted_and_targets_are_not():
    moved = 0
    for source, target, _ in noised("infilling", [70] * 50):
        assert target.tolist() == list(range(10, 80))
        sentences = (source[source != MASK] - 10) // 7
        runs = sentences[np.flatnonzero(np.diff(sentences, prepend=-1))]
        assert len(set(runs)) == len(runs), "each sentence is whole"
        moved += runs.tolist() != sorted(runs)
    assert moved == 50


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_row_does_not_depend_on_the_other_rows(name):
    lengths = [5, 126, 1, 60]
    whole = noised(name, lengths)
    for number, length in enumerate(lengths):
        (row,) = noised(name, [length], first=number)
        for one, other in zip(row, whole[number], strict=True):
            np.testing.assert_array_equal(one, other)
