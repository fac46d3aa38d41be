"""The run's folder: lock, config, environment, text fingerprint, and the keys that may change on resumption."""

import contextlib
import functools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util

from bertjax import distributed, files
from bertjax.errors import UserError
from bertjax.files import completed, parse_json
from bertjax.runs.checkpoints import has_checkpoint

# Keys that may change when a run resumes, because they do not change the updates.
_MAY_CHANGE = (
    "log_every",
    "evaluate_every",
    "evaluate_patience",
    "num_epochs",  # num_steps and warmup_steps, which follow from these two, are compared
    "warmup_fraction",
    "mesh",
    "checkpoint",
    "model.attention_backend",
    "model.family",
    "model.remat",
    "model.scan_layers",
    "data.workers",
    "data.prepared_dir",
    "data.beam",
    "selection.min_words",
    *("evaluations", "retrieval", "minimal_pairs", "causal_pairs", "likelihood", "word_likelihood"),
    "data.valid_seed",
    "data.max_removed",
)
# Keys added later whose defaults are not off, or which configs may leave unset, with the values of runs without them.
_ADDED_LATER = {
    "optimizer.decay_fraction": 0.2,
    "optimizer.muon_beta": 0.95,
    "optimizer.muon_ns_steps": 5,
    "model.positions": "learned",
    "model.pooler_activation": "tanh",
    "model.rotary_base": 10_000.0,
    "model.local_rotary_base": 10_000.0,
    "model.relative_positions": "none",
    "model.relative_buckets": 32,
    "model.relative_distance": 128,
    "model.relative_terms": "both",
    "model.convolution_activation": "gelu",
    "model.local_attention": 0,
    "model.global_every": 3,
    "model.gated": False,
    "model.qk_norm": False,
    "model.biases": True,
    "model.unbiased": "none",
    "model.norm_type": "layer",
    "model.norm_biases": True,
    "model.embedding_size": 0,
    "model.embedding_norm": True,
    "model.first_attention_norm": True,
    "model.tie_output": True,
    "model.head": "pooler",
    "model.pooling": "cls",
    "model.num_key_value_heads": 0,
    "model.masked_lm_head": "transform",
    "model.scale_scores": True,
    "data.splitter": "punkt",
    "data.duplicates": "keep",
    "data.duplicate_similarity": 0.8,
    "data.evaluation_containment": 0.8,
    "data.max_repeated_lines": 1.0,
    "data.tokenizer": "wordpiece",
    "data.normalization": "bert",
    "data.character_coverage": 0.0,
    "data.morphemes": "",
    "data.summary_as": "sentences",
    "data.oracle.units": "words",
    "data.label_separator": ",",
    "data.on_long_pair": "skip",
    "rouge.flavor": "rouge-1.5.5",
    "rouge.stem": True,
    "rouge.references": "average",
    "rouge.units": "words",
    "data.units": "words",
    "metric": "squad",
    "threshold": 0.5,
    "data.row_lengths": (),
    "masking.distribution": "constant",
    "masking.loss_weight": "none",
    "masking.predict_at": "same",
    "masking.causal_mean": "by_share",
}
# Those that an experiment always had.
_NOT_ADDED = {
    "translation": (
        *("model.positions", "model.tie_output", "model.embedding_norm"),
        *("data.normalization", "data.character_coverage"),
    ),
    "bertsum_ext": ("data.splitter",),
    "bertsum_abs": ("data.splitter",),
}
# Keys that once had a default. Now they follow from other keys or from the rows unless they are set.
_NOW_UNSET = (
    *("data.seq_len", "data.window_overlap", "data.row_lengths", "masking.max_predictions"),
    *("metrics", "checkpoint.best_metric"),
)
# Keys that a run keeps unless the command line sets them: of evaluations, which are None in runs that are older, and of
# trained vocabularies.
_KEPT = ("data.valid_seed", "data.normalization", "data.character_coverage")
_COMPARED_BY_CONTENT = (
    *(f"data.{split}{side}" for split in ("", "valid_", "test_") for side in ("source", "target")),
    "data.evaluation_texts",
)
_FINGERPRINT = "text_fingerprint"
# Packages that results may depend on.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "tokenizers")


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Locks a folder for training, if its file system supports locks.

    Deletes a new folder if a UserError ends the run before its config is saved or data are prepared.

    Raises:
      UserError: if another training holds the lock.
    """
    with contextlib.ExitStack() as held:
        distributed.on_first_process(lambda: _lock(workdir, held))
        yield


def _lock(workdir: Path, held: contextlib.ExitStack) -> None:
    """Locks a folder until `held` closes the lock file."""
    is_new = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    refusal = UserError(
        f"--workdir={workdir}",
        got="a folder that another training is using",
        expected="one training at a time",
        fix="wait for it, stop it, or choose another --workdir; to train with several processes, join them with "
        "--distributed=on and the address of process 0",
    )
    held.enter_context(files.locked(workdir / "lock", refusal))
    if is_new:
        held.push(functools.partial(_discard, workdir))


def _discard(workdir: Path, kind: type[BaseException] | None, *_: object) -> None:
    """Deletes a folder without a config or prepared data if a UserError leaves the block."""
    content = (workdir / "config.json").exists() or next(workdir.rglob("manifest.json"), None)  # of prepared data
    if kind and issubclass(kind, UserError) and not content:
        shutil.rmtree(workdir, ignore_errors=True)


def check_config(workdir: Path, config: Mapping[str, Any], open_keys: Collection[str] = ()) -> None:
    """Raises UserError with the keys that differ if a run with another config has begun in the folder.

    Paths of rows may differ, because `check_text` compares their content.

    Args:
      workdir: the folder.
      config: the config of the run to start or resume.
      open_keys: dotted keys whose values are not known yet; these are not compared.
    """
    if has_begun(workdir):
        flat = (traverse_util.flatten_dict(tree, sep=".") for tree in (load_config(workdir), config))
        free = {*open_keys, *(_COMPARED_BY_CONTENT if (workdir / _FINGERPRINT).exists() else ())}
        old, new = ({key: value for key, value in values.items() if key not in free} for values in flat)
        differing = differences(old, json.loads(json.dumps(new)))
        if differing:
            raise UserError(
                f"--workdir={workdir}",
                got="a run with another config: " + "; ".join(differing),
                expected="an empty folder, or a run with the same config to resume",
                fix="choose another --workdir, or use the config of the run in the folder",
            )


def lasting(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a config by dotted key, except those that may change when a run resumes.

    Keys added later are omitted if they are unset or have the value of runs without them.
    """
    values = traverse_util.flatten_dict(config, sep=".")
    added = _added_to(config)
    return {
        key: value
        for key, value in values.items()
        if not any((key + ".").startswith(free + ".") for free in _MAY_CHANGE)
        and not (key in added and value in (None, added[key]))
    }


