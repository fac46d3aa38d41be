import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import random
from bertjax.data.pretraining.masking import Draw, MaskingConfig, Predictions, mask_tokens, predict_neighbors
from bertjax.errors import UserError
from tests.data.batches import MASKING

# Ids 0 to 4 are special tokens, 5 to 17 start words, and 18 to 29 continue them.
PAD, CLS, SEP, MASK, V = 0, 2, 3, 4, 30
IS_CONTINUATION = np.arange(V) >= 18
CONFIG = dataclasses.replace(MASKING, max_predictions=20)
FRACTIONS = [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
SEED, EPOCH = 11, 5
# Segments often contain continuation pieces, also at their start, and occasionally a special token from the text.
SEGMENT = st.lists(st.sampled_from([1, MASK, *range(5, 9), *range(18, 30)]), min_size=1, max_size=12)


def draw(numbers: np.ndarray, seed: int, epoch: int) -> Draw:
    """Returns the draw of instances that start at different positions, in documents of seven instances each."""
    return Draw(seed, epoch, numbers // 7, numbers)


@dataclasses.dataclass
class Rows:
    """Padded rows of [CLS] a [SEP] b [SEP], with the arguments of `mask_tokens`."""

    input_ids: np.ndarray
    candidates: np.ndarray
    lengths: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, pairs: list[tuple[list[int], list[int]]], numbers: list[int], size: int) -> "Rows":
        input_ids, candidates = np.full((len(pairs), size), PAD), np.zeros((len(pairs), size), bool)
        lengths = np.zeros(len(pairs), np.int64)
        for i, (a, b) in enumerate(pairs):
            lengths[i] = len(a) + len(b) + 3
            input_ids[i, : lengths[i]] = [CLS, *a, SEP, *b, SEP]
            candidates[i, 1 : 1 + len(a)] = candidates[i, 2 + len(a) : 2 + len(a) + len(b)] = True
        return cls(input_ids, candidates, lengths, np.array(numbers, np.int64))

    def masked(self, config: MaskingConfig, chosen: object = slice(None)) -> Predictions:
        return mask_tokens(
            self.input_ids[chosen],
            self.candidates[chosen],
            self.lengths[chosen],
            config,
            is_continuation=IS_CONTINUATION,
            mask_id=MASK,
            draw=draw(self.numbers[chosen], SEED, config.epoch_of_draws(EPOCH)),
        )


@st.composite
def rows(draw) -> Rows:
    pairs = draw(st.lists(st.tuples(SEGMENT, SEGMENT), min_size=1, max_size=5))
    numbers = draw(st.lists(st.integers(0, 10**6), min_size=len(pairs), max_size=len(pairs), unique=True))
    longest = max(len(a) + len(b) + 3 for a, b in pairs)
    return Rows.of(pairs, numbers, longest + draw(st.integers(0, 3)))


# Changes of CONFIG as plain values, because the type checker draws random numbers, which a strategy must not do.
CHANGES = st.fixed_dictionaries(
    {
        "fractions": st.sampled_from(FRACTIONS),
        "rate": st.sampled_from([0.01, 0.15, 0.3, 0.5, 1.0]) | st.floats(0.01, 1),
        "max_predictions": st.integers(1, 40),
        "whole_word": st.booleans(),
        "max_span": st.sampled_from([0, 1, 2, 10]),
    }
)


def changed(fractions: tuple[float, float, float], **changes: object) -> MaskingConfig:
    mask, swap, keep = fractions
    return dataclasses.replace(CONFIG, mask_fraction=mask, random_fraction=swap, keep_fraction=keep, **changes)


def num_predictions(config: MaskingConfig, length: int) -> int:
    return min(config.max_predictions, max(1, round(int(length) * config.rate)))


def words_of(row: Rows, i: int, config: MaskingConfig) -> list[list[int]]:
    """Returns the positions of each word, as google-research/bert groups them; with spans, words do not cross [SEP]."""
    words: list[list[int]] = []
    for position in np.flatnonzero(row.candidates[i]).tolist():
        is_inside = words and (not config.max_span or words[-1][-1] == position - 1)
        if config.whole_word and is_inside and IS_CONTINUATION[row.input_ids[i, position]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def span_length(word: int, longest: int) -> int:
    """Returns the length that a random word gives: geometric with p = 0.2, truncated (SpanBERT)."""
    chances = [0.2 * 0.8**k for k in range(longest)]
    where, length = word / 2**32 * sum(chances), 0
    while length < longest - 1 and where >= sum(chances[: length + 1]):
        length += 1
    return length + 1


def spans_of(row: Rows, i: int, config: MaskingConfig) -> list[list[int]]:
    """Returns the positions of each selected span, in the order of their selection. Without spans, each is a word."""
    size, words = row.input_ids.shape[1], words_of(row, i, config)
    draws = draw(row.numbers[i : i + 1], SEED, EPOCH).words
    order = draws(random.Stream.MASKING, size)[0].tolist()
    lengths = draws(random.Stream.SPANS, size)[0].tolist()
    left, taken, spans = num_predictions(config, row.lengths[i]), set(), []
    for number in sorted(range(len(words)), key=lambda number: order[words[number][0]]):
        span: list[int] = []
        length = span_length(lengths[words[number][0]], config.max_span) if config.max_span else 1
        for word in words[number : number + length]:
            crosses = span and word[0] != span[-1] + 1
            if crosses or word[0] in taken or len(taken) + len(word) > left:
                break
            span += word
            taken.update(word)
        if span:
            spans.append(span)
    return spans


@settings(max_examples=200)
@given(rows(), CHANGES)
def test_rows_equal_a_greedy_walk_over_the_same_random_order(row, changes):
    """Predictions are sorted, and padded with zeros."""
    config = changed(**changes)
    before = row.input_ids.copy()
    output = row.masked(config)
    np.testing.assert_array_equal(row.input_ids, before)
    assert [array.dtype for array in output] == [np.int32, np.int32, np.int32, np.float32]
    for i in range(len(row.lengths)):
        words = draw(row.numbers[i : i + 1], SEED, EPOCH).words
        fate, token = words(random.Stream.REPLACEMENT, 2 * config.max_predictions)[0].reshape(-1, 2).T.tolist()
        spans = spans_of(row, i, config)
        chosen = sorted(itertools.chain(*spans))
        padding = [0] * (config.max_predictions - len(chosen))
        assert output.positions[i].tolist() == chosen + padding
        assert output.labels[i].tolist() == row.input_ids[i, chosen].tolist() + padding
        assert output.weights[i].tolist() == [1.0] * len(chosen) + padding
        expected = row.input_ids[i].tolist()
        for span in spans:
            for position in span:
                place = chosen.index(position)
                where = fate[chosen.index(span[0]) if config.max_span else place] / 2**32
                if where < config.mask_fraction:
                    expected[position] = MASK
                elif where < config.mask_fraction + config.random_fraction:
                    expected[position] = token[place] * V >> 32
        assert output.input_ids[i].tolist() == expected


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"keep_fraction": 0.2}, "fractions .* that add up to 1"),
        ({"mask_fraction": 1.0, "random_fraction": 0.1, "keep_fraction": -0.1}, "keep_fraction: got -0.1"),
        ({"final_rate": 0.1, "mode": "static"}, "masking.final_rate: .*dynamic"),
    ],
)
def test_invalid_settings_are_reported(changes, what):
    with pytest.raises(UserError, match=what):
        dataclasses.replace(CONFIG, **changes)


