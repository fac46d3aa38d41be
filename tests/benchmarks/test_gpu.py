from pathlib import Path

import pytest

from benchmarks import common, gpu

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "real_batches", lambda shape, *_: [{"segment_ids": [[1, 1, 0, 0]] * shape.rows}])
    return gpu.Runner(tmp_path, "documentation", 100, timing=0.0)


def step_of(error: Exception | None):
    def step(times: int) -> None:
        if error:
            raise error

    return step


def case(rows: int) -> gpu.Case:
    return gpu.Case("ours", "tiny", 4, rows, {})


def no_wait() -> None:
    pass


def test_half_the_rows_are_timed_if_all_do_not_fit(runner, monkeypatch):
    def step(_, shape, *args):
        return step_of(RuntimeError("RESOURCE_EXHAUSTED: 200 GB") if shape.rows > 8 else None), 2.0

    monkeypatch.setattr(gpu.Runner, "_step", lambda self, *args: step(*args))
    result = runner.run(case(32), no_wait)
    assert result["batch_size"] == 8
    assert result["real_tokens_per_second"] == pytest.approx(result["tokens_per_second"] / 2)
    assert runner.run(case(64), no_wait) == {"error": "out of memory with 16 rows"}


def test_an_error_ends_only_its_case(runner, monkeypatch):
    error = RuntimeError("\nno cuDNN\nTraceback ...")
    monkeypatch.setattr(gpu.Runner, "_step", lambda self, *args: (step_of(error), 2.0))
    assert runner.run(case(32), no_wait)["error"] == "no cuDNN Traceback ..."
