"""Speed of the bfloat16 pretraining step on one GPU in under nine minutes: tokens/s and model FLOPs utilization.

    python -m benchmarks.gpu --output=gpu.json

The cases are BERT-Base and -Large at lengths 128 and 512, with one instance per row and with packed rows; with dropout
of attention weights, scanned layers and rematerialization. The peer is `transformers.BertForPreTraining`, if PyTorch is
installed: eager, compiled, and in the strong form of `torch_peer`, which is compiled too. The output file also has the
time of ours on rows without padding. All cases compile at the same time, each in a process of its own, and are then
timed one after another. The output file is updated after each case. `--smoke` runs everything on small shapes, in a
minute or two on a CPU.
"""

import contextlib
import dataclasses
import gc
import gzip
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import common, turns

_VOCAB_SIZE = 30_522
_SMALL_TEXT = Path(__file__).parents[1] / "docs/reference/keys.md"  # of smoke tests
_BATCHES = 4  # used in turn
_TIMING = 3.0  # seconds
_PROFILED = 3  # updates
_LONGEST = 20  # kernels whose time is listed
# Kinds of kernels by their names.
_KERNELS = {
    "attention": "sdpa|flash|fmha|attention|(forward|backward)_kernel",
    "products by Triton": "gemm_fusion|triton_gemm",
    "products by cuBLAS": "gemm|nvjet|cutlass|splitk",
}
# Flash attention does not support dropout on attention weights.
_BFLOAT16 = {"model.dtype": "bfloat16", "model.attention_dropout": 0.0}
_HEADER = ("model", "batch", "contender", "ms", "tokens/s", "real tokens/s", "TFLOP/s", "of peak", "GiB", "compiled in")


@dataclasses.dataclass(frozen=True)
class Case:
    """A case to time.

    Attributes:
      name: the name of the contender.
      size, length: the size of the model and the length of its rows.
      rows: the batch size; if it does not fit into memory, halves of it are tried.
      overrides: config values by dotted key; `data.*` determine the batches.
      torch: "" for ours, or "eager", "compiled" or "strong", which is compiled too.
    """

    name: str
    size: str
    length: int
    rows: int
    overrides: Mapping[str, Any]
    torch: str = ""

    @property
    def label(self) -> str:
        """The name, size and length, by which `--cases` selects."""
        return f"{self.name} {self.size} {self.length}"


def cases(wanted: str, smoke: bool) -> list[Case]:
    """Returns the cases with one of the texts `A;B` in their labels, most important first.

    For a smoke test, they are small, and there is one of each name.
    """

    def case(name: str, size: str, length: int, rows: int, overrides: Mapping[str, Any], torch: str = "") -> Case:
        return Case(name, size, length, rows, _BFLOAT16 | overrides, torch)

    strong, scanned = "transformers, strong", {"model.scan_layers": True}
    listed = [
        case("ours", "base", 512, 64, {}),
        case("ours", "base", 128, 256, {}),
        case("ours, packed", "base", 512, 64, {"data.packing": True}),
        case(strong, "base", 512, 64, {}, "strong"),
        case(strong, "base", 128, 256, {}, "strong"),
        case("ours, scanned", "large", 512, 64, scanned),
        case(strong, "large", 512, 64, {}, "strong"),
        case("ours, scanned", "large", 128, 256, scanned),
        case("ours, scanned", "base", 512, 64, scanned),
        case(strong, "large", 128, 256, {}, "strong"),
        case("ours, attention dropout", "base", 512, 64, {"model.attention_dropout": 0.1}),
        case("ours, rbg", "base", 512, 64, {"rng": "rbg"}),
        case("transformers, eager", "base", 512, 64, {}, "eager"),
        case("ours, remat", "large", 512, 128, {"model.remat": "norms"}),
        case("transformers, compiled", "base", 512, 64, {}, "compiled"),
        case("ours", "large", 512, 64, {}),
        case("ours", "large", 128, 256, {}),
    ]
    listed = [case for case in listed if any(text in case.label for text in wanted.split(";"))]
    small = {case.name: dataclasses.replace(case, size="tiny", length=32, rows=4) for case in listed}
    return list(small.values()) if smoke else listed


