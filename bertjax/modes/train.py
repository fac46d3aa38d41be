"""`--mode=train`."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax import distributed
from bertjax.contract import Data, Task
from bertjax.modes import extension, init_from, report, text
from bertjax.modes.request import Outcome
from bertjax.modes.resolved import Resolved
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import latest_step
from bertjax.training import inference, loop, metric_log
from bertjax.training.config import TrainingConfig


def train(
    resolved: Resolved,
    workdir: Path,
    started: Mapping[str, Any],
    profile: range,
    render_page: Callable[[Path], Path] | None,
) -> Outcome:
    """Starts or resumes a run; after training, scores the test split and writes the page.

    Args:
      resolved: the experiment.
      workdir: the run's folder.
      started: see `Request`.
      profile: the updates to trace.
      render_page: writes the page of a folder and returns its path; None for no page.
    Raises:
      UserError: for an invalid config, text or folder.
    """
    data, checked = text.checked(resolved, workdir)
    loop.check(checked.task, checked.settings, checked.config)
    with run_folder.locked(workdir):
        distributed.on_first_process(lambda: resolved.check_folder(workdir))
        text.prepare(data, workdir, is_of_run=True)
        config, settings, task = resolved.complete(data.facts, data)
        settings.check_final()
        data = data.of_length(settings.num_steps)
        size = loop.num_parameters(task)
        distributed.on_first_process(lambda: _save_config(workdir, config))
        if record := resolved.record:
            distributed.on_first_process(lambda: init_from.save(workdir, record))
        distributed.on_first_process(lambda: run_folder.save_environment(workdir, {**started, "parameters": size}))
        distributed.on_first_process(lambda: data.facts.save(workdir))
        distributed.on_first_process(lambda: run_folder.save_rows(workdir, data.report()))
        if loop.train(task, data, settings, workdir, profile, _meter(resolved, data, settings)):
            return Outcome.STOPPED
        if settings.budget.hours:
            done = distributed.of_first_process(latest_step(workdir))
            config, settings = {**config, "num_steps": done}, dataclasses.replace(settings, num_steps=done)
            distributed.on_first_process(lambda: _save_config(workdir, config))
        _test(task, data, settings, workdir)
        if render_page:
            report.write_samples(workdir, lambda: (task, data, settings))
            report.write_page(workdir, render_page)
    return Outcome.DONE


def _meter(resolved: Resolved, data: Data, settings: TrainingConfig) -> Callable[[int], dict[str, float]] | None:
    """Measures what a run with a budget uses; None without a budget."""
    if settings.budget.limit is None:
        return None
    from bertjax.modes.budgets import Meter  # which takes time to import

    meter = Meter(resolved.counted(data.facts), data, settings.batch_size)
    return lambda done: {name: meter.used(name, done, settings.num_steps) for name in ("tokens", "flops")}


def _save_config(workdir: Path, config: Mapping[str, Any]) -> None:
    """Writes `config.json`. Raises UserError if the run in the folder has another config that this does not extend."""
    run_folder.save_config(workdir, config, extension.free_keys(workdir, config))


def _test(task: Task, data: Data, settings: TrainingConfig, workdir: Path) -> None:
    """Logs the metrics and baselines of the test split at the last step, if the split exists and is not scored yet."""
    if next(data.tested(), None):
        done = settings.num_steps
        with metric_log.MetricLog(workdir, settings, resumed=done) as log:
            if not log.has_scores(done, "test/"):
                scores = inference.Inference(task, settings, workdir, "final").test(data)
                log.write_scores(done, {**log.scores(0, "test/"), **scores} if scores else {})
