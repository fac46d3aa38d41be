"""`--mode=evaluate`."""

import hashlib
import json
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from bertjax.contract import Data, MiningTask, Record, TrainingTask
from bertjax.modes import config_values, predictions, samples
from bertjax.modes.prepare import prepare_data
from bertjax.modes.request import SOURCES
from bertjax.modes.stages import Resolved
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import find_steps
from bertjax.training import inference

_ROWS = 40  # of the table
_OF_ONE = ("_low", "_high", "_p")  # suffixes of intervals and p-values, whose means over checkpoints mean nothing


def evaluate(
    resolved: Resolved,
    run: Path | None,
    checkpoint: str,
    sources: Mapping[str, str],
    overridden: Collection[str],
    predictions_of: dict[str, list[Record]] | None = None,
) -> Record:
    """Returns the metrics of a run, or of the weights in `init_from`, and what they depend on.

    This is "protocol", if the task has one, and "decoding", the settings of a task that generates texts.

    Without `sources`, a run is scored on its own validation and test splits. With `sources`, all of their rows are
    scored, and the training data are not read.

    Args:
      resolved: the experiment.
      run: the run's folder; None for the weights in `init_from`.
      checkpoint: a checkpoint, or "each:" and several.
      sources: files to score a run on, by key; see `request.SOURCES`.
      overridden: the config keys that the command line sets.
      predictions_of: filled with the predictions of the examples of each split, for a page; None to make none.
    Raises:
      UserError: for an invalid config, bad rows, or a missing checkpoint.
    """
    decodes = getattr(resolved.module.Task, "decodes", False)
    record: dict[str, float | Record] = {"decoding": resolved.config["decoding"]} if decodes else {}
    if run and not sources:
        data = resolved.data(run / "data")
        prepare_data(data, run, is_of_run=True)
        return {**_evaluated(resolved, data, run, checkpoint, "valid", predictions_of), **record}
    if run is None:
        sources = {key: path for key in SOURCES if (path := resolved.config["data"].get(key))}
    config = config_values.without_limits(resolved.config, overridden)
    fingerprints: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for split, split_config in config_values.splits_to_score(config, sources, reads_training=run is None):
            split_experiment = resolved._replace(config=split_config)
            data = _scored(split_experiment, run, Path(temporary))
            metrics = _evaluated(split_experiment, data, run, checkpoint, split, predictions_of)
            record |= {name.replace("valid/", f"{split}/", 1): value for name, value in metrics.items()}
            task = split_experiment.to_score(data).task
            if isinstance(task, MiningTask):
                fingerprints[split] = data.fingerprint
                record["protocol"] = _protocol(task.protocol, Path(resolved.config["init_from"]), fingerprints)
    return record


def _protocol(of_task: Record, weights: Path, fingerprints: Mapping[str, str]) -> Record:
    """Everything that metrics of published weights depend on."""
    paths = {"init_from": weights, "reranker": of_task.get("reranker")}
    digests = {
        key: sorted(digest for _, digest in predictions.weights_digest(Path(path)))
        for key, path in paths.items()
        if path
    }
    of_weights = {key: hashlib.sha256(json.dumps(files).encode()).hexdigest() for key, files in digests.items()}
    commit = run_folder.source_commit(Path(__file__))
    return {
        **of_task,
        "batch_tokens": inference._BATCH_PLACES,
        "fingerprints": {**fingerprints, **of_weights},
        "devices": run_folder.devices(),
        "packages": run_folder.packages(),
        **({"commit": commit} if commit else {}),
    }


def _scored(resolved: Resolved, run: Path | None, temporary: Path) -> Data:
    """The rows to score, encoded with the vocabulary of a run or of `init_from`.

    Args:
      resolved: the experiment.
      run: the run's folder; None for the weights in `init_from`, whose folder is not written to.
      temporary: a folder for prepared rows if there is no run.
    """
    data_config = resolved.config["data"]
    folder = run or (temporary if data_config.get("source") else Path(resolved.config["init_from"]))
    if run is None and not data_config.get("prepared_dir", "-"):
        data_config = {**data_config, "prepared_dir": str(temporary)}
        resolved = resolved._replace(config={**resolved.config, "data": data_config})
    data = resolved.data(folder)
    if not data.is_prepared:
        if resolved.config["data"].get("prepared_dir") == str(temporary):
            data.prepare()  # every process has a temporary folder of its own
        else:
            prepare_data(data, folder, is_of_run=False)
    return data


def _evaluated(
    resolved: Resolved,
    data: Data,
    run: Path | None,
    checkpoint: str,
    split: str,
    predictions_of: dict[str, list[Record]] | None,
) -> dict[str, float]:
    """The metrics of a checkpoint, or means over several checkpoints, without intervals and p-values.

    PreSumm reports such means over its three best checkpoints.
    """
    _, settings, task, _ = resolved.to_score(data)
    kind, _, several = checkpoint.partition(":")
    names = list(map(str, find_steps(run, several))) if run and kind == "each" else [checkpoint]
    evaluations = resolved.evaluations(task) if isinstance(task, TrainingTask) else []
    records = []
    for name in names:
        model = inference.Inference(task, settings, run, name, resolved.published)
        records.append(model.evaluate(data, evaluations))
        if predictions_of is not None and isinstance(task, TrainingTask):
            predictions_of[split] = samples.predictions(model, data)  # of several checkpoints, the last
    if len(records) == 1:
        return records[0]
    averaged = [name for name in records[0] if not name.endswith(_OF_ONE)]
    return {name: sum(record[name] for record in records) / len(records) for name in averaged}


def table(record: Record) -> str:
    """Returns a table of the metrics of a record, with a column for each split and intervals in brackets.

    >>> print(table({"valid/f1": 0.75, "valid/f1_low": 0.71, "valid/f1_high": 0.79, "test/f1": 0.8}), end="")
        valid              test
    f1  0.75 [0.71, 0.79]  0.8
    """
    metrics = {name: value for name, value in record.items() if not isinstance(value, Mapping)}
    splits = list(dict.fromkeys(name.partition("/")[0] for name in metrics))
    names = list(dict.fromkeys(name.partition("/")[2] for name in metrics))
    ends = {f"{name}_{end}" for name in names for end in ("low", "high")}
    rows = [[name, *(_cell(metrics, f"{split}/{name}") for split in splits)] for name in names if name not in ends]
    table_rows = [["", *splits], *rows[:_ROWS]]
    widths = [max(map(len, column)) for column in zip(*table_rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in table_rows]
    more = len(rows) - _ROWS
    return "".join(lines) + (f"and {more} more metrics; --output=FILE writes all of them\n" if more > 0 else "")


def _cell(metrics: Mapping[str, float], name: str) -> str:
    """The value of a metric, with its interval if it has one."""
    low = metrics.get(f"{name}_low")
    high = metrics.get(f"{name}_high")
    interval = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    value = metrics.get(name)
    return "" if value is None else f"{value:.4g}{interval}" if abs(value) < 1000 else f"{value:,.0f}{interval}"
