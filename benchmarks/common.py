"""Shared code of the benchmarks: shapes, the training step on synthetic batches, interleaved timing, tables."""

import argparse
import ctypes.util
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.config import build_part
from bertjax.configs.bert_pretraining import get_config
from bertjax.configs.sizes import SIZES
from bertjax.contract import Batch
from bertjax.experiments import bert_pretraining
from bertjax.files import completed
from bertjax.interop.published import Published
from bertjax.modes.stages import Resolved, of_config
from bertjax.training import sharding
from bertjax.training import step as steps
from bertjax.training.compilation import Compilations
from bertjax.training.config import TrainingConfig
from bertjax.training.inference import Predictor
from bertjax.training.trainer import Trainer

_NUM_SPECIALS = 5  # [PAD] [UNK] [CLS] [SEP] [MASK]
# By default, glibc returns large arrays to the system at once, and allocates fresh pages for the next ones.
_MALLOC: dict[str, dict[str, str]] = {
    "default": {},
    "tuned": {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**34)},  # glibc, main thread only
    "tcmalloc": {"LD_PRELOAD": "libtcmalloc_minimal.so.4", "TCMALLOC_RELEASE_RATE": "0"},
}
MALLOCS = tuple(_MALLOC)
_Name = TypeVar("_Name", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of a model and its batch.

    Attributes:
      size: a key of `configs.sizes.SIZES`.
      rows, length: the rows of a batch, and their length.
      vocab_size: the size of the vocabulary.
    """

    size: str
    rows: int
    length: int
    vocab_size: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parses `SIZE:ROWSxLENGTH:VOCABULARY`, such as base:8x128:30522."""
        size, batch, vocab_size = text.split(":")
        rows, length = map(int, batch.split("x"))
        return cls(size, rows, length, int(vocab_size))

    def __str__(self) -> str:
        return f"{self.size} {self.rows}x{self.length}, vocabulary {self.vocab_size:,}"

    @property
    def predicted(self) -> int:
        """The predicted tokens of a row, 15 %: 20 of 128 and 77 of 512."""
        return math.ceil(0.15 * self.length)

    @property
    def tokens(self) -> int:
        """The tokens of a batch, including padding."""
        return self.rows * self.length

    def flops_per_token(self) -> float:
        """Returns the result of the function `flops_per_token` for this shape."""
        return flops_per_token(*SIZES[self.size], self.vocab_size, self.length, self.predicted / self.length)


def flops_per_token(layers: int, hidden: int, vocab_size: int, length: int, predicted: float) -> float:
    """Returns the floating-point operations per token of a training step, counting only matrix products.

    The formula is 6P + 12 L S H + 6 m (H^2 + H V). Its terms are forward and backward passes through the P = 12 L H^2
    weights of the layers (F = 4H), the two products of attention, and the masked-LM head at the fraction m of predicted
    tokens. Recomputation by rematerialization is not counted, so the result measures useful work.

    Args:
      layers: L.
      hidden: H.
      vocab_size: V.
      length: S, including padding.
      predicted: m.
    """
    weights = 12 * layers * hidden**2
    head = hidden**2 + hidden * vocab_size
    return 6 * weights + 12 * layers * length * hidden + 6 * predicted * head


def read_config(shape: Shape, overrides: Mapping[str, Any]) -> Resolved:
    """Resolves the config of a shape, with `overrides` by dotted key."""
    config = get_config(shape.size)
    values = {
        "batch_size": shape.rows,
        "data.seq_len": shape.length,
        "model.vocab_size": shape.vocab_size,
        # The same for all sizes, which then share the prepared text: `tiny` has a recipe of its own.
        "data.stages": (),
        "data.valid_fraction": 0.02,
        "data.packing": False,
        "model.dropout": 0.1,
        "model.attention_dropout": 0.1,
        **overrides,
    }
    config.update_from_flattened_dict(values)
    return of_config(bert_pretraining, json.loads(config.to_json()))


def real_batches(shape: Shape, overrides: Mapping[str, Any], workdir: Path, count: int) -> list[Batch]:
    """Returns the first training batches. Prepares the text in `workdir` unless it is prepared."""
    data = read_config(shape, overrides).data(workdir)
    data.prepare()
    return list(itertools.islice(data.batches("train", 0, np.arange(shape.rows)), count))


def real_tokens(batch: Batch) -> int:
    """Returns the number of tokens in a batch that are not padding."""
    return int(np.count_nonzero(batch["segment_ids"]))


def made_up_batch(specs: Mapping[str, Any], vocab_size: int) -> Batch:
    """Returns a synthetic batch without padding that has the shapes of a task, the same at each call."""
    rng = np.random.default_rng(0)
    rows, length = specs["input_ids"].shape
    sequences = specs["cls_positions"].shape[1] if "cls_positions" in specs else 1
    starts = np.arange(sequences) * (length // sequences)

    def fill(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name in ("input_ids", "masked_labels"):
            return rng.integers(_NUM_SPECIALS, vocab_size, shape)
        if name in ("token_type_ids", "next_sentence_labels"):
            return rng.integers(0, 2, shape)
        if name == "masked_positions":
            return np.sort(rng.random((rows, length)).argsort(1)[:, : shape[1]])
        if name == "cls_positions":
            return np.broadcast_to(starts, shape)
        if name == "segment_ids":
            return np.broadcast_to(np.searchsorted(starts, np.arange(length), side="right"), shape)
        if name == "position_ids":
            return np.broadcast_to(np.arange(length) % (length // sequences), shape)
        assert name.endswith("_weights"), f"unknown batch field {name}"
        return np.ones(shape)

    return {name: fill(name, spec.shape).astype(spec.dtype) for name, spec in specs.items()}


class OurStep:
    """The training step of `launch.py`, including AdamW and dropout, on batches that are already on the device.

    Attributes:
      batches: the batches, used in turn.
      state: the state after the last update.
    """

    def __init__(self, task: Any, config: TrainingConfig, batches: Sequence[Batch]) -> None:
        """Compiles the step and makes one update.

        Args:
          task: the task.
          config: the training settings.
          batches: batches with shapes of the task's `batch_specs`.
        """
        mesh, optimizer, init, _, shardings = steps.assemble(task, config, jax.devices()[:1])
        self._step = steps.jit_step(task, optimizer, mesh, shardings, config)
        self._numbers = steps.make_numbers(config)
        self._mesh = mesh
        self.use(batches)
        self.state = jax.jit(init, out_shardings=shardings)(steps.seed_of(config))
        self._index = 0
        self()

    @classmethod
    def of(cls, shape: Shape, overrides: Mapping[str, Any], batches: Sequence[Batch] | None = None) -> "OurStep":
        """Makes the step of a shape, with config values by dotted key; by default, on a synthetic batch."""
        _, config, task, _ = read_config(shape, overrides).example()
        return cls(task, config, batches or [made_up_batch(task.batch_specs()[0], shape.vocab_size)])

    def use(self, batches: Sequence[Batch]) -> None:
        """Replaces the batches by others of the same shapes."""
        self.batches = batches
        self._on_device = [sharding.put_batch(batch, self._mesh) for batch in batches]

    def __call__(self, times: int = 1) -> None:
        """Makes `times` updates, and waits for the last."""
        for _ in range(times):
            batch = self._on_device[self._index % len(self._on_device)]
            self.state, _ = self._step(self.state, batch, self._numbers(self._index, 1_000_000))
            self._index += 1
        jax.block_until_ready(self.state)


class Opened(NamedTuple):
    """A task as `launch.py` builds it.

    Attributes:
      task: the task.
      data: its data, prepared.
      settings: the training settings.
      keys: the experiment's config.
      published: the weights in `init_from`; None without them.
    """

    task: Any
    data: Any
    settings: TrainingConfig
    keys: Any
    published: Published | None = None


def open_task(experiment: Any, config: ConfigDict, folder: Path) -> Opened:
    """Builds the task of a new run, and prepares its data in the subfolder `data` of a folder."""
    resolved = of_config(experiment, json.loads(config.to_json()))
    data = resolved.data(folder / "data")
    data.prepare()
    complete = resolved.complete(data)
    keys = build_part(resolved.module.Config, complete.config)
    return Opened(complete.task, data, complete.settings, keys, resolved.published)


class OurTraining:
    """Training updates of `launch.py` on the batches of a task. Each call makes `updates` further updates.

    Attributes:
      compile_seconds: the compilation time of all programs, which are compiled at construction.
    """

    def __init__(self, opened: Opened, updates: int, warmup: int) -> None:
        """Initializes training.

        Args:
          opened: the task and its data.
          updates: the number of updates per call.
          warmup: the number of updates before the first call, in which all programs must be compiled.
        """
        self._updates = updates
        with Compilations() as compiled:
            trainer = Trainer(opened.task, opened.settings, jax.devices()[:1], opened.published)
            self._running = trainer.updates(opened.data.batches, trainer.fresh(), compiled)
            self._take(warmup)
        self.compile_seconds = compiled.seconds

    def __call__(self) -> None:
        """Makes `updates` updates, and waits for the last."""
        self._take(self._updates)

    def _take(self, count: int) -> None:
        for _ in range(count):
            update = next(self._running)
        jax.block_until_ready(update.state)


class OurPrediction:
    """Predictions of `launch.py` for texts. Each call encodes the texts, and makes their records.

    Attributes:
      compile_seconds: the compilation time of all programs, which are compiled at construction.
    """

    def __init__(self, opened: Opened, texts: Sequence[str]) -> None:
        """Initializes prediction with the published weights, or with random ones if there are none."""
        self._task = opened.task
        self._texts = texts
        trainer = Trainer(opened.task, opened.settings, jax.devices()[:1], opened.published)
        self._params = trainer.fresh().params
        self._predictor = Predictor(opened.task, sharding.make_mesh(opened.settings.mesh, jax.devices()[:1]))
        with Compilations() as compiled:
            self()
        self.compile_seconds = compiled.seconds

    def __call__(self) -> None:
        """Makes the records of all texts."""
        outputs = self._predictor(self._params, self._task.examples(iter(self._texts)))
        records = [self._task.record(*output) for output in outputs]
        assert len(records) == len(self._texts)


def interleave(
    contenders: Mapping[_Name, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[_Name, list[float]]:
    """Returns the seconds of each call. Calls alternate (A B C A B C ...), so that other load affects all alike.

    On a busy machine, the clock `time.process_time` measures more steadily.
    """
    seconds: dict[_Name, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            began = clock()
            call()
            seconds[name].append(clock() - began)
    return seconds


def seconds_of(call: Callable[[], None]) -> float:
    """Returns the duration of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def spread(values: Sequence[float], digits: int) -> str:
    """Formats `median (lower quartile to upper quartile)`."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Speed(NamedTuple):
    """The speed of some work in each round. Higher is faster.

    Attributes:
      work: the work, which identifies the measurement in later versions.
      unit: the unit, such as tokens/s.
      ours: our speeds.
      peer: the name of the peer; "" without one.
      theirs: the speeds of the peer in the same rounds.
      compile_seconds: the time that our compilation took; 0.0 if it was not measured.
    """

    work: str
    unit: str
    ours: Sequence[float]
    peer: str = ""
    theirs: Sequence[float] = ()
    compile_seconds: float = 0.0

    def ratios(self) -> list[float]:
        """Returns our speed over the peer's in each round."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def row(self) -> list[str]:
        """Returns the row of the table with the header `HEADER`."""
        compared = ["", "", "", ""]
        if self.theirs:
            ratio, quartiles = spread(self.ratios(), 2).split(" ", 1)
            compared = [self.peer, f"{statistics.median(self.theirs):,.4g}", ratio, quartiles[1:-1]]
        now = f"{statistics.median(self.ours):,.4g}"
        compiled = f"{self.compile_seconds:.0f} s" if self.compile_seconds else ""
        return [self.work, self.unit, *compared[:2], now, *compared[2:], compiled]


HEADER = ("work", "unit", "peer", "its speed", "now", "ratio", "quartiles of the ratio", "compilation")


def speed_of(work: str, unit: str, amount: float, seconds: Mapping[str, Sequence[float]], **others: Any) -> Speed:
    """Returns the speed of work on an amount of units.

    Args:
      work: the work.
      unit: the unit.
      amount: the number of units in a round.
      seconds: the result of `interleave` for ours and, second, for the peer.
      **others: further fields of `Speed`.
    """
    (_, ours), (peer, theirs) = seconds.items()
    return Speed(work, unit, [amount / s for s in ours], peer, [amount / s for s in theirs], **others)


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """Returns the options that all benchmarks of speed have; `rounds` is the default number of rounds."""
    options = argparse.ArgumentParser(description=description.splitlines()[0])
    options.add_argument("--rounds", type=int, default=rounds)
    options.add_argument("--output", type=Path, help="a JSON file to write after each measurement")
    options.add_argument("--malloc", choices=MALLOCS, default="default")
    options.add_argument("--smoke", action="store_true", help="rehearse with tiny sizes in one round")
    return options


def report(measure: Callable[[argparse.Namespace], Iterable[Speed]], args: argparse.Namespace) -> None:
    """Measures, prints each speed when it is known, and prints the table; `args` has the options of `parser`."""
    use_malloc(args.malloc)
    if args.smoke:
        args.rounds = 1
    print(f"{describe_machine()}; {args.rounds} rounds", flush=True)
    speeds: list[Speed] = []
    for speed in measure(args):
        speeds.append(speed)
        print(", ".join(filter(None, speed.row())), flush=True)
        if args.output:
            write_json(args.output, {"machine": describe_machine(), "results": [s._asdict() for s in speeds]})
    print("\n" + table(HEADER, [speed.row() for speed in speeds]))
    print(f"\nLoad average at the end {load_average()}")


def peak_bytes() -> int:
    """Returns the largest memory that was in use on the device since the start; 0 if the device does not report it."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def new_peak_bytes(before: int) -> int | None:
    """Returns `peak_bytes` of work since it was `before`; None if the work did not reach that."""
    peak = peak_bytes()
    return peak if peak > before else None


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, which a killed process never leaves incomplete."""
    with completed(path) as partial:
        partial.write_text(json.dumps(value, indent=1))


def describe_machine() -> str:
    """Returns versions, devices, and settings that affect speed, as one line."""
    versions = {package.name: package.version for package in metadata.distributions()}
    packages = [f"{name} {versions.get(name, '(none)')}" for name in ("jax", "jaxlib", "torch", "transformers")]
    threads = len(os.sched_getaffinity(0))
    malloc = next(name for name in reversed(MALLOCS) if _MALLOC[name].items() <= os.environ.items())
    device = jax.devices()[0].device_kind
    return (
        f"Python {platform.python_version()}, {', '.join(packages)}; {device}, {threads} threads, malloc {malloc}, "
        f"load average {load_average()}"
    )


def load_average() -> str:
    """Returns the load averages of the last 1, 5 and 15 minutes, which show whether the machine was otherwise busy."""
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())


def use_malloc(setting: str) -> None:
    """Restarts the program with a setting of `MALLOCS`. All but the default keep freed memory for the next step."""
    if setting == "tcmalloc" and ctypes.util.find_library("tcmalloc_minimal") is None:
        sys.exit("error: --malloc=tcmalloc: got no libtcmalloc_minimal. Fix: apt-get install libtcmalloc-minimal4")
    variables = {key for values in _MALLOC.values() for key in values}
    environment = {key: value for key, value in os.environ.items() if key not in variables} | _MALLOC[setting]
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def missing(*packages: str) -> str:
    """Returns that a package is not installed; "" if all are."""
    return next((f"{name} is not installed" for name in packages if importlib.util.find_spec(name) is None), "")