def with_recorded(
    config: Mapping[str, Any], before: Mapping[str, Any], overridden: Collection[str] = ()
) -> dict[str, Any]:
    """Returns a config with the values of an earlier one, if any, for keys of `_KEPT` and unset ones of `_NOW_UNSET`.

    Args:
      config: the config.
      before: the earlier config; empty if there is none.
      overridden: the dotted keys that the command line sets, which win.
    """
    if not before:
        return dict(config)
    # True keeps empty subtrees.
    values, earlier = (traverse_util.flatten_dict(dict(tree), True, sep=".") for tree in (config, before))
    earlier = {**_ADDED_LATER, **earlier}
    recorded = {key: earlier[key] for key in _NOW_UNSET if values.get(key, "") is None and key in earlier}
    changeable = {*overridden, *_NOT_ADDED.get(str(config.get("experiment")), ())}
    recorded |= {key: earlier.get(key) for key in _KEPT if key in values and key not in changeable}
    return dict(traverse_util.unflatten_dict({**values, **recorded}, sep=".")) if recorded else dict(config)


def without_off(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lasting values of a config without those that are off, unless another value is the default."""
    added = _added_to(config)
    return {key: value for key, value in lasting(config).items() if value or value is None or added.get(key)}


def _added_to(config: Mapping[str, Any]) -> dict[str, Any]:
    always = _NOT_ADDED.get(str(config.get("experiment")), ())
    return {key: value for key, value in _ADDED_LATER.items() if key not in always}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns descriptions of the differences between the lasting values of two configs.

    A key that one config lacks was added after that run. It counts as equal to its value in `_ADDED_LATER`, or else to
    a value that is off (False, 0, "", ()).
    """
    one = lasting(old)
    two = lasting(new)
    off = {key for key in one.keys() ^ two.keys() if not (one.get(key) or two.get(key) or _ADDED_LATER.get(key))}
    return [
        f"{key}: {one.get(key, _ADDED_LATER.get(key))!r} before, {two.get(key, _ADDED_LATER.get(key))!r} now"
        for key in sorted((one.keys() | two.keys()) - off)
        if one.get(key) != two.get(key)
    ]


def save_config(workdir: Path, config: Mapping[str, Any], free_keys: Collection[str] = ()) -> None:
    """Writes `config.json`. Raises UserError as `check_config` does, except for the dotted keys in `free_keys`."""
    check_config(workdir, config, free_keys)
    workdir.mkdir(parents=True, exist_ok=True)
    with completed(workdir / "config.json") as partial:
        partial.write_text(json.dumps(config, indent=2) + "\n")


def save_rows(workdir: Path, report: Mapping[str, Any]) -> None:
    """Writes `rows.json`: the counts of the prepared rows, if there are any."""
    if report:
        with completed(workdir / "rows.json") as partial:
            partial.write_text(json.dumps(report, indent=1) + "\n")


def save_environment(workdir: Path, started: Mapping[str, Any]) -> None:
    """Writes `environment.json`: the first start of the run with its command, commit, versions and devices.

    `started` holds the fields of `Request.started` and "parameters", the size of the model.
    """
    path = workdir / "environment.json"
    if path.exists() and _has_begun(workdir):
        return
    environment = {
        **started,
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "devices": devices(),
        "processes": jax.process_count(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "packages": packages(),
        **({"commit": commit} if (commit := source_commit(Path(__file__))) else {}),
    }
    with completed(path) as partial:
        partial.write_text(json.dumps(environment, indent=1) + "\n")


def save_usage(workdir: Path, began: float) -> None:
    """Adds "usage" to `environment.json`: the duration and the peak memory of the run's commands.

    "seconds" adds up the commands, except those that were killed. "memory" is the largest peak of this process, and
    "device_memory" that of a device, in bytes; the latter is left out if devices do not report it, as CPUs.

    Args:
      workdir: the run's folder.
      began: the value of `time.perf_counter` when the command began.
    """
    path = workdir / "environment.json"
    try:
        environment = json.loads(path.read_bytes())
    except (OSError, ValueError):  # a file that is missing or damaged
        return
    before = environment.get("usage", {})
    of_devices = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
    peaks = {"memory": _peak_memory(), "device_memory": max(of_devices)}
    largest = {name: max(peak, before.get(name, 0)) for name, peak in peaks.items() if peak}
    seconds = round(before.get("seconds", 0.0) + time.perf_counter() - began, 1)
    usage = {**before, **largest, "seconds": seconds}
    with completed(path) as partial:
        partial.write_text(json.dumps({**environment, "usage": usage}, indent=1) + "\n")


def _peak_memory() -> int:
    """Returns the largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def devices() -> Mapping[str, int]:
    """Returns the number of devices of each kind. A CPU has the name of its processor, if Linux states it."""
    kinds = ((_processor() if device.platform == "cpu" else device.device_kind, device) for device in jax.devices())
    return Counter(f"{kind} ({device.platform})" for kind, device in kinds)


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "cpu")
    return "cpu"


def packages() -> dict[str, str]:
    """Returns the versions of the packages that results depend on; that of bertjax unless a clone is not installed."""
    versions = {name: metadata.version(name) for name in _PACKAGES}
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions["bertjax"] = metadata.version("bertjax")
    return versions


def source_commit(path: Path) -> str:
    """Returns the commit of the Git repository that tracks a file; "" if none does. "-dirty" marks changed files."""
    git = ["git", "--no-optional-locks", "-C", str(path.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", path.name], check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def has_begun(workdir: Path) -> bool:
    """Returns whether the folder has a run with at least one update. Otherwise a new run may replace it."""
    return (workdir / "config.json").exists() and _has_begun(workdir)


def _has_begun(workdir: Path) -> bool:
    """Whether a run has made at least one update, by its checkpoints or log."""
    log = workdir / "metrics.jsonl"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return has_checkpoint(workdir) or any(not line.startswith('{"step": 0,') for line in lines)


def check_text(workdir: Path, fingerprint: str) -> None:
    """Saves the fingerprint of the prepared text when a run starts, and compares it when the run resumes.

    Raises:
      UserError: if the files of `data.source` have changed, and with them the vocabulary and the rows.
    """
    path = workdir / _FINGERPRINT
    before = path.read_text().strip() if path.exists() and _has_begun(workdir) else fingerprint
    if before not in (fingerprint, getattr(fingerprint, "earlier", "")):
        versions = "the versions of Python, nltk and, for Korean, bertjax"
        raise UserError(
            f"the text of --workdir={workdir}",
            got=f"prepared text {fingerprint}",
            expected=f"{before}, which the run started with",
            fix=f"restore the files of data.source (or {versions}), or choose another --workdir",
        )
    if not path.exists() or path.read_text().strip() != fingerprint:
        with completed(path) as partial:
            partial.write_text(fingerprint + "\n")


def load_config(workdir: Path) -> dict[str, Any]:
    """Reads a run's config. Raises UserError if the folder is not a run."""
    path = workdir / "config.json"
    try:
        config = parse_json(path.read_text())
        if not isinstance(config, dict):
            raise ValueError(f"a JSON {type(config).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        got = f"no readable config.json ({error})"
        fix = "train it first, with --config=... and this --workdir, or correct the path"
        raise UserError(f"--workdir={workdir}", got=got, expected="the folder of a run", fix=fix) from error
    if "experiment" not in config:
        got = "a config.json without experiment, as published models have"
        fix = f"choose the folder of a run; --config=FILE with --config.init_from={workdir} opens a published model"
        raise UserError(f"--workdir={workdir}", got=got, expected="the folder of a run", fix=fix)
    return config
