"""Everything that is worth measuring on one GPU, in seven minutes, with a table of verdicts.

    python -m benchmarks.gpu_suite --output=FOLDER --seconds=420

The parts run one after another, in processes of their own: kernels; pretraining of Base, with traces; PyTorch's strong
form; scanned Large; translation; fine-tuning. A part that exceeds its share of the remaining time is killed. The folder
gets, as soon as they exist:

- `results.json`: clocks and power of the card, versions of packages, and the state and the results of each part;
- `verdicts.md`: the table, and `log.txt`: the output of all parts;
- `kept-0.tar` to `kept-3.tar`, each below 16 MiB: traces, compiled programs with results of autotuning, prepared text.

A later run with `--caches=FOLDER` starts with these files, so that the same programs need not be compiled. Fine-tuning
needs MRPC, SST-2 and a vocabulary in the folder BERTJAX_DATA. `--smoke` runs everything on small shapes, in about two
minutes on a CPU.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common, gpu_verdicts, turns
from bertjax.files import cache_folder, completed

KEPT = "kept"  # the folder whose files are packed
_POLL = 1.0  # seconds
_LEAST = 10.0  # seconds in which a part can give results
# A part believes that it has this many times its share, so that its cases wait for each other for most of the share;
# see `turns.take_turns`.
_PATIENCE = 1.5
_TARS = 4
_TAR_BYTES = 15 * 2**20


class Part(NamedTuple):
    """A part of the suite.

    Attributes:
      name: the name of its results.
      weight: its share of the time, in seconds of seven minutes.
      module: the benchmark.
      options: its options besides the output and the time.
      obstacle: why it cannot run; "" if it can.
    """

    name: str
    weight: float
    module: str
    options: tuple[str, ...] = ()
    obstacle: str = ""


def parts(kept: Path, is_smoke: bool) -> list[Part]:
    """Returns all parts in their order. In each, at most three cases compile at the same time."""
    folder, traces = f"--folder={kept}", f"--profiles={kept / 'traces'}"
    base = "--cases=ours base 512;ours, packed base 512;ours base 128"
    translation = f"--cases=translation {'tiny' if is_smoke else 'base'}"
    rounds = ("--dtype=bfloat16", "--updates=200", "--rounds=3")
    missing = common.missing("torch", "transformers")
    if not missing and not is_smoke and "+cpu" in metadata.version("torch"):
        missing = "PyTorch is installed without CUDA"
    data = "" if "BERTJAX_DATA" in os.environ else "the variable BERTJAX_DATA is not set"
    return [
        Part("kernels", 50, "benchmarks.gpu_kernels"),
        Part("base", 135, "benchmarks.gpu", (folder, traces, base, "--jobs=3")),
        Part("torch", 95, "benchmarks.gpu", (folder, "--cases=transformers, strong", "--jobs=2"), missing),
        Part("large", 50, "benchmarks.gpu", (folder, traces, "--cases=ours, scanned large", "--jobs=2")),
        Part("translation", 45, "benchmarks.gpu_tasks", (folder, translation, "--jobs=2")),
        Part("fine-tuning", 45, "benchmarks.fine_tuning", rounds, missing or common.missing("accelerate") or data),
    ]


def main() -> None:
    """Runs the parts, and prints the verdicts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    parser.add_argument("--seconds", type=float, default=420.0, help="the time of all parts")
    parser.add_argument("--parts", default="", help="only these parts: A;B")
    parser.add_argument("--caches", type=Path, help="the --output folder of an earlier run")
    parser.add_argument("--work", type=Path, help="the folder of caches, by default one for all runs")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    clock, output = turns.Clock(args.seconds), args.output
    # JAX 0.10 finds its programs again only in a folder of the same path.
    work = (args.work or cache_folder() / ("gpu_suite_smoke" if args.smoke else "gpu_suite")).absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))  # after killing the running part
    output.mkdir(parents=True, exist_ok=True)
    if args.caches:
        unpack(args.caches, work)
    for path in (*output.glob("kept-*.tar"), output / "log.txt"):  # of an earlier run
        path.unlink(missing_ok=True)
    for folder in (work / "results", work / KEPT / "traces"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    planned = parts(work / KEPT, args.smoke)
    if args.parts:
        wanted = args.parts.split(";")
        planned = [part if part.name in wanted else part._replace(obstacle="not in --parts") for part in planned]
    suite = Suite(output, work, args.smoke, {part.name: "not run" for part in planned})
    for index, part in enumerate(planned):
        later = sum(each.weight for each in planned[index + 1 :] if not each.obstacle)
        share = clock.left() * part.weight / (part.weight + later)
        obstacle = part.obstacle or ("no time left" if share < _LEAST else "")
        suite.states[part.name] = f"skipped: {obstacle}" if obstacle else suite.run(part, share)
        print(f"{clock.used():4.0f} s  {part.name}: {suite.states[part.name]}", flush=True)
        suite.write()
        left_out = pack(work, output)
    print("\n".join(["", *left_out, suite.verdicts()]))
    if any(state.startswith("failed") for state in suite.states.values()):
        sys.exit("error: a part failed; see log.txt")


class Suite:
    """The running suite.

    Attributes:
      states: what has become of each part.
    """

    def __init__(self, output: Path, work: Path, is_smoke: bool, states: dict[str, str]) -> None:
        """Initializes with the folders, whether this is a smoke test, and the states; reads those of the card."""
        self.states = states
        self._output, self._work, self._is_smoke = output, work, is_smoke
        self._card = {"nvidia-smi": _card(), "packages": _packages()}

    def run(self, part: Part, seconds: float) -> str:
        """Runs a part, and kills its processes when the time is over. Returns its state."""
        self.states[part.name] = "running"
        results = self._results(part.name)
        command = [sys.executable, "-m", part.module, *part.options, *(["--smoke"] * self._is_smoke)]
        command += [f"--output={results}", f"--seconds={_PATIENCE * seconds:.0f}"]
        clock, written = turns.Clock(seconds), 0.0
        with (self._output / "log.txt").open("a") as log:
            print(f"\n{part.name}: {' '.join(command)}", file=log, flush=True)
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment(), process_group=0)
            try:
                while (status := process.poll()) is None and clock.left() > 0:
                    time.sleep(_POLL)
                    newest = results.stat().st_mtime if results.exists() else 0.0
                    if newest > written:
                        self.write()
                        written = newest
            finally:
                with contextlib.suppress(ProcessLookupError):  # unless all processes of the group have ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        what = "stopped" if status is None else f"failed with status {status}" if status else "finished"
        return f"{what} after {clock.used():.0f} s"

    def write(self) -> None:
        """Writes the results so far, and the verdicts on them."""
        common.write_json(self._output / "results.json", {"card": self._card, "parts": self._parts()})
        with completed(self._output / "verdicts.md") as path:
            path.write_text(self.verdicts() + "\n")

    def verdicts(self) -> str:
        """Returns the table of verdicts on the results so far."""
        return gpu_verdicts.table(self._parts(), self._is_smoke)

    def _parts(self) -> dict[str, dict[str, Any]]:
        results = {name: {"state": state} for name, state in self.states.items()}
        for name in results:
            if self._results(name).exists():
                results[name] |= json.loads(self._results(name).read_text())
        return results

    def _results(self, name: str) -> Path:
        return self._work / "results" / f"{name}.json"

    def _environment(self) -> dict[str, str]:
        # JAX keeps the results of autotuning in its folder of compiled programs, too.
        added: dict[str, Any] = {
            "JAX_COMPILATION_CACHE_DIR": self._work / KEPT / "programs",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
            "TORCHINDUCTOR_CACHE_DIR": self._work / KEPT / "inductor",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **({"JAX_DISABLE_MOST_OPTIMIZATIONS": 1} if self._is_smoke else {}),
        }
        return {**os.environ, **{name: str(value) for name, value in added.items()}}


