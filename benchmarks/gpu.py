"""Speed of the bfloat16 training step on one GPU, in under nine minutes: tokens/s and model FLOPs utilization.

    python -m benchmarks.gpu --output=gpu.json

BERT-Base and -Large at lengths 128 and 512: one instance in a row and packed; scanned and unrolled layers, with and
without rematerialization, random keys of both kinds; and `transformers.BertForPreTraining` on PyTorch beside them if
there is a PyTorch that sees the GPU. Results are written after each case, and cases for which no time is left are
named. `--smoke` runs the whole of it on shapes that a CPU does in a minute or two.
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

from benchmarks import common

_PEAK = 989.5e12  # dense bfloat16 operations a second of an H100 or H200, by the data sheet
_VOCAB_SIZE = 30_522
_BATCHES = 4  # taken in turn
_TIMING = 3.0  # seconds
# Size, length, rows to try without and with rematerialization.
Batches = Sequence[tuple[str, int, tuple[int, ...], tuple[int, ...]]]
# Scanned, so that most of the time is not spent on compiling.
_BFLOAT16 = {"model.dtype": "bfloat16", "model.scan_layers": True}
_PACKED = {"data.packing": True}
_RBG = {"rng": "rbg"}
# Without dropout on attention weights, which flash attention does not have.
_FLASH = {"model.attention_backend": "cudnn", "model.attention_dropout": 0.0}
_HEADER = ["model", "batch", "contender", "tokens/s", "real tokens/s", "TFLOP/s", "of peak", "compiled in"]


@dataclasses.dataclass(frozen=True)
class Case:
    """What to time.

    Attributes:
      name: of the contender.
      size, length: of the model and its rows.
      rows: batch sizes to try, largest first; the first that fits the memory counts.
      overrides: config values by dotted key, of which `data.*` say what the batches are.
      torch: "" for ours, or "eager" or "compiled".
      expected_seconds: without so much time left, it is skipped.
    """

    name: str
    size: str
    length: int
    rows: tuple[int, ...]
    overrides: Mapping[str, Any]
    torch: str = ""
    expected_seconds: int = 40


def cases(batches: Batches, smoke: bool) -> list[Case]:
    """Ours, the most important first; without flash attention in a smoke test, which may have no GPU."""
    found = []
    for size, length, rows, _ in batches:
        found.append(Case("ours", size, length, rows, _BFLOAT16))
        found.append(Case("ours, packed", size, length, rows, _BFLOAT16 | _PACKED))
    for size, length, rows, _ in batches[:2]:
        found.append(Case("ours, rbg", size, length, rows, _BFLOAT16 | _RBG))
        flash = _BFLOAT16 | _FLASH
        if not smoke:
            found.append(Case("ours, flash", size, length, rows, flash))
            found.append(Case("ours, flash, packed", size, length, rows, flash | _PACKED))
    for size, length, _, rows in batches:
        found.append(Case("ours, remat", size, length, rows, _BFLOAT16 | {"model.remat": True}))
    for size, length, rows, _ in batches[:2]:
        unrolled = _BFLOAT16 | {"model.scan_layers": False}
        found.append(Case("ours, unrolled", size, length, rows, unrolled, expected_seconds=100))
        found.append(Case("ours, unrolled, rbg", size, length, rows, unrolled | _RBG, expected_seconds=100))
    return found


def torch_cases(batches: Batches, smoke: bool) -> list[Case]:
    """Those of the peer; without the minute of compiling in a smoke test."""
    return [
        Case(f"transformers, {torch}", size, length, rows, _BFLOAT16, torch=torch, expected_seconds=seconds)
        for torch, seconds in (("eager", 20), ("compiled", 90))
        for size, length, rows, _ in batches[:2]
        if not (smoke and torch == "compiled")
    ]


# The first two are the ones whose variants are timed too.
FULL = (
    ("large", 512, (64, 32, 16), (256, 128)),
    ("base", 512, (128, 64, 32), (512, 256)),
    ("large", 128, (384, 192, 96), (1024, 512)),
    ("base", 128, (1024, 512, 256), (2048, 1024)),
)
SMOKE = (("tiny", 32, (4,), (8,)),)


def main() -> None:
    """Runs all cases, as far as the time goes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--source", default="documentation", help="text whose lengths the batches have")
    parser.add_argument("--seconds", type=float, default=510.0, help="after which no case is begun")
    parser.add_argument("--peak", type=float, default=_PEAK, help="operations a second that count as 100 %%")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    # All of the memory that PyTorch, which goes first, gives back.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    batches = SMOKE if args.smoke else FULL
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(args.seconds)
        runner = Runner(Path(folder), args.source, 1_000 if args.smoke else _VOCAB_SIZE, 0.1 if args.smoke else _TIMING)
        results, reason = [], torch_reason(args.smoke)
        print(f"PyTorch: {reason or 'timed too'}", flush=True)
        for case in ([] if reason else torch_cases(batches, args.smoke)) + cases(batches, args.smoke):
            # PyTorch may have a third of the time.
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
    """How much of the time is used."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    def used(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def left(self) -> float:
        """Seconds that are left."""
        return self._seconds - self.used()


class Runner:
    """Times cases on batches of real text, which is prepared once."""

    def __init__(self, folder: Path, source: str, vocab_size: int, timing: float) -> None:
        """Args: where text is prepared; its source; tokens of the vocabulary; seconds to time a case for."""
        self._folder, self._vocab_size, self._timing = folder, vocab_size, timing
        self._data = {"data.source": source, "data.vocab_size": vocab_size, "data.prepared_dir": str(folder)}

    def run(self, case: Case) -> dict[str, Any]:
        """What a case came to: figures, or why there are none."""
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
            began = time.perf_counter()
            step = self._step(case, shape, overrides, batches)
            compiled = time.perf_counter() - began
            seconds = time_step(step, self._timing)
        except Exception as error:  # the other cases shall go on, whatever library it comes from
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
        }

    def _step(
        self, case: Case, shape: common.Shape, overrides: Mapping[str, Any], batches: Sequence[Any]
    ) -> Callable[[int], None]:
        if not case.torch:
            return common.OurStep(shape, overrides, batches)
        from benchmarks.torch_peer import TorchStep

        return TorchStep(shape, batches, compiled=case.torch == "compiled", bfloat16=True)


def time_step(step: Callable[[int], None], seconds: float) -> float:
    """Seconds of a step: the median of three stretches, within which the host does not wait for the device."""
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
    """Why PyTorch is not timed; empty if it is."""
    if not (common.has_module("torch") and common.has_module("transformers")):
        return "not timed: torch or transformers is not installed"
    import torch

    return "" if smoke or torch.cuda.is_available() else "not timed: torch does not see a GPU"


def row(result: Mapping[str, Any], peak: float) -> list[str]:
    """A line of the table."""
    label = [f"{result['size']} {result['length']}", str(result.get("batch_size", "-")), result["name"]]
    if "step_seconds" not in result:
        return [*label, str(result.get("error") or result.get("skipped"))[:60], "", "", "", ""]
    flops = result["flops_per_second"]
    return [
        *label,
        f"{result['tokens_per_second']:,.0f}",
        f"{result['real_tokens_per_second']:,.0f}",
        f"{flops / 1e12:.3g}",
        f"{flops / peak:.1%}",
        f"{result['first_step_seconds']:.0f} s",
    ]


def describe(result: Mapping[str, Any], peak: float) -> str:
    """The same for people who wait."""
    return ", ".join(cell for cell in row(result, peak) if cell)


if __name__ == "__main__":
    main()
