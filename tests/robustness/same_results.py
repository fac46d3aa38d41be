"""Shows whether a change of the code changed any result.

    python tests/robustness/same_results.py --before=COMMIT [--experiments=classification,tagging] [--keep=FOLDER]
        [--allow=prepared]

Runs the same tiny cases of all experiments with the package of COMMIT and with that of this checkout, and compares the
SHA-256 of every result: batches, parameters after 20 updates, metrics, config, vocabulary and counts of rows of the
run, predictions from all forms of input, evaluations, mined rows and exported files; and, as a group of their own,
prepared rows with the digests in their names. Prints the number of equal hashes of each experiment, the number of
errors among all results, and the names that differ or that one side lacks. The exit status is 1 if there are any,
except in the group that --allow names.

Paths are relative and random numbers have seeds, so that equal code gives equal bytes. Left out is what differs between
two runs of the same code: times, speeds, memory, waits, logs, TensorBoard files, commits, and the files of checkpoints
with fingerprints of them, because Orbax writes other bytes each time; their parameters are hashed instead.
"""

import argparse
import ast
import collections
import contextlib
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# A sibling, because the package's root is replaced by that of the other commit.
from same_cases import OBJECTS, SHARED, Case, cases, write_inputs

ROOT = Path(__file__).parents[2]
PREPARED = "prepared"
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # tiny programs take longer to optimize than to run
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_multi_thread_eigen=false",
}
# Names of metrics and other values that differ between two runs of the same code, or between two commits.
TIMED = re.compile(r"seconds|per_sec|data_wait|memory|goodput|mfu|^commit$")
# Files of a run's folder that do, and those whose content is hashed in another way.
LEFT_OUT = re.compile(r"(config|environment)\.json|metrics\.jsonl|goodput|lock|tensorboard|checkpoints")


def digest(*contents: bytes | str) -> str:
    """Returns the SHA-256 of contents."""
    return hashlib.sha256(b"".join(part.encode() if isinstance(part, str) else part for part in contents)).hexdigest()


def of_arrays(arrays: Mapping[str, Any]) -> str:
    """Returns a digest of named arrays: names, types, shapes and bytes."""
    import numpy as np

    items = ((name, np.asarray(value)) for name, value in sorted(arrays.items()))
    return digest(*(part for name, array in items for part in (f"{name} {array.dtype} {array.shape}", array.tobytes())))


