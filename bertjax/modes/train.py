"""`--mode=train`."""

import dataclasses
import logging
from pathlib import Path

from bertjax import distributed
from bertjax.contract import ConfigTree, Data, TrainingTask
from bertjax.modes import lost_weights, report
from bertjax.modes.prepare import check_rows, checked_data, prepare_data, prepare_teacher
from bertjax.modes.request import Outcome, Request
from bertjax.modes.stages import Resolved
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import latest_step
from bertjax.training import inference, loop, metric_log, tracing
from bertjax.training.config import TrainingConfig

_log = logging.getLogger(__name__)


def train(resolved: Resolved, request: Request) -> Outcome:
    """Starts or resumes a run; after training, scores the test split and writes the page.

    Args:
      resolved: the experiment.
      request: the request; its `workdir` is the run's folder.
    Raises:
      UserError: for an invalid config, text or folder.
    """
    workdir = Path(request.workdir)
    profile = tracing.parse_steps(request.profile)
    data, complete = checked_data(resolved, workdir)
    with run_folder.locked(workdir):
        distributed.on_first_process(lambda: resolved.check_folder(workdir))
        prepare_data(data, workdir, is_of_run=True)
        config, settings, task, meter = complete or resolved.complete(data)
        settings.check_final()
        evaluations = resolved.evaluations(task)
        check_rows(evaluations)
        if meter and settings.num_steps:  # the batches may depend on it
            data = resolved._replace(config=config).data(workdir / "data")
        published = prepare_teacher(task, data, settings, workdir) or resolved.published
        size = loop.num_parameters(task)
        distributed.on_first_process(lambda: _save_config(resolved, workdir, config))
        if record := resolved.record:
            distributed.on_first_process(lambda: lost_weights.save_record(workdir, record))
        environment = {**request.started, "parameters": size}
        distributed.on_first_process(lambda: run_folder.save_environment(workdir, environment))
        distributed.on_first_process(lambda: data.vocabulary.save(workdir))
        distributed.on_first_process(lambda: run_folder.save_rows(workdir, data.report()))
        if loop.train(task, data, settings, workdir, profile, meter, published, evaluations):
            distributed.on_first_process(lambda: run_folder.save_usage(workdir, request.began))
            return Outcome.STOPPED
        done = distributed.of_first_process(latest_step(workdir))
        if settings.budget.hours:
            settings = dataclasses.replace(settings, num_steps=done)
            ended = {**config, "num_steps": done}
            distributed.on_first_process(lambda: _save_config(resolved, workdir, ended))
        _test(task, data, settings, done, workdir)
        distributed.on_first_process(lambda: _advise(workdir, config, settings))
        if request.report:
            report.write_samples(workdir, lambda: (task, data, settings))
        distributed.on_first_process(lambda: run_folder.save_usage(workdir, request.began))
        if request.report:
            report.write_page(workdir)
    return Outcome.DONE


def _save_config(resolved: Resolved, workdir: Path, config: ConfigTree) -> None:
    """Writes `config.json`. Raises UserError if the run in the folder has another config that this does not extend."""
    run_folder.save_config(workdir, config, resolved._replace(config=config).free_keys(workdir))


def _advise(workdir: Path, config: ConfigTree, settings: TrainingConfig) -> None:
    """Logs that a longer run may score better, if the main metric still improved in the last epoch."""
    metric = settings.checkpoint.best_metric
    mode = settings.checkpoint.best_mode
    if "num_epochs" in config and (values := metric_log.last_improvement(workdir, metric, mode)):
        message = "%s still improved at the end (%.3g, then %.3g): more epochs may help, as --config.num_epochs=%g"
        _log.info(message, metric, *values, 2 * config["num_epochs"])


def _test(task: TrainingTask, data: Data, settings: TrainingConfig, done: int, workdir: Path) -> None:
    """Logs the metrics and baselines of the test split at the last step, if the split exists and is not scored yet."""
    if next(data.test_examples(), None):
        with metric_log.MetricLog(workdir, settings, resumed=done) as log:
            if not log.has_scores(done, "test/"):
                scores = inference.Inference(task, settings, workdir, "final").test(data)
                log.write_scores(done, {**log.scores(0, "test/"), **scores} if scores else {})
