import dataclasses
import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import random
from bertjax.data.pretraining import masking
from bertjax.data.pretraining.masking import Draw, MaskingConfig, Predictions, mask_tokens, predict_neighbors
from bertjax.errors import UserError

# Ids 0 to 4 are special tokens, 5 to 17 start words, and 18 to 29 continue them.
PAD, CLS, SEP, MASK, V = 0, 2, 3, 4, 30
IS_CONTINUATION = np.arange(V) >= 18
CONFIG = MaskingConfig(
    rate=0.15,
    max_predictions=20,
    mask_fraction=0.8,
    random_fraction=0.1,
    keep_fraction=0.1,
    whole_word=False,
    mode="dynamic",
    dupe_factor=10,
)
FRACTIONS = [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
SEED, EPOCH = 11, 5
MANY = 40_000
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


def chosen_positions(output: Predictions, i: int) -> list[int]:
    return output.positions[i, : int(output.weights[i].sum())].tolist()


@settings(max_examples=40)
@given(rows(), CHANGES)
def test_only_candidates_are_selected_and_other_tokens_are_unchanged(row, changes):
    config = changed(**changes)
    output = row.masked(config)
    for i in range(len(row.lengths)):
        chosen = np.zeros(row.input_ids.shape[1], bool)
        chosen[chosen_positions(output, i)] = True
        assert row.candidates[i, chosen].all()
        np.testing.assert_array_equal(output.input_ids[i, ~chosen], row.input_ids[i, ~chosen])


@settings(max_examples=40)
@given(rows(), CHANGES)
def test_predictions_are_sorted_labelled_and_padded(row, changes):
    config = changed(**changes)
    before = row.input_ids.copy()
    output = row.masked(config)
    np.testing.assert_array_equal(row.input_ids, before)
    assert output.positions.shape == output.labels.shape == output.weights.shape
    assert output.positions.shape == (len(row.lengths), config.max_predictions)
    assert [array.dtype for array in output] == [np.int32, np.int32, np.int32, np.float32]
    for i in range(len(row.lengths)):
        positions, count = chosen_positions(output, i), int(output.weights[i].sum())
        assert positions == sorted(set(positions))
        assert output.weights[i].tolist() == [1.0] * count + [0.0] * (config.max_predictions - count)
        assert output.labels[i, :count].tolist() == row.input_ids[i, positions].tolist()
        assert not output.labels[i, count:].any()
        assert not output.positions[i, count:].any()


@settings(max_examples=40)
@given(rows(), CHANGES)
def test_the_number_of_predictions_is_that_of_the_rate(row, changes):
    config = changed(**changes)
    output = row.masked(config)
    for i, length in enumerate(row.lengths):
        count, most = len(chosen_positions(output, i)), num_predictions(config, length)
        if config.whole_word:
            assert count <= most
            # Fewer only if every remaining word is too long for the remaining number.
            taken = set(chosen_positions(output, i))
            left = [len(word) for word in words_of(row, i, config) if not taken & set(word)]
            assert all(count + size > most for size in left)
        else:
            assert count == min(most, row.candidates[i].sum())


@settings(max_examples=40)
@given(rows(), CHANGES)
def test_words_are_selected_whole_or_not_at_all(row, changes):
    config = changed(**{**changes, "whole_word": True})
    output = row.masked(config)
    for i in range(len(row.lengths)):
        taken = set(chosen_positions(output, i))
        for word in words_of(row, i, config):
            assert taken.isdisjoint(word) or taken.issuperset(word)


@settings(max_examples=200)
@given(rows(), CHANGES)
def test_rows_equal_a_greedy_walk_over_the_same_random_order(row, changes):
    config = changed(**changes)
    output = row.masked(config)
    for i in range(len(row.lengths)):
        words = draw(row.numbers[i : i + 1], SEED, EPOCH).words
        fate, token = words(random.Stream.REPLACEMENT, 2 * config.max_predictions)[0].reshape(-1, 2).T.tolist()
        spans = spans_of(row, i, config)
        chosen = sorted(itertools.chain(*spans))
        assert chosen_positions(output, i) == chosen
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


@settings(max_examples=40)
@given(rows(), CHANGES, st.data())
def test_masks_of_a_row_do_not_depend_on_other_rows(row, changes, data):
    config = changed(**changes)
    whole = row.masked(config)
    some = data.draw(st.lists(st.integers(0, len(row.lengths) - 1), min_size=1))
    for all_rows, few in zip(whole, row.masked(config, np.array(some)), strict=True):
        np.testing.assert_array_equal(all_rows[some], few)


@settings(max_examples=40)
@given(rows(), CHANGES, st.integers(1, 20))
def test_padding_does_not_change_masks(row, changes, padding):
    config, size = changed(**changes), row.input_ids.shape[1]
    wider = dataclasses.replace(
        row,
        input_ids=np.pad(row.input_ids, ((0, 0), (0, padding)), constant_values=PAD),
        candidates=np.pad(row.candidates, ((0, 0), (0, padding))),
    )
    output, expected = wider.masked(config), row.masked(config)
    np.testing.assert_array_equal(output.input_ids[:, :size], expected.input_ids)
    assert (output.input_ids[:, size:] == PAD).all()
    for name in ("positions", "labels", "weights"):
        np.testing.assert_array_equal(getattr(output, name), getattr(expected, name))


def test_a_piece_after_sep_joins_the_word_before_and_a_first_piece_is_a_word():
    # Words: [20], [5], [6, 21, 22, 23]. The last is selected only if four tokens are predicted.
    row = Rows.of([([20, 5, 6, 21], [22, 23])] * 200, list(range(200)), 9)
    rate = {most: dataclasses.replace(CONFIG, rate=most / 9, whole_word=True) for most in (1, 3, 4)}
    assert {tuple(chosen_positions(row.masked(rate[1]), i)) for i in range(200)} == {(1,), (2,)}
    assert {tuple(chosen_positions(row.masked(rate[3]), i)) for i in range(200)} == {(1, 2)}
    assert {tuple(chosen_positions(row.masked(rate[4]), i)) for i in range(200)} == {(1, 2), (3, 4, 6, 7)}


def test_a_word_longer_than_the_limit_leaves_nothing_to_predict():
    row = Rows.of([([6, 21], [22, 23])], [0], 8)
    output = row.masked(dataclasses.replace(CONFIG, whole_word=True))
    assert not output.weights.any()
    np.testing.assert_array_equal(output.input_ids, row.input_ids)


def test_the_rate_counts_specials_and_rounds_half_to_even():
    # 128 * .15 = 19.2; the 125 text tokens alone would give 18.75. 10 and 30 tokens give 1.5 and 4.5.
    for text, expected in ((125, 19), (7, 2), (27, 4), (1, 1)):
        row = Rows.of([([5] * (text - text // 2), [5] * (text // 2))], [0], 130)
        assert row.masked(CONFIG).weights.sum() == expected


@functools.cache
def many(fractions: tuple[float, float, float]) -> Predictions:
    """Returns MANY rows of 32 tokens, with five predicted tokens each."""
    text = random.below(random.bits(1, random.Stream.CHUNKS, 0, np.arange(MANY), 29), V - 5) + 5
    input_ids = np.full((MANY, 32), SEP)
    input_ids[:, 0], input_ids[:, 1:15], input_ids[:, 16:31] = CLS, text[:, :14], text[:, 14:]
    row = Rows(input_ids, input_ids >= 5, np.full(MANY, 32), np.arange(MANY))
    return row.masked(changed(fractions))


@pytest.mark.parametrize("fractions", FRACTIONS[:3])
def test_tokens_are_replaced_at_the_configured_rates(fractions, check_rate):
    output = many(fractions)
    assert (output.weights.sum(axis=1) == 5).all()
    after = np.take_along_axis(output.input_ids, output.positions[:, :5], axis=1)
    mask, swap, keep = fractions
    # A random token is [MASK] or the original token with probability 1 / V each; the text has no [MASK].
    for name, happened, chance in (
        ("[MASK]", after == MASK, mask + swap / V),
        ("unchanged", after == output.labels[:, :5], keep + swap / V),
        ("another token", (after != MASK) & (after != output.labels[:, :5]), swap * (1 - 2 / V)),
    ):
        if 0 < chance < 1:
            check_rate(f"{name} at {fractions}", int(happened.sum()), after.size, chance)
        else:
            assert happened.mean() == chance


def test_random_tokens_are_uniform_over_the_whole_vocabulary(check_uniform):
    output = many((0.0, 1.0, 0.0))
    after = np.take_along_axis(output.input_ids, output.positions[:, :5], axis=1)
    check_uniform("random tokens, specials included", np.bincount(after.ravel(), minlength=V))


def test_every_candidate_is_equally_likely_to_be_selected(check_rate):
    output = many((1.0, 0.0, 0.0))
    share = (output.input_ids == MASK).sum(axis=0)
    assert not share[[0, 15, 31]].any()
    for position in (1, 2, 14, 16, 30):
        check_rate(f"position {position} chosen", int(share[position]), MANY, 5 / 29)
    both = ((output.input_ids[:, 1] == MASK) & (output.input_ids[:, 2] == MASK)).sum()
    check_rate("two neighbors selected", int(both), MANY, 5 / 29 * 4 / 28)


def test_the_replacement_of_a_token_depends_neither_on_its_position_nor_on_its_neighbor(check_rate):
    output = many((0.5, 0.0, 0.5))
    after = np.take_along_axis(output.input_ids, output.positions[:, :5], axis=1) == MASK
    for column in range(5):
        check_rate(f"[MASK] at prediction {column}", int(after[:, column].sum()), MANY, 0.5)
    check_rate("[MASK] twice in a row", int((after[:, 0] & after[:, 1]).sum()), MANY, 0.25)


def test_words_are_equally_likely_regardless_of_their_length(check_rate):
    # Words of 1, 2 and 3 pieces. The first word in the random order is always selected if 3 tokens are predicted.
    row = Rows.of([([5, 6, 20], [7, 21, 22])] * MANY, list(range(MANY)), 9)
    output = row.masked(changed((1.0, 0.0, 0.0), rate=3 / 9, whole_word=True))
    # {7, 21, 22} is first in a third of the orders. Otherwise the other two words are selected.
    long = (output.input_ids[:, 5] == MASK).sum()
    check_rate("word of three pieces", int(long), MANY, 1 / 3)
    assert (output.weights.sum(axis=1) == 3).all()


@functools.cache
def many_spans() -> tuple[Rows, MaskingConfig, Predictions]:
    """Returns rows of 512 tokens, a fifth of which continue words, masked by SpanBERT's spans, 80/10/10."""
    count, size = 1000, 512
    word = random.below(random.bits(1, random.Stream.CHUNKS, 0, np.arange(count), size), 13) + 5
    is_inside = random.uniform(random.bits(2, random.Stream.CHUNKS, 0, np.arange(count), size)) < 0.2
    input_ids = np.where(is_inside, 18, word)
    input_ids[:, 0] = CLS
    input_ids[:, [256, -1]] = SEP
    row = Rows(input_ids, input_ids >= 5, np.full(count, size), np.arange(count))
    config = dataclasses.replace(CONFIG, max_predictions=80, whole_word=True, max_span=10)
    return row, config, row.masked(config)


def test_drawn_spans_have_the_mean_length_that_spanbert_reports():
    words = np.linspace(0, 2**32 - 1, 100_001).astype(np.uint32)
    lengths = masking._span_lengths(words[:, None], 10)
    share = np.bincount(lengths[:, 0])[1:] / len(words)
    chances = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    np.testing.assert_allclose(share, chances, atol=1e-4)
    assert abs(lengths.mean() - 3.8) < 0.01  # section 3.1


def test_spans_fill_the_rate_with_long_runs_of_words():
    row, config, output = many_spans()
    assert (output.weights.sum(axis=1) <= 77).all()
    assert output.weights.sum(axis=1).mean() > 76.9  # 15 % of 512
    spans = [spans_of(row, i, config) for i in range(100)]
    assert [sorted(itertools.chain(*each)) for each in spans] == [chosen_positions(output, i) for i in range(100)]
    begins = ~IS_CONTINUATION[row.input_ids]
    sizes = [begins[i, span].sum() for i, each in enumerate(spans) for span in each]
    # A fraction of spans ends early: at another span, at [SEP], or because the rate is reached.
    assert 3.2 < np.mean(sizes) < 3.8
    assert max(sizes) == 10


def test_all_tokens_of_a_span_are_replaced_alike_at_the_configured_rates(check_rate):
    row, config, output = many_spans()
    fates = []
    for i in range(len(row.lengths)):
        for span in (span for span in spans_of(row, i, config) if len(span) > 2):
            after, before = output.input_ids[i, span], row.input_ids[i, span]
            fates.append("masked" if (after == MASK).all() else "kept" if (after == before).all() else "random")
            assert fates[-1] != "random" or (after == MASK).sum() < 3  # each token is random by itself
    for fate, chance in (("masked", 0.8), ("kept", 0.1), ("random", 0.1)):
        check_rate(f"spans {fate}", fates.count(fate), len(fates), chance)


def test_spans_end_at_special_tokens(check_rate):
    row = Rows.of([([5], [6])] * 5000, list(range(5000)), 5)
    output = row.masked(changed((0.5, 0.0, 0.5), rate=1.0, max_span=10))
    assert (output.positions[:, :2] == [1, 3]).all()
    alike = (output.input_ids[:, 1] == MASK) == (output.input_ids[:, 3] == MASK)
    check_rate("two segments masked alike", int(alike.sum()), 5000, 0.5)


def masked_in_epochs(mode: str, epochs: range) -> list[bytes]:
    row = Rows.of([([5, 6, 7] * 8, [8, 9] * 10)], [3], 50)
    config = dataclasses.replace(CONFIG, mode=mode, dupe_factor=3)
    outputs = []
    for epoch in epochs:
        draws = config.epoch_of_draws(epoch)
        arguments = (row.input_ids, row.candidates, row.lengths, config)
        output = mask_tokens(
            *arguments, is_continuation=IS_CONTINUATION, mask_id=MASK, draw=draw(row.numbers, 0, draws)
        )
        outputs.append(output.input_ids.tobytes())
    return outputs


def test_dynamic_masks_differ_in_each_epoch():
    assert len(set(masked_in_epochs("dynamic", range(9)))) == 9


def test_static_masks_are_repeated_after_dupe_factor_epochs():
    outputs = masked_in_epochs("static", range(9))
    assert outputs[:3] == outputs[3:6] == outputs[6:]
    assert len(set(outputs)) == 3
    assert outputs[:3] == masked_in_epochs("dynamic", range(3))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mode": "sometimes"}, "masking.mode"),
        ({"keep_fraction": 0.2}, "fraction"),
        ({"mask_fraction": 1.0, "random_fraction": 0.1, "keep_fraction": -0.1}, "fraction"),
        ({"rate": 0.0}, "masking.rate"),
        ({"rate": 1.01}, "masking.rate"),
        ({"max_predictions": 0}, "masking.max_predictions"),
        ({"dupe_factor": 0}, "masking.dupe_factor"),
        ({"final_rate": 1.1}, "masking.final_rate"),
        ({"valid_rate": -0.1}, "masking.valid_rate"),
        ({"final_rate": 0.1, "mode": "static"}, "masking.final_rate: .*dynamic"),
        ({"max_span": -1}, "masking.max_span"),
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


def test_neighbors_worked_example():
    ids = np.array([[CLS, 5, 6, SEP, PAD], [CLS, 7, 8, 9, SEP]])
    lengths = np.array([4, 5])
    right = predict_neighbors(ids, lengths, "left_to_right")
    assert right.positions.tolist() == [[0, 1, 2, 3]] * 2
    assert right.labels.tolist() == [[5, 6, SEP, 0], [7, 8, 9, SEP]]
    assert right.weights.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    left = predict_neighbors(ids, lengths, "right_to_left")
    assert left.positions.tolist() == [[1, 2, 3, 4]] * 2
    assert left.labels.tolist() == [[CLS, 5, 6, 0], [CLS, 7, 8, 9]]
    assert left.weights.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


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
