"""Lengths of a run in epochs, as fine-tuning has them, to lengths in updates."""

from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError


def resolve(config: Mapping[str, Any], steps_per_epoch: int) -> dict[str, Any]:
    """Fills in what a config leaves open: `num_steps`, the warm-up, and when to evaluate and to save.

    These become `num_epochs`, the fraction `warmup_fraction` of that, and once an epoch.

    Raises:
      UserError: a run of no update, or a fraction that is none.
    """
    if config["num_epochs"] <= 0:
        raise UserError("config key num_epochs", got=config["num_epochs"], expected="above 0", fix="raise it")
    if not 0 <= config["warmup_fraction"] <= 1:
        got = config["warmup_fraction"]
        raise UserError("config key warmup_fraction", got=got, expected="0 to 1", fix="use 0.1, as BERT does")
    num_steps = config["num_steps"] or max(1, round(config["num_epochs"] * steps_per_epoch))
    optimizer, checkpoint = dict(config["optimizer"]), dict(config["checkpoint"])
    if optimizer["warmup_steps"] is None:
        optimizer["warmup_steps"] = round(config["warmup_fraction"] * num_steps)
    evaluate_every = config["evaluate_every"] or min(steps_per_epoch, num_steps)
    checkpoint["save_every"] = checkpoint["save_every"] or evaluate_every
    return {
        **config,
        "num_steps": num_steps,
        "evaluate_every": evaluate_every,
        "optimizer": optimizer,
        "checkpoint": checkpoint,
    }
