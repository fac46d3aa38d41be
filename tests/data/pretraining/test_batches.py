import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.pretraining.batches import PretrainingBatches
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.text.templates import Template
from bertjax.errors import UserError
from tests.data.batches import (
    ALL,
    BATCH,
    CONFIG,
    HALVES,
    KEPT,
    MASKING,
    ONE_SEGMENT,
    PACKED,
    PAIRS,
    P,
    S,
    actual_text,
    assert_equal,
    expected_text,
    instances_of,
    joined,
    make_batches,
    restored,
)


def steps_in(batches, epoch: int) -> int:
    """Returns the number of full batches of an epoch."""
    return batches._plans[0].count(epoch) // batches._config.batch_size


def shapes_of(batch) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in batch.items()}


@pytest.mark.parametrize(
    "masking",
    [
        MASKING,
        dataclasses.replace(MASKING, mode="static"),
        dataclasses.replace(MASKING, rate=0.1, final_rate=0.15, max_span=3),
    ],
)
@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
@pytest.mark.parametrize("rows", [CONFIG.rows, PACKED])
def test_a_batch_is_a_function_of_seed_and_step(corpus, masking, pairs, rows):
    batches = make_batches(corpus, masking=masking, pairs=pairs, rows=rows)
    steps_in_epoch = steps_in(batches, 0)
    count = 2 * steps_in_epoch + 3
    from_start = list(itertools.islice(batches.training(0, ALL), count))
    for step in (1, steps_in_epoch, count - 1):
        fresh = make_batches(corpus, masking=masking, pairs=pairs, rows=rows)
        for batch, expected in zip(fresh.training(step, ALL), from_start[step:], strict=False):
            assert_equal(batch, expected)
        assert_equal(fresh.training_batch(step, ALL), from_start[step])
    # Different steps give different batches, and so do different seeds.
    assert len({batch["input_ids"].tobytes() for batch in from_start}) == count
    other = make_batches(corpus, masking=masking, pairs=pairs, rows=rows, seed=4).training_batch(0, ALL)
    assert other["input_ids"].tobytes() != from_start[0]["input_ids"].tobytes()


def test_two_readers_of_one_object_are_independent(corpus):
    batches = make_batches(corpus)
    steps = 2 * steps_in(batches, 0) + 2
    expected = [make_batches(corpus).training_batch(step, ALL) for step in range(steps)]
    readers = [batches.training(0, half) for half in HALVES]
    for batch, *parts in zip(expected, *readers, strict=False):
        assert_equal(joined(parts), batch)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_batches_have_the_documented_shapes_and_types(corpus, split):
    tokens, predictions = (BATCH, S), (BATCH, P)
    names = ("input_ids", "token_type_ids", "segment_ids")
    plain = dict.fromkeys(names, tokens) | dict.fromkeys(
        ("masked_positions", "masked_labels", "masked_weights"), predictions
    )
    of_next = ("cls_positions", "next_sentence_labels", "next_sentence_weights")
    # Packed: 1.05 * 0.15 * 32 = 5.04 predictions, and an instance per 8 tokens.
    in_packed = plain | dict.fromkeys(("masked_positions", "masked_labels", "masked_weights"), (BATCH, 6))
    for pairs, rows, expected in (
        (PAIRS, CONFIG.rows, plain | dict.fromkeys(of_next, (BATCH, 1))),
        (ONE_SEGMENT, CONFIG.rows, plain),
        (PAIRS, PACKED, in_packed | {"position_ids": tokens} | dict.fromkeys(of_next, (BATCH, 4))),
        (ONE_SEGMENT, PACKED, in_packed | {"position_ids": tokens}),
    ):
        batches = make_batches(corpus, split, pairs=pairs, rows=rows)
        assert batches._config.shapes() == expected
        for batch in [batches.training_batch(0, ALL), *batches.evaluation(ALL)]:
            assert shapes_of(batch) == expected
            assert {name: array.dtype for name, array in batch.items()} == {
                name: np.float32 if name.endswith("weights") else np.int32 for name in expected
            }


