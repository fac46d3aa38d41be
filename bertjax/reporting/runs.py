"""What a run left in its folder, for those who draw it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's config and figures.

    Attributes:
      folder: where it is.
      config: its `config.json`.
      records: the lines of its `metrics.jsonl`, in order; each has a "step".
    """

    folder: Path
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def objective(self) -> str:
        """What its loss of predicted tokens is called: "masked_lm" or "causal_lm"."""
        return self.config.get("objective", "masked_lm")

    @property
    def num_steps(self) -> int:
        """The last step that was logged."""
        return max(int(record["step"]) for record in self.records)

    def series(self, name: str) -> list[tuple[int, float]]:
        """The figure of that name at each step that has it."""
        return [(int(record["step"]), record[name]) for record in self.records if name in record]

    def tokens_seen(self) -> list[tuple[int, float]]:
        """The tokens, padding aside, that the run was trained on up to each step, from its pace in each window.

        A window without a pace (the first, if it is one step long) counts as the one after it.
        """
        paced = [
            (int(record["step"]), record["train/tokens_per_second"] * record["train/step_seconds"])
            for record in self.records
            if "train/tokens_per_second" in record and "train/step_seconds" in record
        ]
        seen, before, total = [(0, 0.0)], 0, 0.0
        for step, tokens_per_step in paced:
            total += (step - before) * tokens_per_step
            before = step
            seen.append((step, total))
        return seen

    def last_figures(self) -> dict[str, tuple[int, float]]:
        """Each metric's last value, and the step it is of."""
        return {
            name: (int(record["step"]), value)
            for record in self.records
            for name, value in record.items()
            if name != "step"
        }


def read_run(folder: Path) -> Run:
    """Reads a run, which may be under way or have been killed: a last line that is not whole is left out.

    Raises:
      UserError: the folder is not a run's, has no figures yet, or has a line that was not written by a run.
    """
    log = folder / "metrics.jsonl"
    if not (folder / "config.json").exists() or not log.exists():
        raise UserError(
            f"run {folder}",
            got="no config.json with metrics.jsonl" if folder.exists() else "no such folder",
            expected="the folder of a run, --workdir of a training",
            fix="correct the path, or train first",
        )
    lines, records = log.read_text().splitlines(), []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines):  # the line that was being written
                continue
            raise UserError(
                f"{log}, line {number}",
                got=repr(line[:80]),
                expected='an object with a "step"',
                fix="delete the line",
            ) from None
        records.append(record)
    if not records:
        raise UserError(f"run {folder}", got="no figures yet", expected="at least one", fix="wait for the first step")
    return Run(folder, json.loads((folder / "config.json").read_text()), records)


def continued(run: Run) -> list[Run]:
    """The runs that `run` goes on from by `init_from`, the first of them first, and `run` itself at the end.

    Published weights, and runs that have been moved away since, are where the chain begins.
    """
    chain = [run]
    while chain[0].config.get("init_from"):
        before = Path(chain[0].config["init_from"])
        if not (before / "metrics.jsonl").exists() or any(before.resolve() == r.folder.resolve() for r in chain):
            break
        chain.insert(0, read_run(before))
    return chain
