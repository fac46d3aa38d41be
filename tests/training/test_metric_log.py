"""The metrics of the updates between two lines of the log, and these lines."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training import log_lines, metric_log
from bertjax.training.compilation import Compilations
from bertjax.training.metric_log import Window
from bertjax.training.step import StepReport


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def perf_counter(self):
        return self.seconds


class NoLedger:
    def add_waits(self, data_wait, compile_wait):
        pass


ONE = np.float32(1)


def report(one=ONE):
    return StepReport(metrics={"loss": (one, one), "tokens": (8 * one, one)}, gradient_norm=one, **REST)


REST = dict.fromkeys(set(StepReport._fields) - {"metrics", "gradient_norm"})


@pytest.mark.parametrize(
    ("values", "mode", "found"),
    [
        ([0.1, 0.18, 0.26], "max", (0.18, 0.26)),
        ([0.1, 0.26, 0.261], "max", None),
        ([0.3, 0.1, 0.26], "max", None),
        ([3.0, 2.0], "min", (3.0, 2.0)),
        ([3.0, 2.0], "max", None),
        ([0.5], "max", None),
        ([], "max", None),
    ],
)
def test_the_last_improvement_of_a_metric(tmp_path, values, mode, found):
    """The value before training does not count."""
    records = [{"step": 0, "valid/f1": 0.5 * (mode == "min")}, *({"step": 5, "valid/f1": value} for value in values)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert metric_log.last_improvement(tmp_path, "valid/f1", mode) == found


def test_the_time_of_a_step_excludes_compilation(monkeypatch):
    """That of the step, of sums of metrics, and of the schedule, which only the log needs."""
    clock = Clock()
    monkeypatch.setattr(metric_log, "time", clock)

    def slow_schedule(step):
        clock.seconds += 100
        return 1e-4

    window = Window(slow_schedule, NoLedger())
    for compile_wait in (50, 7, 0) * 2:
        clock.seconds += 2 + compile_wait
        window.add(report(), data_wait=0.5, compile_wait=compile_wait)
        if not compile_wait:
            assert window.close(3)["train/step_seconds"] == pytest.approx(2)


def test_sums_of_metrics_are_compiled_before_steps_are_timed():
    window, odd = Window(lambda step: 0.0, NoLedger()), jnp.ones((3, 7, 11))  # a shape that no other test adds
    window.add(report(odd), 0, 0)
    with Compilations() as compiled:
        window.add(report(odd), 0, 0)
    assert not compiled.programs


def test_the_line_of_an_update_has_the_main_metrics():
    metrics = {"train/masked_lm_loss": 6.4, "train/loss": 7.13, "train/masked_lm_accuracy": 0.0497}
    metrics |= {"train/learning_rate": 2.95e-4, "train/gradient_norm": 1.2, "train/tokens_per_second": 11952.0}
    line = log_lines.update(60, 90, metrics, 3725.0)
    assert line == "step 60/90  loss 7.13  masked_lm_accuracy 0.0497  lr 0.000295  12.0k tokens/s  1:02:05 left"
    first = log_lines.update(1, 90, {"train/loss": 7.0, "train/learning_rate": 0.0}, None)
    assert first == "step 1/90  loss 7  lr 0"


@pytest.mark.parametrize(
    ("scores", "baselines", "best", "line"),
    [
        (
            {"valid/masked_lm_loss": 6.405, "valid/next_sentence_loss": 0.681},
            {"valid/masked_lm_unigram_loss": 6.24},
            "valid/masked_lm_loss",
            "valid: masked_lm_loss 6.405 (unigram 6.24)  next_sentence_loss 0.681",
        ),
        (
            {"test/loss": 2.5, "test/lead_rouge1": 40.0, "test/rouge1": 41.5, "test/rouge1_low": 41.0},
            {"test/lead_rouge1": 40.0, "test/oracle_rouge1": 52.0},
            "valid/rouge1",
            "test: rouge1 41.5 (lead 40, oracle 52)  loss 2.5",
        ),
        (
            {"valid/exact": 50.0, "valid/f1": 60.0, "valid/best_f1": 61.0},
            {"valid/no_answer_f1": 33.0},
            "",
            "valid: exact 50  f1 60 (no answer 33)  best_f1 61",
        ),
        ({f"valid/metric{i}": float(i) for i in range(9)}, {}, "valid/metric8", "valid: metric8 8  metric0 0"),
    ],
)
def test_the_line_of_an_evaluation_compares_with_baselines(scores, baselines, best, line):
    found = log_lines.evaluation(60, 90, scores, baselines, best)
    assert found.startswith(f"step 60/90  {line}")
    assert found.count("  ") <= 5
