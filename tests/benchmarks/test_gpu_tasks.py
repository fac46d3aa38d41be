import types

import jax
import numpy as np

from benchmarks import common, gpu_tasks


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
