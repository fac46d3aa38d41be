"""`--mode=check`: tests within about a minute whether a config can overfit one batch.

If a model cannot overfit the first batch of its training data, without dropout and at a constant learning rate, its
config has an error: the learning rate is too high or too low, parameters are frozen, or the labels do not depend on the
inputs. See Karpathy, "A recipe for training neural networks", 2019. The update is that of training, on the same mesh
and with the same micro-batches.
"""

import copy
import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from bertjax import distributed
from bertjax.contract import Batch, Data, Record, RowIndices, TaughtTask, TrainingTask
from bertjax.interop.published import Published
from bertjax.modes.prepare import prepare, prepare_teacher
from bertjax.modes.stages import Resolved
from bertjax.progress import pace, track
from bertjax.training.compilation import Compilations
from bertjax.training.config import TrainingConfig
from bertjax.training.health import NotFiniteError
from bertjax.training.metric_log import means
from bertjax.training.trainer import Trainer

_log = logging.getLogger(__name__)

_UPDATES = 1000
_SECONDS = 60
_WARMUP = 10
# A metric is learned if it is a loss below this fraction of its first value or below `_LOW_LOSS`, or an accuracy of at
# least `_ACCURACY`.
_LOSS_FRACTION = 0.1
_LOW_LOSS = 0.1
_ACCURACY = 0.9
_SOME_PROGRESS = 0.95
_WORSE = 1.1
_FEW = 30  # updates that are too few for a verdict

Values = Mapping[str, float]


def check(resolved: Resolved, workdir: Path) -> Record:
    """Prepares the data in `workdir` and returns the record of `overfit_one_batch`."""
    data, complete = prepare(resolved, workdir)
    published = prepare_teacher(complete.task, data, complete.settings, workdir) or resolved.published
    return overfit_one_batch(complete.task, data, complete.settings, published)


def overfit_one_batch(
    task: TrainingTask, data: Data, config: TrainingConfig, published: Published | None = None
) -> Record:
    """Trains repeatedly on the first batch, until the model overfits it, or for 1,000 updates or a minute.

    Dropout is off. The learning rate is that of the config, constant after at most 10 updates of warm-up. Training
    starts from `init_from` or from random parameters. No file is written.

    Returns:
      a record with `can_learn`, the `verdict` as text, the number of `updates`, the `seconds` without compilation, the
      metrics of the batch at the `first` and the `last` update, and the `baselines`.
    """

    def repeated(split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        return itertools.repeat(next(iter(data.batches(split, 0, rows))))

    task = copy.copy(task)
    task.uses_dropout = False
    warmup = min(config.optimizer.warmup_steps, _WARMUP)
    optimizer = dataclasses.replace(config.optimizer, schedule="constant", warmup_steps=warmup)
    settings = dataclasses.replace(config, num_steps=_UPDATES, optimizer=optimizer)
    first: Values = {}
    last = first
    updates = 0
    seconds = 0.0
    problem = ""
    is_out_of_time = False
    with Compilations() as compiled:
        trainer = Trainer(task, settings, jax.devices(), published)
        began = time.monotonic()
        try:
            repetitions = trainer.updates(repeated, trainer.fresh(), compiled)
            for update in track(repetitions, "training", "step", _UPDATES, pace(_UPDATES, lambda: compiled.seconds)):
                trainer.settle(update.state)
                last = means(update.report.metrics, "train")
                if isinstance(task, TaughtTask) and not task.learns_labels:  # heads that nothing trains are not judged
                    last = {name: last[name] for name in last if name == "train/loss" or "distillation" in name}
                updates = update.done
                if not first:
                    first = last
                    began = time.monotonic()
                seconds = time.monotonic() - began
                is_out_of_time = bool(distributed.of_first_process(seconds > _SECONDS))  # clocks differ
                if not missed(first, last) or is_out_of_time:
                    break
        except NotFiniteError as error:
            problem = f"not finite: {error}"
    problem = problem or diagnosis(first, last, updates, is_out_of_time)
    baselines = dict(data.baselines())
    verdict = problem or "can learn: the model overfits one batch"
    _log.info("%s", verdict)
    for name in first:
        _log.info("%s: %.4g at the first update, %.4g after %d updates", name, first[name], last[name], updates)
    for name, value in baselines.items():
        _log.info("baseline %s: %.4g", name, value)
    record = {"can_learn": not problem, "verdict": verdict, "updates": updates, "seconds": round(seconds, 1)}
    return {**record, "first": dict(first), "last": dict(last), "baselines": baselines}


def missed(first: Values, last: Values) -> list[str]:
    """Returns a description of each metric that is not learned."""
    failures = []
    for name, value in last.items():
        goal = max(_LOSS_FRACTION * first[name], _LOW_LOSS)
        if name.endswith("accuracy") and not value >= _ACCURACY:
            failures.append(f"{name} is {value:.3g}, not at least {_ACCURACY}")
        elif name.endswith("loss") and not value <= goal:
            failures.append(f"{name} is {value:.3g}, not at most {goal:.3g}")
    return failures


def diagnosis(first: Values, last: Values, updates: int, is_out_of_time: bool) -> str:
    """Returns the probable error, from the metrics of the first and last update; "" if the model overfits the batch."""
    if not missed(first, last):
        return ""
    if is_out_of_time and updates < _FEW:
        return f"undecided: the time limit allowed only {updates} updates; use a smaller model or batch"
    if last["train/loss"] > _WORSE * first["train/loss"]:
        return "exploding: the loss increases; lower optimizer.learning_rate or set optimizer.clip_norm"
    if last["train/loss"] > _SOME_PROGRESS * first["train/loss"]:
        return (
            "no progress: the loss does not decrease; check whether optimizer.learning_rate is too low, all parameters "
            "are frozen, or the labels do not depend on the inputs"
        )
    other = "use a smaller batch, because time ran out" if is_out_of_time else "correct contradictory labels"
    return f"too little progress: {'; '.join(missed(first, last))}; raise optimizer.learning_rate, or {other}"
