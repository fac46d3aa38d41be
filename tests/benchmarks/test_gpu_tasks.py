import json
import types

import jax
import numpy as np

from benchmarks import common, gpu_tasks
from benchmarks.common import flops_per_token
from bertjax.configs import bertsum_abs, bertsum_ext, translation
from tests.test_configs import make


def task_of(config, **model):
    config.model.update(model)
    return make(json.loads(config.to_json()))[0]


def tokens(task, rows):
    """A batch of one token per row on each side."""
    return {name: np.zeros((rows, 1)[: len(spec.shape)], spec.dtype) for name, spec in task.batch_specs()[0].items()}


def test_operations_of_pairs_computed_by_hand():
    # A multiply-add is two operations, forward once and backward twice. One row of one token on each side.
    encoder = 4 * 2 * 2 + 2 * 2 * 8  # query, key, value, output; the feed-forward layer
    memory = 2 * 2 * 2  # keys and values for the decoder
    decoder = 6 * 2 * 2 + 2 * 2 * 8  # self-attention, query and output of cross-attention; feed-forward
    attention = (1 + 1 + 1) * 2 * 2  # three queries, of a key each; the product and the sum of values
    output = 2 * 8  # the size of the placeholder vocabulary
    expected = 6 * (encoder + memory + decoder + attention + output)
    layer = {"num_layers": 1, "hidden_size": 2, "num_heads": 1, "intermediate_size": 8}
    translator = task_of(translation.get_config("tiny"), **layer, num_decoder_layers=1)
    assert gpu_tasks.flops(translator, [tokens(translator, 1)]) == expected
    assert gpu_tasks.flops(translator, [tokens(translator, 7), tokens(translator, 1)]) == 8 * expected
    decoder = {"decoder_layers": 1, "decoder_intermediate": 16}
    summarizer = task_of(bertsum_abs.get_config("tiny"), **layer, **decoder, vocab_size=8)
    assert gpu_tasks.flops(summarizer, [tokens(summarizer, 1)]) == expected + 6 * 2 * 2 * 8


def test_operations_of_rows_are_those_of_bert_and_the_scorer():
    """The last of twelve layers runs only at [CLS] positions, except for its keys and values."""
    task = task_of(bertsum_ext.get_config("base,transformer"))
    batch = {name: np.zeros(spec.shape, spec.dtype) for name, spec in task.batch_specs()[-1].items()}
    bert = batch["input_ids"].size * flops_per_token(12, 768, 0, 512, 0.0)
    assert 11 / 12 * bert < gpu_tasks.flops(task, [batch]) < 0.97 * bert


def test_a_failed_case_has_a_row(tmp_path):
    case = next(gpu_tasks.cases(gpu_tasks.SMOKE, tmp_path))
    line = gpu_tasks.row({**case.fields, "error": "no source.txt"}, 1e12)
    assert line[:4] == ["translation tiny, training", "4", "target tokens", "no source.txt"]
    assert len(line) == len(gpu_tasks._HEADER)


def test_only_the_longest_rows_are_timed():
    specs = [{"input_ids": jax.ShapeDtypeStruct((64 // length, length), np.int32)} for length in (8, 32)]

    class Data:
        def batches(self, split, start, rows):
            return (
                {"input_ids": np.full((64 // length, length), number)} for number, length in enumerate((8, 32, 8, 32))
            )

    task = types.SimpleNamespace(batch_specs=lambda: specs)
    found = gpu_tasks.LongRows(common.Opened(task, Data(), None, None))
    assert found.spec == specs[1]
    assert [batch["input_ids"][0, 0] for batch in found.batches("train", 0, np.arange(2))] == [1, 3]
