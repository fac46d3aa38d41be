import numpy as np
import pytest

from benchmarks import common, gpu


@pytest.fixture
def runner(tmp_path, monkeypatch):
    def batches(shape, *_):
        rows = np.array([[1, 1, 0, 0]] * shape.rows)
        return [{"input_ids": rows, "segment_ids": rows}]

    monkeypatch.setattr(common, "real_batches", batches)
    return gpu.Runner(tmp_path, "documentation", 100, timing=0.0)


class Step:
    """A step that raises an error, if any, and keeps the batches that it is given."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.batches = error, []

    def __call__(self, times: int) -> None:
        if self.error:
            raise self.error

    def use(self, batches) -> None:
        self.batches = batches


def case(rows: int) -> gpu.Case:
    return gpu.Case("ours", "tiny", 4, rows, {})


def no_wait() -> None:
    pass


def test_half_the_rows_are_timed_if_all_do_not_fit(runner, monkeypatch):
    steps = []

    def step(_, shape, *args):
        steps.append(Step(RuntimeError("RESOURCE_EXHAUSTED: 200 GB") if shape.rows > 8 else None))
        return steps[-1], 2.0

    monkeypatch.setattr(gpu.Runner, "_step", lambda self, *args: step(*args))
    result = runner.run(case(32), no_wait)
    assert result["batch_size"] == 8
    assert result["real_tokens_per_second"] == pytest.approx(result["tokens_per_second"] / 2)
    assert result["full_rows_seconds"] > 0 and (steps[-1].batches[0]["segment_ids"] == np.ones((8, 4))).all()
    assert runner.run(case(64), no_wait) == {"error": "out of memory with 16 rows"}
