"""Outputs for any number and lengths of rows: in order, complete, and independent of the batch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.contract import Example, PredictionTask
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.training import inference, sharding
from bertjax.training.inference import Predictor

LENGTHS = bucket_lengths(40)  # 16, 24, 32, 40


class Model(PredictionTask):
    """A task whose outputs are a sum over the tokens, weighted by their positions, and the tokens themselves.

    Attributes:
      shapes: the shape of `input_ids` of each compiled program.
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


Model.__abstractmethods__ = frozenset()  # a predictor calls no other methods


def row(number, length):
    """A row with arrays of two lengths and a scalar. Its first token is its number."""
    return {
        "input_ids": np.arange(length, dtype=np.int32) + 100 * (number + 1),
        "segment_ids": np.ones(length, np.int32),
        "marks": np.full(min(3, length), number, np.int32),
        "number": np.array(number, np.int32),
    }


def examples_of(lengths, rows_each=(1,)):
    """Examples with the given numbers of rows, repeated; the source is the numbers of their rows."""
    numbers, counts = iter(range(len(lengths))), itertools.cycle(rows_each)
    while members := list(itertools.islice(numbers, next(counts))):
        yield Example([row(i, lengths[i]) for i in members], members)


def mesh(data=8, fsdp=1):
    return sharding.make_mesh(sharding.MeshConfig(data, fsdp, 8 // data // fsdp), jax.devices())


def predict(examples, where=None, model=None):
    return list(Predictor(model or Model(), where or mesh())(jnp.float32(0.5), examples))


def check_outputs(results, lengths):
    """Checks that outputs are in order and equal those of each row alone."""
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


def test_an_example_without_rows_has_no_outputs():
    results = predict([Example([row(0, 9)], [0]), Example([], []), Example([row(1, 5)], [1])])
    check_outputs(results, [9, 5])
    assert [len(outputs) for _, outputs in results] == [1, 0, 1]


def test_one_window_of_examples_is_read_at_a_time(monkeypatch):
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
    assert max(held) == 5  # each example has 20 tokens
    assert held[:6] == [5, 4, 3, 2, 1, 5]


def test_a_resumed_prediction_makes_the_same_batches(monkeypatch):
    monkeypatch.setattr(inference, "_WINDOW_TOKENS", 60)
    predictor, examples = Predictor(Model(), mesh()), list(examples_of([40, 5, 5, 5, 5, 5] * 4))
    whole = list(predictor(jnp.float32(0.5), examples))
    for done in range(len(examples) + 1):
        rest = list(predictor(jnp.float32(0.5), examples, done))
        assert [example.source for example, _ in rest] == [example.source for example, _ in whole[done:]]
        for (_, outputs), (_, before) in zip(rest, whole[done:], strict=True):
            # The zeros of padding are equal too, and their number depends on the batch.
            assert [output["ids"].tolist() for output in outputs] == [output["ids"].tolist() for output in before]


def test_examples_of_several_rows_one_of_them_larger_than_a_window(monkeypatch):
    monkeypatch.setattr(inference, "_WINDOW_TOKENS", 30)
    lengths = random_lengths(60)
    check_outputs(predict(examples_of(lengths, [10, 1, 4, 2])), lengths)


def test_few_shapes_are_compiled():
    # The rows of a batch are a power of two, at most 256 (4096 positions of length 16) and at least 8.
    model, places = Model(), 4096
    predictor = Predictor(model, mesh())
    for count in range(1, 400, 23):
        lengths = random_lengths(count, seed=count)
        check_outputs(list(predictor(jnp.float32(0.5), examples_of(lengths))), lengths)
    assert len(model.shapes) == len(set(model.shapes))
    for rows, length in model.shapes:
        assert length in LENGTHS
        assert rows >= 8 and rows & (rows - 1) == 0
        assert rows // 2 < places / length  # a power of two, so at most half of the batch is unused
    assert len(model.shapes) <= len(LENGTHS) * 6


@pytest.mark.parametrize("shape", [(8, 1), (2, 4), (1, 8), (1, 1)], ids=["data", "both", "fsdp", "whole"])
def test_exact_outputs_of_a_row_have_the_same_bits_among_any_others(monkeypatch, shape):
    monkeypatch.setattr(inference, "_EXACT_BATCHES", 4)
    model, examples = Model(), list(examples_of(random_lengths(300), [1, 2]))
    predictor = Predictor(model, mesh(*shape), exact=True)

    def outputs(chosen):
        results = predictor(jnp.float32(0.5), [examples[i] for i in chosen])
        return [[output["mean"].tobytes() for output in found] for _, found in results]

    expected, order = outputs(range(len(examples))), np.random.default_rng(0).permutation(len(examples))
    assert outputs(order) == [expected[i] for i in order]
    for size in (1, 7):
        assert [each for i in range(0, 70, size) for each in outputs(range(i, i + size))] == expected[:70]
    counts = {length: {rows for rows, found in model.shapes if found == length} for length in LENGTHS}
    least = mesh(*shape).shape["data"] * mesh(*shape).shape["fsdp"]
    assert counts == {
        length: {max(least, 1 << (inference._EXACT_PLACES["cpu"] // length).bit_length() - 1)} for length in LENGTHS
    }


def test_rows_of_similar_length_share_a_batch():
    model = Model()
    lengths = [40, 3] * 100
    check_outputs(predict(examples_of(lengths), model=model), lengths)
    # Two batches of the 64 longest rows, which include all 100 long rows; then the others, all short.
    assert model.shapes == [(64, 40), (128, 8)]