def test_the_rate_changes_linearly_to_the_final_rate():
    config = dataclasses.replace(CONFIG, rate=0.3, final_rate=0.15)
    assert [config.at(progress).rate for progress in (0.0, 1.0)] == [0.3, 0.15]
    assert config.at(0.5).rate == pytest.approx(0.225)
    row = Rows.of([([5] * 60, [6] * 37)], [0], 100)
    masked = [row.masked(config.at(progress)).weights.sum() for progress in (0.0, 0.2, 0.5, 1.0)]
    assert masked == [20, 20, 20, 15]  # at most max_predictions
    assert CONFIG.at(0.5) == CONFIG


def test_evaluations_have_the_last_rate_or_one_of_their_own():
    changing = dataclasses.replace(CONFIG, rate=0.3, final_rate=0.2)
    assert [config.valid.rate for config in (CONFIG, changing)] == [CONFIG.rate, 0.2]
    own = dataclasses.replace(changing, valid_rate=0.15)
    assert (own.valid.rate, own.at(1.0).rate, own.highest_rate) == (0.15, 0.2, 0.3)
    assert own.valid.valid == own.valid


@given(rows(), st.sampled_from([("left_to_right", 1), ("right_to_left", -1)]))
def test_every_token_but_one_predicts_its_neighbor(row, towards):
    direction, step = towards
    output = predict_neighbors(row.input_ids, row.lengths, direction)
    np.testing.assert_array_equal(output.input_ids, row.input_ids)
    assert [array.dtype for array in output] == [np.int32, np.int32, np.int32, np.float32]
    for i, length in enumerate(row.lengths):
        predicted = {}
        for position, label, weight in zip(output.positions[i], output.labels[i], output.weights[i], strict=True):
            if weight:
                predicted[int(position)] = int(label)
        expected = {p: int(row.input_ids[i, p + step]) for p in range(length) if 0 <= p + step < length}
        assert predicted == expected