def main() -> None:
    """Runs all cases for which there is time."""
    parser = turns.parser(__doc__ or "", jobs=16)
    parser.add_argument("--source", default="documentation", help="the text of the batches")
    parser.add_argument("--profiles", type=Path, help="write a trace of a few updates of each case to this folder")
    args = parser.parse_args()
    clock = turns.Clock(args.seconds)
    if args.smoke:
        args.source = str(_SMALL_TEXT)
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling PyTorch's model takes a minute
    with turns.folder_of(args) as folder:
        runner = Runner(folder, args.source, *((1_000, 0.1) if args.smoke else (_VOCAB_SIZE, _TIMING)), args.profiles)
        common.read_config(common.Shape("tiny", 1, 32, runner.vocab_size), runner.data).data(folder).prepare()
        selected = [(dataclasses.asdict(case), (case,)) for case in cases(args.cases, args.smoke)]
        turns.report(runner.run, selected, args, clock, _HEADER, row)


class Runner:
    """Times cases on batches of real text.

    Attributes:
      vocab_size: the size of the vocabulary.
      data: the config values of the text, which must be prepared.
    """

    def __init__(self, folder: Path, source: str, vocab_size: int, timing: float, profiles: Path | None = None) -> None:
        """Initializes with the folders, the source, the vocabulary size, and the seconds per case.

        Args:
          folder: the folder for prepared text and compiled programs.
          source: the text.
          vocab_size: the size of the vocabulary.
          timing: the seconds of each measurement.
          profiles: the folder for traces, if any.
        """
        self._folder, self._timing, self._profiles = folder, timing, profiles
        self.vocab_size = vocab_size
        self.data = {"data.source": source, "data.vocab_size": vocab_size, "data.prepared_dir": str(folder)}

    def run(self, case: Case, turn: turns.Wait) -> dict[str, Any]:
        """Runs a case. Returns its results, or its error."""
        rows = case.rows
        while True:
            result = self._try(case, rows, turn)
            gc.collect()
            jax.clear_caches()
            if not result.get("out_of_memory"):
                return {"machine": common.describe_machine(), **result}
            if rows <= case.rows // 4:
                return {"error": f"out of memory with {rows} rows"}
            rows //= 2

    def _try(self, case: Case, rows: int, turn: turns.Wait) -> dict[str, Any]:
        shape = common.Shape(case.size, rows, case.length, self.vocab_size)
        overrides = {**case.overrides, **self.data}
        try:
            batches = common.real_batches(shape, overrides, self._folder, _BATCHES)
            step, compiled = self._step(case, shape, overrides, batches, turn)
            peak = common.peak_bytes()
            seconds = time_step(step, self._timing)
            memory = step.peak_bytes() if case.torch else common.new_peak_bytes(peak)
            extra = self._profile(case, step)
            if case.name == "ours":  # PyTorch's strong form computes padding
                step.use([common.made_up_batch(batches[0], self.vocab_size)])
                extra["full_rows_seconds"] = time_step(step, self._timing)
        except Exception as error:  # any library can fail; smaller batches may succeed
            message = turns.message(error)
            is_full = "RESOURCE_EXHAUSTED" in message or "out of memory" in message
            return {"out_of_memory": True} if is_full else {"error": message}
        real = statistics.mean(map(common.real_tokens, batches))
        return {
            "batch_size": rows,
            "step_seconds": seconds,
            "compile_seconds": compiled,
            "tokens_per_second": shape.tokens / seconds,
            "real_tokens_per_second": real / seconds,
            "flops_per_second": shape.tokens * shape.flops_per_token() / seconds,
            "memory_bytes": memory,
            **extra,
        }

    def _step(
        self, case: Case, shape: common.Shape, overrides: Mapping[str, Any], batches: Sequence[Any], turn: turns.Wait
    ) -> tuple[Any, float]:
        """Returns the step, `OurStep` or `TorchStep`, and the seconds that it took to compile."""
        if case.torch:
            from benchmarks.torch_peer import TorchStep

            began = time.perf_counter()
            is_strong = case.torch == "strong"
            compiled = is_strong or case.torch == "compiled"
            peer = TorchStep(shape, batches, compiled=compiled, bfloat16=True, strong=is_strong)
            seconds = time.perf_counter() - began
            turn()
            return peer, seconds
        _, config, task, _ = common.read_config(shape, overrides).example()
        seconds = turns.compile_ahead(task, config, self._folder / "programs")
        turn()
        return common.OurStep.of(shape, overrides, batches), seconds

    def _profile(self, case: Case, step: Callable[[int], None]) -> dict[str, Any]:
        if not self._profiles or case.torch:
            return {}
        folder = self._profiles / case.label.replace(", ", "_").replace(" ", "_")
        try:
            with recorded(folder) as events:
                step(_PROFILED)
            return {"kernels": kernels(events, _PROFILED)}
        except Exception as error:  # the measurement is kept
            return {"profile_error": turns.message(error)}


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Writes a trace to a folder. Yields a list, which contains the events of the trace afterwards."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    events: list[dict[str, Any]] = []
    with jax.profiler.trace(folder, profiler_options=options):
        yield events
    newest = max(folder.rglob("*.trace.json.gz"), key=lambda path: path.stat().st_mtime_ns)
    events.extend(json.loads(gzip.decompress(newest.read_bytes()))["traceEvents"])


