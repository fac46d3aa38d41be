"""Outputs for rows of any number and length: in order, none dropped or doubled, whatever they are batched with."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.contract import Example, Task
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.training import inference, sharding
from bertjax.training.inference import Predictor

LENGTHS = bucket_lengths(40)  # 16, 24, 32, 40


class Model(Task):
    """What a predictor asks of a task: a sum over the tokens, each in its context, and the tokens themselves.

    Attributes:
      shapes: of `input_ids`, one for each program that was compiled.
    """

    def __init__(self):
        self.shapes = []

    def predict_lengths(self):
        return LENGTHS

    def infer(self, params, batch):
        self.shapes.append(batch["input_ids"].shape)
        inside = batch["segment_ids"] != 0
        tokens = jnp.where(inside, jnp.sin(batch["input_ids"] * params), 0.0)
        mean = jnp.sum(tokens, axis=1) / jnp.sum(inside, axis=1)
        return {"mean": mean, "ids": batch["input_ids"], "marks": batch["marks"], "number": batch["number"]}


Model.__abstractmethods__ = frozenset()  # a predictor calls no others


def row(number, length):
    """A row with arrays of two lengths and a scalar, told by its first token."""
    return {
        "input_ids": np.arange(length, dtype=np.int32) + 100 * (number + 1),
        "segment_ids": np.ones(length, np.int32),
        "marks": np.full(min(3, length), number, np.int32),
        "number": np.array(number, np.int32),
    }


def examples_of(lengths, rows_each=(1,)):
    """Examples of so many rows, over and over; the source is the numbers of their rows."""
    numbers, counts = iter(range(len(lengths))), itertools.cycle(rows_each)
    while members := list(itertools.islice(numbers, next(counts))):
        yield Example([row(i, lengths[i]) for i in members], members)


def mesh(data=8, fsdp=1):
    return sharding.make_mesh(sharding.MeshConfig(data, fsdp, 8 // data // fsdp), jax.devices())


def predict(examples, where=None, model=None):
    return list(Predictor(model or Model(), where or mesh())(jnp.float32(0.5), examples))


def check_outputs(results, lengths):
    """Checks that each row has the output that it has alone, in order."""
    numbers = [number for example, _ in results for number in example.source]
    assert numbers == list(range(len(lengths)))
    for example, outputs in results:
        assert len(outputs) == len(example.rows)
        for inputs, output in zip(example.rows, outputs, strict=True):
            ids = inputs["input_ids"]
            assert output["number"] == inputs["number"]
            np.testing.assert_array_equal(output["ids"], np.pad(ids, (0, len(output["ids"]) - len(ids))))
            assert len(output["ids"]) in LENGTHS
            np.testing.assert_array_equal(output["marks"][: len(inputs["marks"])], inputs["marks"])
            np.testing.assert_allclose(output["mean"], np.sin(ids * 0.5).mean(), atol=1e-5)


def random_lengths(count, seed=0):
    return np.random.default_rng(seed).integers(2, 41, count).tolist()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 300])
@pytest.mark.parametrize("shape", [(8, 1), (2, 4), (1, 1)], ids=["data", "fsdp", "whole"])
def test_any_number_of_rows_on_any_mesh(count, shape):
    lengths = random_lengths(count)
    check_outputs(predict(examples_of(lengths), mesh(*shape)), lengths)


def test_a_batch_of_a_number_of_rows_that_devices_do_not_divide():
    # 4096 places hold 102 rows of 40, of which a power of two is taken; 8 devices do not divide the 3 that are left.
    lengths = [40] * 67
    model = Model()
    check_outputs(predict(examples_of(lengths), model=model), lengths)
    assert model.shapes == [(64, 40), (8, 40)]


def test_examples_of_several_rows_keep_theirs_together():
    lengths = random_lengths(60)
    results = predict(examples_of(lengths, [1, 4, 2]))
    check_outputs(results, lengths)
    assert [len(outputs) for _, outputs in results][:4] == [1, 4, 2, 1]


def test_an_example_of_no_row_has_no_output():
    results = predict([Example([row(0, 9)], [0]), Example([], []), Example([row(1, 5)], [1])])
    check_outputs(results, [9, 5])
    assert [len(outputs) for _, outputs in results] == [1, 0, 1]


def test_examples_are_read_a_window_at_a_time(monkeypatch):
    monkeypatch.setattr(inference, "_WINDOW_TOKENS", 100)
    read, lengths = [], [10] * 35

    def reading():
        for example in examples_of(lengths, [2]):
            read.append(example)
            yield example

    results, held = [], []
    for result in Predictor(Model(), mesh())(jnp.float32(0.5), reading()):
        results.append(result)
        held.append(len(read) - len(results) + 1)
    check_outputs(results, lengths)
    assert max(held) == 5  # of 20 tokens each
    assert held[:6] == [5, 4, 3, 2, 1, 5]


def test_a_resumed_prediction_batches_the_remaining_rows_as_before(monkeypatch):
    monkeypatch.setattr(inference, "_WINDOW_TOKENS", 60)
    predictor, examples = Predictor(Model(), mesh()), list(examples_of([40, 5, 5, 5, 5, 5] * 4))
    whole = list(predictor(jnp.float32(0.5), examples))
    for done in range(len(examples) + 1):
        rest = list(predictor(jnp.float32(0.5), examples, done))
        assert [example.source for example, _ in rest] == [example.source for example, _ in whole[done:]]
        for (_, outputs), (_, before) in zip(rest, whole[done:], strict=True):
            # As many zeros of padding, too: they depend on the batch.
            assert [output["ids"].tolist() for output in outputs] == [output["ids"].tolist() for output in before]


def test_an_example_longer_than_a_window_is_one(monkeypatch):
    monkeypatch.setattr(inference, "_WINDOW_TOKENS", 30)
    lengths = random_lengths(20)
    check_outputs(predict(examples_of(lengths, [10])), lengths)


def test_few_shapes_are_compiled():
    # Rows of a batch are a power of two of at most 256 (4096 places of 16), so that 8 to 256 are possible.
    model, places = Model(), 4096
    predictor = Predictor(model, mesh())
    for count in range(1, 400, 23):
        lengths = random_lengths(count, seed=count)
        check_outputs(list(predictor(jnp.float32(0.5), examples_of(lengths))), lengths)
    assert len(model.shapes) == len(set(model.shapes))
    for rows, length in model.shapes:
        assert length in LENGTHS
        assert rows >= 8 and rows & (rows - 1) == 0
        assert rows // 2 < places / length  # as few as the power of two allows
    assert len(model.shapes) <= len(LENGTHS) * 6


def test_rows_of_one_length_go_together():
    model = Model()
    lengths = [40, 3] * 100
    check_outputs(predict(examples_of(lengths), model=model), lengths)
    # The longest 64 first, twice, 100 of them long; then what is left, all short.
    assert model.shapes == [(64, 40), (128, 8)]


def test_the_same_numbers_whatever_the_batch():
    lengths = random_lengths(40)
    examples = list(examples_of(lengths))
    together = {example.source[0]: outputs[0]["mean"] for example, outputs in predict(examples)}
    for chosen in (examples[::-1], examples[5:6], examples[::7]):
        for example, outputs in predict(chosen):
            np.testing.assert_allclose(outputs[0]["mean"], together[example.source[0]], atol=1e-5)


def test_a_row_that_is_too_long_is_a_bug_and_is_not_cut():
    with pytest.raises(StopIteration):
        Predictor(Model(), mesh())._fitting(41)