@pytest.mark.parametrize("rows", [CONFIG.rows, PACKED])
def test_the_masking_rate_changes_from_step_to_step_in_batches_of_one_shape(corpus, rows):
    masking = dataclasses.replace(MASKING, rate=0.4, final_rate=0.1, max_predictions=13)
    batches = make_batches(corpus, masking=masking, rows=rows, num_steps=31)
    constant = [
        make_batches(corpus, masking=dataclasses.replace(MASKING, rate=rate, max_predictions=13), rows=rows)
        for rate in (0.4, 0.25, 0.1)
    ]
    if not rows.packing:  # packed rows have room for predictions at the highest rate
        for step, expected in zip((0, 15, 30), constant, strict=True):
            assert_equal(batches.training_batch(step, ALL), expected.training_batch(step, ALL))
        assert_equal(next(batches.evaluation(ALL)), next(constant[-1].evaluation(ALL)))
    for step, rate in ((0, 0.4), (15, 0.25), (30, 0.1), (100, 0.1)):
        batch = batches.training_batch(step, ALL)
        assert shapes_of(batch) == batches._config.shapes()
        assert abs(batch["masked_weights"].sum() / (batch["segment_ids"] > 0).sum() - rate) < 0.03


@pytest.mark.parametrize("changes", [{"rate": 0.6}, {"rate": 0.2, "final_rate": 0.6}])
@pytest.mark.parametrize("rows", [CONFIG.rows, PACKED])
def test_unset_max_predictions_follows_the_highest_masking_rate(corpus, rows, changes):
    masking = dataclasses.replace(MASKING, max_predictions=None, **changes)
    batch = make_batches(corpus, masking=masking, rows=rows).training_batch(0, ALL)
    share = batch["masked_weights"].sum() / (batch["segment_ids"] > 0).sum()
    assert share == pytest.approx(changes["rate"], abs=0.04)


def test_predictions_must_have_room_for_the_masking_rate_of_evaluations(corpus):
    masking = dataclasses.replace(MASKING, rate=0.1, max_predictions=9, valid_rate=0.3)
    with pytest.raises(UserError, match=r"masking\.max_predictions: got 9; expected at least 10"):
        make_batches(corpus, masking=masking)


@pytest.mark.parametrize("packing", [False, True])
def test_validation_rows_do_not_depend_on_the_objectives_of_training(corpus, packing):
    """With `valid_rate` and `valid_single_segments`, masks and instances are those of a plain masked LM."""
    rows = dataclasses.replace(CONFIG.rows, packing=packing, valid_single_segments=True)
    plain = dataclasses.replace(CONFIG, pairs=ONE_SEGMENT, rows=dataclasses.replace(rows, valid_single_segments=False))
    expected = list(PretrainingBatches({"": corpus}, "valid", plain.valid).evaluation(ALL))
    for changes in ({"rate": 0.3}, {"rate": 0.4, "final_rate": 0.2}):
        masking = dataclasses.replace(MASKING, valid_rate=MASKING.rate, max_predictions=13, **changes)
        other = dataclasses.replace(CONFIG, pairs=PAIRS, rows=rows, masking=masking)
        made = list(PretrainingBatches({"": corpus}, "valid", other.valid).evaluation(ALL))
        for batch, alike in zip(made, expected, strict=True):
            for name in batch:
                assert (batch[name][:, : alike[name].shape[1]] == alike[name]).all()
                assert not batch[name][:, alike[name].shape[1] :].any()  # unpacked rows have max_predictions
        assert "cls_positions" in PretrainingBatches({"": corpus}, "train", other).training_batch(0, ALL)


@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
@pytest.mark.parametrize("masking", [MASKING, KEPT])
@pytest.mark.parametrize("template", [None, Template((2,), (3, 3), (3,), 1)])
def test_an_epoch_of_training_is_the_text_of_its_rows(corpus, pairs, masking, template):
    corpus = Corpus(corpus.folder, template)
    for rows in (CONFIG.rows, PACKED):
        batches = make_batches(corpus, pairs=pairs, masking=masking, rows=rows, batch_size=1)
        place = 0
        for epoch in range(2):
            count = steps_in(batches, epoch)
            epoch_batches = [batches.training_batch(place + i, ALL[:1]) for i in range(count)]
            assert actual_text(epoch_batches) == expected_text(corpus, "train", pairs, epoch)
            place += count