def kernels(events: Sequence[Mapping[str, Any]], updates: int) -> dict[str, Any]:
    """Returns the milliseconds and the number of kernels in an update on the GPU; none if the device is no GPU.

    Args:
      events: the events of a trace.
      updates: the number of updates in the trace.

    Returns:
      `groups`, by the kind of work; and `longest`, by name.
    """
    threads = [event for event in events if event.get("name") == "thread_name"]
    streams = {(e["pid"], e["tid"]) for e in threads if e["args"]["name"].startswith("Stream #")}
    sums: dict[str, dict[str, list[float]]] = {"groups": {}, "longest": {}}
    for event in events:
        if event.get("ph") == "X" and (event["pid"], event["tid"]) in streams:
            name = event["name"]
            group = next((group for group, pattern in _KERNELS.items() if re.search(pattern, name, re.I)), "other")
            for kind, key in (("groups", group), ("longest", name)):
                total = sums[kind].setdefault(key, [0.0, 0.0])
                total[0] += event["dur"] / 1e3 / updates
                total[1] += 1 / updates
    return {
        kind: dict(sorted(totals.items(), key=lambda item: -item[1][0])[:_LONGEST]) for kind, totals in sums.items()
    }


def time_step(step: Callable[[int], None], seconds: float) -> float:
    """Returns the seconds per step: the median of three series, within which the host does not wait for the device."""
    began = time.perf_counter()
    step(2)
    times = max(1, round(seconds / 3 / ((time.perf_counter() - began) / 2)))
    stretches = []
    for _ in range(3):
        began = time.perf_counter()
        step(times)
        stretches.append((time.perf_counter() - began) / times)
    return statistics.median(stretches)


def row(result: Mapping[str, Any], peak: float) -> list[str]:
    """Returns a table row."""
    label = [f"{result['size']} {result['length']}", str(result.get("batch_size", "-")), result["name"]]
    if "step_seconds" not in result:
        return [*label, turns.obstacle_of(result), *[""] * (len(_HEADER) - 4)]
    flops = result["flops_per_second"]
    return [
        *label,
        f"{1e3 * result['step_seconds']:.1f}",
        f"{result['tokens_per_second']:,.0f}",
        f"{result['real_tokens_per_second']:,.0f}",
        f"{flops / 1e12:.3g}",
        f"{flops / peak:.1%}",
        turns.gibibytes(result),
        f"{result['compile_seconds']:.0f} s",
    ]


if __name__ == "__main__":
    main()