def without_timed(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object without the entries that differ between two runs of the same code."""
    return {name: value for name, value in items if not TIMED.search(name)}


def of_json(text: str) -> str:
    """Returns a digest of JSON, except of these entries."""
    return digest(json.dumps(json.loads(text, object_pairs_hook=without_timed)))


def of_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the name and the digest of every file in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), digest(path.read_bytes())


def launch(arguments: Sequence[str]) -> str:
    """Runs the command line of bertjax in this process. Returns the error of a user, or ""."""
    from absl import flags

    from bertjax.launch import run

    for name in list(flags.FLAGS):
        if name.startswith("config."):
            delattr(flags.FLAGS, name)
        else:
            flags.FLAGS[name].unparse()
    flags.FLAGS.unparse_flags()
    sys.argv = ["launch.py", "--distributed=off", "--noreport", *arguments]
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, str) else ""
    return ""


def values_of(words: Iterable[str]) -> dict[str, Any]:
    """Returns the values of words such as KEY=VALUE: Python literals, and other words as texts."""
    values: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            values[name] = text
    return values


def train(case: Case, run: Path) -> Any:
    """Trains the run of a case. Returns its model."""
    from flax.traverse_util import flatten_dict

    import bertjax

    config = importlib.import_module(f"bertjax.configs.{case.name.partition('/')[0]}").get_config(case.variant)
    own, names = values_of(case.values), flatten_dict(config.to_dict(), sep=".")
    shared = values_of(SHARED.replace("@", "data.").split())
    shared = {name: value for name, value in shared.items() if name in names}
    if "init_from" in own:
        shared = {name: value for name, value in shared.items() if not name.startswith("model.") or "dropout" in name}
    with config.unlocked():
        config.update_from_flattened_dict({**shared, **own})
    return bertjax.train(config, run, report=False)


def batches(experiment: str, run: Path) -> Iterator[tuple[str, str]]:
    """Yields digests of the first training batches of a run, and of all of its validation batches."""
    import numpy as np

    from bertjax.config import build_part
    from bertjax.experiments import find
    from bertjax.interop.published import open_weights

    module = find(experiment)
    config = json.loads((run / "config.json").read_text())
    published = open_weights(Path(config["init_from"])) if config["init_from"] else None
    data = module.Data(build_part(module.Config, config), run / "data", published)
    for split, count in (("train", 3), ("valid", None)):
        of_split = data.batches(split, 0, np.arange(config["batch_size"]))
        for number, batch in enumerate(itertools.islice(of_split, count)):
            yield f"{split} batch {number}", of_arrays(batch)


def results_of_run(case: Case, run: Path) -> Iterator[tuple[str, str]]:
    """Trains a run, and yields the name and the digest of each of its results."""
    from jax.tree_util import keystr, tree_leaves_with_path

    model = train(case, run)
    yield "parameters", of_arrays({keystr(path): leaf for path, leaf in tree_leaves_with_path(model.params)})
    yield "metrics", digest(*map(of_json, (run / "metrics.jsonl").read_text().splitlines()))
    yield "config", of_json((run / "config.json").read_text())
    for name, value in of_files(run):
        if name.startswith("data/") or name == "text_fingerprint":
            yield f"{PREPARED}/{name}", value
        elif not LEFT_OUT.match(name):
            yield f"run/{name}", value
    yield from batches(case.name.partition("/")[0], run)
    if case.name in OBJECTS:
        records = model.predict(OBJECTS[case.name])
        yield "predict objects", digest(json.dumps(records, default=lambda array: array.tolist()))


def results_of_command(case: Case, mode: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Runs a command, and yields the name and the digest of each file that it writes, or of its error."""
    default = "exported" if mode == "export" else "output"
    output = Path("out", case.name, next((word[9:] for word in given if word.startswith("--output=")), default))
    output.parent.mkdir(parents=True, exist_ok=True)
    slash = "" if output.suffix or output.name == "output" else "/"
    flags = [f"--mode={mode}", *(word if word.startswith("--") else f"--config.{word}" for word in given)]
    flags += [] if any(flag.startswith("--config=") for flag in flags) else [f"--workdir=runs/{case.name}"]
    error = launch([*flags, f"--output={output}{slash}"])
    name = " ".join([mode, *given])
    if error:
        yield f"{name} (error)", digest(error)
        print(f"{case.name}: {name}: {error}", file=sys.stderr)
    elif output.is_dir():
        yield from ((f"{name}: {file}", value) for file, value in of_files(output))
    else:
        content = output.read_text()
        output.unlink()
        if '"protocol"' in content:  # its fingerprints depend on prepared rows, or on the files of a checkpoint
            metrics = json.loads(content)
            fingerprints = metrics["protocol"].pop("fingerprints")
            fingerprints.pop("init_from")
            yield f"{PREPARED}/{name}", digest(json.dumps(fingerprints))
            content = json.dumps(metrics)
        yield name, of_json(content) if mode == "evaluate" else digest(content)


def results_of(case: Case) -> Iterator[tuple[str, str]]:
    """Yields the name and the digest of each result of a case, or of the exception that ends it."""
    try:
        if case.variant != "none":
            yield from results_of_run(case, Path("runs", case.name))
        for mode, *words in case.commands:
            inputs = [word for word in words if not word.startswith("--") and "=" not in word]
            rest = [word for word in words if word not in inputs]
            for given in ([f"--input={name}", *rest] for name in inputs) if inputs else [rest]:
                yield from results_of_command(case, mode, given)
    except Exception as error:
        yield f"{type(error).__name__} (error)", digest(str(error))
        print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)


