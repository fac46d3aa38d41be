"""Speed of the bfloat16 pretraining step on one GPU in under nine minutes: tokens/s and model FLOPs utilization.

    python -m benchmarks.gpu --output=gpu.json

The cases are BERT-Base and -Large at lengths 128 and 512, with one instance per row and with packed rows; scanned and
unrolled layers, with and without rematerialization, both kinds of random keys; and `transformers.BertForPreTraining` if
PyTorch is installed and detects the GPU. The table also has what a plan predicts of each case. The output file is
updated after each case. Cases for which no time is left are listed. `--smoke` runs everything on small shapes, in a
minute or two on a CPU.
"""

import argparse
import dataclasses
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import common, prediction

_PEAK = 989.5e12  # dense bfloat16 operations per second of an H100 or H200 (data sheet)
_VOCAB_SIZE = 30_522
_BATCHES = 4  # used in turn
_TIMING = 3.0  # seconds
# Size, length, batch sizes to try without and with rematerialization.
Batches = Sequence[tuple[str, int, tuple[int, ...], tuple[int, ...]]]
# Scanned layers, because unrolled ones would spend most of the time on compilation.
_BFLOAT16 = {"model.dtype": "bfloat16", "model.scan_layers": True}
_PACKED = {"data.packing": True}
_RBG = {"rng": "rbg"}
# Flash attention does not support dropout on attention weights.
_FLASH = {"model.attention_dropout": 0.0}  # attention_backend=auto: cuDNN, or XLA for packed rows
_HEADER = ["model", "batch", "contender", "tokens/s", "real tokens/s", "TFLOP/s", "of peak", "compiled in"]
_HEADER += prediction.HEADER


@dataclasses.dataclass(frozen=True)
class Case:
    """A case to time.

    Attributes:
      name: the name of the contender.
      size, length: the size of the model and the length of its rows.
      rows: batch sizes to try, largest first; the first that fits into memory is used.
      overrides: config values by dotted key; `data.*` determine the batches.
      torch: "" for ours, or "eager" or "compiled".
      expected_seconds: the case is skipped if less time is left.
    """

    name: str
    size: str
    length: int
    rows: tuple[int, ...]
    overrides: Mapping[str, Any]
    torch: str = ""
    expected_seconds: int = 40


def cases(batches: Batches, smoke: bool) -> list[Case]:
    """Returns our cases, most important first; a smoke test has no flash attention, which needs a GPU."""
    found = []
    for size, length, rows, _ in batches:
        found.append(Case("ours", size, length, rows, _BFLOAT16))
        found.append(Case("ours, packed", size, length, rows, _BFLOAT16 | _PACKED))
    for size, length, rows, _ in batches[:2]:
        found.append(Case("ours, rbg", size, length, rows, _BFLOAT16 | _RBG))
        flash = _BFLOAT16 | _FLASH
        if not smoke:
            found.append(Case("ours, flash", size, length, rows, flash))
            found.append(Case("ours, packed, no attention dropout", size, length, rows, flash | _PACKED))
    for size, length, _, rows in batches:
        found.append(Case("ours, remat", size, length, rows, _BFLOAT16 | {"model.remat": "norms"}))
    for size, length, rows, _ in batches[:2]:
        unrolled = _BFLOAT16 | {"model.scan_layers": False}
        found.append(Case("ours, unrolled", size, length, rows, unrolled, expected_seconds=100))
        found.append(Case("ours, unrolled, rbg", size, length, rows, unrolled | _RBG, expected_seconds=100))
    return found


def torch_cases(batches: Batches, smoke: bool) -> list[Case]:
    """Returns the cases of PyTorch; a smoke test does not compile, which takes a minute."""
    return [
        Case(f"transformers, {torch}", size, length, rows, _BFLOAT16, torch=torch, expected_seconds=seconds)
        for torch, seconds in (("eager", 20), ("compiled", 90))
        for size, length, rows, _ in batches[:2]
        if not (smoke and torch == "compiled")
    ]


# Variants are timed for the first two.
FULL = (
    ("large", 512, (64, 32, 16), (256, 128)),
    ("base", 512, (128, 64, 32), (512, 256)),
    ("large", 128, (384, 192, 96), (1024, 512)),
    ("base", 128, (1024, 512, 256), (2048, 1024)),
)
SMOKE = (("tiny", 32, (4,), (8,)),)


