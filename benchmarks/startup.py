"""CPU seconds of `--mode=predict` for one sentence, by phase, for a run of each kind.

    python -m benchmarks.startup --rounds=5
    python -m benchmarks.startup --rounds=5 --other=FOLDER

Trains a run of a few updates for each kind of task, then predicts one sentence with each in new processes. `--other`
names another checkout, which predicts with the same runs in alternation. The caches are empty at first. All processes
except the first of each kind can find compiled programs in the compilation cache, if their checkout enables it by
default. Compilation, including tracing, is wall time, so the machine should be idle.
"""

import argparse
import builtins
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PHASES = ("imports", "loading", "compilation", "execution")
_LOADING = {"bertjax.runs.checkpoints": "restore_params"}  # module: the function that reads a checkpoint
_COMPILING = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")
_FEW = ("num_steps=2", "checkpoint.save_every=2", "evaluate_every=2", "optimizer.warmup_steps=1")
_ONE_EPOCH = ("num_epochs=1",)
_KINDS = {
    "masks": ("bert_pretraining.py:tiny", "The cat [MASK] on the mat."),
    "classification": ("classification.py", "A film that nobody should miss."),
    "summary": ("bertsum_ext.py:tiny", "A cache keeps results. It forgets the oldest first. Keys are hashed."),
    "translation": ("translation.py:dates", "Saturday, November 21, 2026"),
}


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another checkout to compare with")
    parser.add_argument("--runs", type=Path, help="a folder to keep the runs in; existing runs are used")
    args = parser.parse_args()
    from benchmarks import common

    with tempfile.TemporaryDirectory() as temporary:
        runs = args.runs or Path(temporary) / "runs"
        trees = {"here": ROOT, **({"other": args.other.resolve()} if args.other else {})}
        print(common.describe_machine(), flush=True)
        rows = []
        for kind, (_, sentence) in _KINDS.items():
            run = _trained(kind, runs)
            records: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
            for _ in range(args.rounds + 1):
                for name, tree in trees.items():
                    records[name].append(_measure(tree, run, sentence, Path(temporary) / name))
            for name, measured in records.items():
                rows.append([kind, name, "first", *(f"{measured[0][phase]:.2f}" for phase in (*_PHASES, "total"))])
                later = [[one[phase] for one in measured[1:]] for phase in (*_PHASES, "total")]
                rows.append([kind, name, "later", *(common.spread(seconds, 2) for seconds in later)])
        print(common.table(["run", "checkout", "start", *_PHASES, "total"], rows))


def _trained(kind: str, runs: Path) -> Path:
    """Returns a run of a few updates; trains it unless it exists."""
    run = runs / kind
    if not (run / "checkpoints").exists():
        config, _ = _KINDS[kind]
        flags = [f"--config.{setting}" for setting in (_ONE_EPOCH if kind == "classification" else _FEW)]
        if kind == "classification":
            rows = "".join(f"A {word} film, number {i}.\t{word}\n" for i in range(20) for word in ("good", "bad"))
            (runs / "films.tsv").write_text(f"sentence\tlabel\n{rows}")
            flags += [f"--config.data.source={runs / 'films.tsv'}", f"--config.init_from={_trained('masks', runs)}"]
        command = [sys.executable, "launch.py", f"--config=configs/{config}", f"--workdir={run}", "--noreport", *flags]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return run


def _measure(tree: Path, run: Path, sentence: str, home: Path) -> dict[str, float]:
    """Returns the seconds of each phase of one prediction with a checkout, in a process with its caches in `home`."""
    with tempfile.NamedTemporaryFile("r") as file:
        arguments = ["--mode=predict", f"--workdir={run}"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(tree)}
        command = [sys.executable, str(Path(__file__).resolve()), "--probe", file.name, *arguments]
        subprocess.run(command, cwd=tree, env=environment, input=sentence.encode(), check=True, capture_output=True)
        return json.loads(file.read())


class _Probe:
    """Measures the phases of a program from inside.

    Attributes:
      seconds: the seconds by phase.
    """

    def __init__(self) -> None:
        self.seconds, self._depth, self._patched = dict.fromkeys(_PHASES, 0.0), 0, set[str]()
        self._import, self._compiling = builtins.__import__, list[tuple[float, float]]()

    def install(self) -> None:
        """Starts counting imports."""
        builtins.__import__ = self._counted_import

    def _counted_import(self, *args: Any, **kwargs: Any) -> Any:
        start, self._depth = time.process_time(), self._depth + 1
        try:
            return self._import(*args, **kwargs)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds["imports"] += time.process_time() - start
            self._patch()

    def _patch(self) -> None:
        for module, function in _LOADING.items():
            if module not in self._patched and hasattr(sys.modules.get(module), function):
                self._patched.add(module)
                setattr(sys.modules[module], function, self._counted(getattr(sys.modules[module], function)))
        if "jax" not in self._patched and hasattr(sys.modules.get("jax"), "monitoring"):
            self._patched.add("jax")
            sys.modules["jax"].monitoring.register_event_duration_secs_listener(self._on_event)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            start, before = time.process_time(), sum(self.seconds.values())
            result = function(*args, **kwargs)
            self.seconds["loading"] += time.process_time() - start - (sum(self.seconds.values()) - before)
            return result

        return counted

    def _on_event(self, event: str, seconds: float, **_: Any) -> None:
        if event.rsplit("/", 1)[-1] not in _COMPILING:
            return
        # Traces nest, and inner ones end first, so the time of contained traces is subtracted.
        start = time.perf_counter() - seconds
        while self._compiling and self._compiling[-1][0] >= start:
            self.seconds["compilation"] -= self._compiling.pop()[1]
        self._compiling.append((start, seconds))
        self.seconds["compilation"] += seconds


def _probe(path: str, arguments: list[str]) -> None:
    """Runs `launch.py` in this process, and writes the seconds of its phases to a file."""
    probe = _Probe()
    probe.install()
    from absl import app

    from bertjax import launch

    sys.argv = ["launch.py", *arguments]
    try:
        app.run(launch.main, flags_parser=launch._parse_flags)
    except SystemExit as end:
        assert not end.code, end.code
    total = time.process_time()
    probe.seconds["execution"] = total - sum(probe.seconds.values())
    Path(path).write_text(json.dumps({**probe.seconds, "total": total}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        _probe(sys.argv[2], sys.argv[3:])
    else:
        main()