def record(experiments: Sequence[str], output: Path) -> None:
    """Writes the digests of the results of experiments, and of the cases that these start from, as JSON."""
    import bertjax

    if Path.cwd() not in Path(bertjax.__file__).parents:
        raise RuntimeError(f"bertjax is imported from {bertjax.__file__}, not from {Path.cwd()}")
    output.with_suffix("").mkdir()
    os.chdir(output.with_suffix(""))
    write_inputs(random.Random(0))
    results: dict[str, str] = {}
    log = Path("log.txt").open("a")  # noqa: SIM115 - stays open, because handlers of logging keep it
    for case in in_order(experiments):
        began = time.monotonic()
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            results |= {f"{case.name}/{name}": value for name, value in results_of(case)}
        print(f"{output.stem}: {case.name}, {time.monotonic() - began:.1f} s", flush=True)
    output.write_text(json.dumps(results, indent=1, ensure_ascii=False))


def in_order(experiments: Sequence[str]) -> list[Case]:
    """Returns the cases of experiments and those that they start from, in an order in which they can run."""
    by_name = {case.name: case for case in cases()}
    chosen: dict[str, Case] = {}

    def add(case: Case) -> None:
        words = [*case.values, *itertools.chain(*case.commands)]
        for name in re.findall(r"=(?:runs|out)/(\w+/\w+)", " ".join(words)):
            if name not in (case.name, *chosen):
                add(by_name[name])
        chosen[case.name] = case

    for case in by_name.values():
        if case.name.partition("/")[0] in experiments and case.name not in chosen:
            add(case)
    return list(chosen.values())


def compare(before: Mapping[str, str], after: Mapping[str, str], allowed: str | None) -> int:
    """Prints the comparison. Returns the exit status."""
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    lines: dict[str, list[str]] = {"results": [], PREPARED: []}
    for name in {**before, **after}:
        experiment, _, item = name.split("/", 2)
        group = PREPARED if item.startswith(f"{PREPARED}/") else "results"
        is_equal = before.get(name) == after.get(name)
        counts[group, experiment, "equal" if is_equal else "different"] += 1
        counts[group, experiment, "errors"] += "(error)" in item
        if not is_equal:
            side = "differs" if name in before and name in after else "only before" if name in before else "only after"
            lines[group].append(f"{side}: {name}")
    print(f"{'group':9} {'experiment':20} {'equal':>9} {'different':>9} {'errors':>9}")
    for group, experiment in sorted({key[:2] for key in counts}):
        numbers = (f"{counts[group, experiment, kind]:9}" for kind in ("equal", "different", "errors"))
        print(f"{group:9} {experiment:20}", *numbers)
    print(*lines["results"], *lines[PREPARED], sep="\n")
    return int(any(names for group, names in lines.items() if group != allowed))


def main() -> None:
    """Compares the results of two checkouts, or records those of one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    every = ",".join(dict.fromkeys(case.name.partition("/")[0] for case in cases()))
    parser.add_argument("--before", help="the commit to compare with")
    parser.add_argument("--experiments", default=every, help="names, separated by commas; default: all")
    parser.add_argument("--keep", type=Path, help="a new folder for runs and outputs, which are otherwise deleted")
    parser.add_argument("--allow", choices=[PREPARED], help="a group that may differ")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        sys.path[0] = str(Path.cwd())
        record(options.experiments.split(","), options.record)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        checkout = folder / "checkout"
        checkout.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", options.before], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
        for side, root in (("before", checkout), ("after", ROOT)):
            command = [sys.executable, __file__, f"--record={folder / side}.json"]
            command.append(f"--experiments={options.experiments}")
            places = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "PYTHONPATH": str(root)}
            subprocess.run(command, cwd=root, env={**os.environ, **ENVIRONMENT, **places}, check=True)
        sides = [json.loads((folder / f"{side}.json").read_text()) for side in ("before", "after")]
        sys.exit(compare(*sides, options.allow))


if __name__ == "__main__":
    main()
