"""Whether a configuration can learn at all: it must overfit one batch, within about a minute.

A model that cannot memorize the first batch of its training data, without dropout and at a constant learning rate,
has something wrong with it that no amount of training mends: a learning rate too high or too low, parameters that
are frozen, labels that do not follow from the inputs. (The overfitting test of Karpathy, "A recipe for training
neural networks", 2019.) The update is that of training, over the same mesh and micro-batches.
"""

import copy
import dataclasses
import itertools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from bertjax import distributed
from bertjax.contract import Data, Task
from bertjax.modes import text
from bertjax.modes.resolved import Resolved
from bertjax.training import loop
from bertjax.training.compilation import Compilations
from bertjax.training.config import TrainingConfig
from bertjax.training.health import NotFiniteError
from bertjax.training.loop import Trainer
from bertjax.training.metric_log import means

_log = logging.getLogger(__name__)

_UPDATES, _SECONDS, _WARMUP = 1000, 60, 10
# What counts as learned, of every figure on the batch: a loss at most this fraction of what it began at, or this low;
# an accuracy at least this high.
_LOSS_FRACTION, _LOW_LOSS, _ACCURACY = 0.1, 0.1, 0.9
_SOME_PROGRESS, _WORSE = 0.95, 1.1
_FEW = 30  # updates from which nothing can be told

Figures = Mapping[str, float]


def check(resolved: Resolved, workdir: Path) -> dict[str, Any]:
    """Prepares the text in `workdir` and returns the record of `overfit_one_batch`."""
    data, checked = text.checked(resolved, workdir)
    loop.check(checked.task, checked.settings, checked.config)
    text.prepare(data, workdir, is_of_run=False)
    complete = resolved.complete(data.facts)
    return overfit_one_batch(complete.task, data, complete.settings)


def overfit_one_batch(task: Task, data: Data, config: TrainingConfig) -> dict[str, Any]:
    """Trains on the first batch again and again, for 1,000 updates or a minute, or until it is learned.

    Dropout is off; the learning rate is constant at the config's, after at most 10 updates of warm-up. Begins from
    fresh parameters, or those of `init_from`; writes nothing.

    Returns:
      a record: `can_learn`, the `verdict` in words, `updates` and `seconds` (compilation aside), the figures on the
      batch at the `first` and the `last` update, and the `baselines`.
    """
    warmup = min(config.optimizer.warmup_steps, _WARMUP)
    optimizer = dataclasses.replace(config.optimizer, schedule="constant", warmup_steps=warmup)
    settings = dataclasses.replace(config, num_steps=_UPDATES, optimizer=optimizer)
    first: Figures = {}
    last, updates, seconds, problem, is_out_of_time = first, 0, 0.0, "", False
    with Compilations() as compiled:
        trainer = Trainer(_without_dropout(task), settings, jax.devices())
        began = time.monotonic()
        try:
            for update in trainer.updates(_of_one_batch(data), trainer.fresh(), compiled):
                trainer.settle(update.state)
                last, updates = means(update.report.metrics, "train"), update.done
                if not first:
                    first, began = last, time.monotonic()
                seconds = time.monotonic() - began
                is_out_of_time = bool(distributed.of_first_process(seconds > _SECONDS))  # clocks differ
                if not missed(first, last) or is_out_of_time:
                    break
        except NotFiniteError as error:
            problem = f"not finite: {error}"
    problem = problem or diagnosis(first, last, updates, is_out_of_time)
    baselines = dict(data.baselines())
    verdict = problem or "can learn: the batch is known by heart"
    _log.info("%s", verdict)
    for name in first:
        _log.info("%s: %.4g at first, %.4g after %d updates", name, first[name], last[name], updates)
    _log.info("beside them: %s", ", ".join(f"{name}={value:.4g}" for name, value in baselines.items()) or "nothing")
    return {
        "can_learn": not problem,
        "verdict": verdict,
        "updates": updates,
        "seconds": round(seconds, 1),
        "first": dict(first),
        "last": dict(last),
        "baselines": baselines,
    }


def missed(first: Figures, last: Figures) -> list[str]:
    """The figures that do not count as learned, in words."""
    found = []
    for name, value in last.items():
        goal = max(_LOSS_FRACTION * first[name], _LOW_LOSS)
        if name.endswith("accuracy") and not value >= _ACCURACY:
            found.append(f"{name} is {value:.3g}, not at least {_ACCURACY}")
        elif name.endswith("loss") and not value <= goal:
            found.append(f"{name} is {value:.3g}, not at most {goal:.3g}")
    return found


def diagnosis(first: Figures, last: Figures, updates: int, is_out_of_time: bool) -> str:
    """What looks wrong, from the figures of the first and the last update; empty if the batch was learned."""
    if not missed(first, last):
        return ""
    if is_out_of_time and updates < _FEW:
        return f"undecided: time for {updates} updates only; a smaller size or batch tells more"
    if last["train/loss"] > _WORSE * first["train/loss"]:
        return "exploding: the loss grows; lower optimizer.learning_rate or set optimizer.clip_norm"
    if last["train/loss"] > _SOME_PROGRESS * first["train/loss"]:
        reason = "no progress: the loss stays where it began; is optimizer.learning_rate too low, is all frozen, do "
        return reason + "the labels follow from the inputs?"
    why = "or give it a smaller batch: time ran out" if is_out_of_time else "or mend labels that contradict each other"
    return f"too little progress: {'; '.join(missed(first, last))}; raise optimizer.learning_rate, {why}"


def _of_one_batch(data: Data) -> Data:
    """The data, with their first batch for all."""
    fixed = copy.copy(data)
    vars(fixed)["batches"] = lambda split, start, rows: itertools.repeat(next(iter(data.batches(split, 0, rows))))
    return fixed


def _without_dropout(task: Task) -> Task:
    fixed = copy.copy(task)
    vars(fixed)["loss"] = lambda params, batch, rng: task.loss(params, batch, None)
    return fixed