def pack(work: Path, output: Path, limit: int = _TAR_BYTES) -> list[str]:
    """Writes the files in `work / KEPT` to a few tar files of at most `limit` bytes; returns a line for each left out.

    Prepared text comes first, because it is useless unless complete. Then come traces, programs, and large formats.
    """
    kept = work / KEPT
    tars: list[list[Path]] = [[] for _ in range(_TARS)]
    sizes, left_out = [tarfile.RECORDSIZE] * _TARS, []
    files = [path for path in kept.rglob("*") if path.is_file() and not _is_temporary(path.relative_to(kept))]
    for path in sorted(files, key=lambda path: (_rank(path.relative_to(kept)), path.stat().st_size)):
        size = path.stat().st_size + 6 * tarfile.BLOCKSIZE  # its headers, and the rest of its last block
        index = next((index for index in range(_TARS) if sizes[index] + size <= limit), None)
        if index is None:
            left_out.append(f"left out {path.relative_to(work)}, {size / 2**20:.1f} MiB")
        else:
            tars[index].append(path)
            sizes[index] += size
    for index, paths in enumerate(tars):
        if paths:
            with completed(output / f"kept-{index}.tar") as partial, tarfile.open(partial, "w") as tar:
                for path in paths:
                    tar.add(path, path.relative_to(work))
    return left_out


def _is_temporary(path: Path) -> bool:
    return any(name.endswith((".lock", ".partial")) for name in path.parts)


def _rank(path: Path) -> int:
    ranks = {"traces": 1, "programs": 2, "inductor": 3}
    return 4 if path.suffix == ".pb" else ranks.get(path.parts[0], 0)


def unpack(folder: Path, work: Path) -> None:
    """Unpacks the files of `pack`."""
    for path in folder.glob("kept-*.tar"):
        with tarfile.open(path) as tar:
            tar.extractall(work, filter="data")


def _card() -> str:
    command = ["nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _packages() -> dict[str, str]:
    return dict(sorted((package.name, package.version) for package in metadata.distributions()))


if __name__ == "__main__":
    main()