def main() -> None:
    """Runs all cases for which there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--source", default="documentation", help="the text of the batches")
    parser.add_argument("--seconds", type=float, default=510.0, help="no case starts after this time")
    parser.add_argument("--peak", type=float, default=_PEAK, help="operations per second that count as 100 %%")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    # PyTorch runs first and then frees its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    batches = SMOKE if args.smoke else FULL
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(args.seconds)
        runner = Runner(Path(folder), args.source, 1_000 if args.smoke else _VOCAB_SIZE, 0.1 if args.smoke else _TIMING)
        results, reason = [], torch_reason(args.smoke)
        print(f"PyTorch: {reason or 'included'}", flush=True)
        for case in ([] if reason else torch_cases(batches, args.smoke)) + cases(batches, args.smoke):
            # PyTorch gets at most a third of the time.
            late = clock.left() < case.expected_seconds or (case.torch and clock.used() > args.seconds / 3)
            result = {"skipped": "no time left"} if late else runner.run(case)
            results.append({**dataclasses.asdict(case), **result})
            print(f"{clock.used():4.0f} s  {describe(results[-1], args.peak)}", flush=True)
            args.output.write_text(json.dumps({"peak": args.peak, "results": results}, indent=1))
        machine = common.describe_machine()
        args.output.write_text(
            json.dumps({"machine": machine, "pytorch": reason, "peak": args.peak, "results": results}, indent=1)
        )
    print(f"\n{machine}; bfloat16\n\n" + common.table(_HEADER, [row(result, args.peak) for result in results]))
    if args.smoke and any("error" in result for result in results):
        sys.exit("error: a case failed")


class Clock:
    """The used and the remaining time."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    def used(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self._began

    def left(self) -> float:
        """Returns the remaining seconds."""
        return self._seconds - self.used()


class Runner:
    """Times cases on batches of real text, which it prepares once."""

    def __init__(self, folder: Path, source: str, vocab_size: int, timing: float) -> None:
        """Initializes with the folder for prepared text, the source, the vocabulary size, and the seconds per case."""
        self._folder, self._vocab_size, self._timing = folder, vocab_size, timing
        self._data = {"data.source": source, "data.vocab_size": vocab_size, "data.prepared_dir": str(folder)}

    def run(self, case: Case) -> dict[str, Any]:
        """Runs a case. Returns its results, or its error."""
        result: dict[str, Any] = {}
        for rows in case.rows:
            result = self._try(case, rows)
            gc.collect()
            jax.clear_caches()
            if not result.get("out_of_memory"):
                return result
        return {"error": f"out of memory with {case.rows[-1]} rows"}

    def _try(self, case: Case, rows: int) -> dict[str, Any]:
        shape = common.Shape(case.size, rows, case.length, self._vocab_size)
        overrides = {**case.overrides, **self._data}
        try:
            batches = common.real_batches(shape, overrides, self._folder, _BATCHES)
            peak, began = prediction.peak_bytes(), time.perf_counter()
            step = self._step(case, shape, overrides, batches)
            compiled = time.perf_counter() - began
            seconds = time_step(step, self._timing)
        except Exception as error:  # any library can fail; the other cases continue
            message = " ".join(str(error).split()) or type(error).__name__
            if "RESOURCE_EXHAUSTED" in message or "out of memory" in message:
                return {"out_of_memory": True}
            return {"error": message[:300]}
        real = statistics.mean(map(common.real_tokens, batches))
        return {
            "batch_size": rows,
            "step_seconds": seconds,
            "first_step_seconds": compiled,
            "tokens_per_second": shape.tokens / seconds,
            "real_tokens_per_second": real / seconds,
            "flops_per_second": shape.tokens * shape.flops_per_token() / seconds,
            **({} if case.torch else prediction.compare(batches[:1], seconds, peak)),
        }

    def _step(
        self, case: Case, shape: common.Shape, overrides: Mapping[str, Any], batches: Sequence[Any]
    ) -> Callable[[int], None]:
        if not case.torch:
            return common.OurStep(shape, overrides, batches)
        from benchmarks.torch_peer import TorchStep

        return TorchStep(shape, batches, compiled=case.torch == "compiled", bfloat16=True)


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


def torch_reason(smoke: bool) -> str:
    """Returns why PyTorch is not included; "" if it is."""
    if not (common.has_module("torch") and common.has_module("transformers")):
        return "not included: torch or transformers is not installed"
    import torch

    return "" if smoke or torch.cuda.is_available() else "not included: torch does not detect a GPU"


def row(result: Mapping[str, Any], peak: float) -> list[str]:
    """Returns a table row."""
    label = [f"{result['size']} {result['length']}", str(result.get("batch_size", "-")), result["name"]]
    if "step_seconds" not in result:
        return [*label, str(result.get("error") or result.get("skipped"))[:60], *[""] * (len(_HEADER) - 4)]
    flops = result["flops_per_second"]
    return [
        *label,
        f"{result['tokens_per_second']:,.0f}",
        f"{result['real_tokens_per_second']:,.0f}",
        f"{flops / 1e12:.3g}",
        f"{flops / peak:.1%}",
        f"{result['first_step_seconds']:.0f} s",
        *prediction.cells(result),
    ]


def describe(result: Mapping[str, Any], peak: float) -> str:
    """Returns a line of progress output with the cells of the table row."""
    return ", ".join(cell for cell in row(result, peak) if cell)


if __name__ == "__main__":
    main()