def test_only_text_is_predicted(corpus):
    tokenizer = corpus.tokenizer
    specials = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]
    for batch in itertools.islice(make_batches(corpus).training(0, ALL), 20):
        chosen = batch["masked_labels"][batch["masked_weights"] > 0]
        assert not np.isin(chosen, specials).any()
        assert (batch["masked_weights"].sum(axis=1) >= 1).all()
        length = (batch["segment_ids"] != 0).sum(axis=1)
        expected = np.minimum(np.maximum(np.rint(length * 0.15), 1), P)
        np.testing.assert_array_equal(batch["masked_weights"].sum(axis=1), expected)
        assert (batch["masked_positions"] < length[:, None]).all()


def test_whole_words_are_masked_with_the_pieces_of_the_vocabulary(corpus):
    whole = dataclasses.replace(MASKING, whole_word=True, mask_fraction=1.0, random_fraction=0.0, keep_fraction=0.0)
    tokenizer, pieces = corpus.tokenizer, 0
    for batch in itertools.islice(make_batches(corpus, masking=whole).training(0, ALL), 20):
        before, hidden = restored(batch), batch["input_ids"] == tokenizer.mask_id
        continues = tokenizer.is_continuation[before]
        # A piece is masked if and only if the piece before it is, unless that is a special token.
        after_special = np.isin(np.roll(before, 1, axis=1), [tokenizer.cls_id, tokenizer.sep_id])
        inside = continues & ~after_special
        np.testing.assert_array_equal(hidden[inside], np.roll(hidden, 1, axis=1)[inside])
        pieces += (hidden & inside).sum()
    assert pieces > 50


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_masks_are_repeated_only_in_static_epochs(corpus, mode):
    batches = make_batches(corpus, masking=dataclasses.replace(MASKING, mode=mode), batch_size=1)
    epochs, place = [], 0
    for epoch in range(3):
        count = steps_in(batches, epoch)
        epochs.append([batches.training_batch(place + i, ALL[:1])["input_ids"].tobytes() for i in range(count)])
        place += count
    assert set(epochs[0]).isdisjoint(epochs[1])
    if mode == "static":
        assert sorted(epochs[0]) == sorted(epochs[2])
        assert epochs[0] != epochs[2]
    else:
        assert len(set(epochs[0]) & set(epochs[2])) < len(epochs[0]) / 10


@pytest.mark.parametrize(("direction", "step"), [("left_to_right", 1), ("right_to_left", -1)])
@pytest.mark.parametrize("rows", [CONFIG.rows, PACKED])
def test_causal_language_modeling_predicts_every_neighbor(corpus, direction, step, rows):
    batches = make_batches(corpus, pairs=ONE_SEGMENT, objective="causal_lm", direction=direction, rows=rows)
    for number in range(4):
        batch = batches.training_batch(number, ALL)
        assert batch["masked_positions"].shape == (BATCH, S - 1)
        for each in instances_of(batch):
            length = len(each["masked"])
            expected = range(length - 1) if step == 1 else range(1, length)
            assert each["predicted"].tolist() == list(expected)
            np.testing.assert_array_equal(each["labels"], each["masked"][each["predicted"] + step])


@settings(max_examples=100)
@given(
    st.integers(8, 600),
    st.booleans(),
    st.sampled_from(["masked_lm", "causal_lm"]),
    st.floats(0.01, 1.0),
    st.integers(1, 100),
)
def test_every_instance_fits_into_a_packed_row(seq_len, next_sentence, objective, rate, most):
    config = dataclasses.replace(
        CONFIG,
        pairs=dataclasses.replace(PAIRS, seq_len=seq_len, next_sentence=next_sentence),
        masking=dataclasses.replace(MASKING, rate=rate, max_predictions=most),
        rows=PACKED,
        objective=objective,
    )
    capacity = config.capacity
    assert capacity.tokens == seq_len
    assert len(capacity.per_instance) == seq_len + 1
    assert 1 <= max(capacity.per_instance) <= capacity.predictions
    assert capacity.segments >= 1
