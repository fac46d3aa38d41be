"""A table of the plans of BERT on TPUs and GPUs, and of modern encoders on GPUs, made with `--mode=plan`.

    python -m benchmarks.plans --folder=plans

The benchmark compiles the cases that have no file in the folder yet, so repeating the command resumes it.
`--cases='large.*v5e'` selects cases by a pattern. It needs no TPU and no GPU, but the extras `plan` (libtpu) and `gpu`.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import table
from bertjax.tools.planning.targets import num_devices

_TOPOLOGIES = ("v5e:4x4", "v5e:16x16", "v5p:4x4x4", "v6e:8x8", "h100:1", "h100:8", "h100:4x8")
_MODERN = ("ettin_17m", "ettin_32m", "ettin_68m", "ettin_150m", "modernbert_base", "modernbert_large")
# Size, tokens of a row, and topology; rows of BERT have one instance, those of modern encoders are packed.
_CASES = (
    *itertools.product(("base", "large"), (128, 512), _TOPOLOGIES),
    *itertools.product(("base", "large"), ("packed",), ("h100:1", "h100:8")),
    *itertools.product(_MODERN, (1024,), ("h100:1", "h100:8")),
)
# libtpu 0.0.42.1 crashes on this case with rematerialization, with 16 and 32 rows. It is planned with half the rows.
_CRASHES = ("large", 512, "v6e:8x8")
_COLUMNS = ("case", "memory, GiB", "ms", "bound", "compute", "memory", "links", "of peak", "tokens/s", "compiler, ms")


def command(size: str, rows: int | str, topology: str) -> list[str]:
    """Returns the command that plans a size: bfloat16, no dropout of attention weights.

    A TPU chip has 8,192 tokens per step, scanned layers, and rematerializes Large; a GPU has 32,768 tokens.

    Args:
      size: the size.
      rows: the tokens of a row, or "packed" for rows of 512 tokens with several instances.
      topology: the devices.
    """
    length = 512 if rows == "packed" else int(rows)
    variant = f"{size},phase2" if length == 512 else size
    crashes = (size, length, topology) == _CRASHES
    is_tpu = topology.startswith("v")
    tokens = 8192 if is_tpu else 32_768
    values = {
        "model.dtype": "bfloat16",
        "model.attention_dropout": 0.0,
        "model.scan_layers": is_tpu,
        "model.remat": "norms" if size == "large" and is_tpu and not crashes else "none",
        "data.packing": rows == "packed" or size in _MODERN,
        "batch_size": tokens // length * num_devices(topology) // (2 if crashes else 1),
    }
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    config = f"--config=configs/bert_pretraining.py:{variant}"
    return ["launch.py", "--mode=plan", config, f"--topology={topology}", *flags]


def row(name: str, record: Mapping[str, Any]) -> list[str]:
    """Returns a table row."""
    memory = f"{record['bytes_per_device']['total'] / 2**30:.1f} of {record['hbm_bytes'] / 2**30:.1f}"
    if not record["fits"]:
        return [name, memory, "does not fit", *[""] * (len(_COLUMNS) - 3)]
    seconds = record["seconds"]
    by_compiler = record["compiler_seconds"]
    return [
        name,
        memory,
        f"{1e3 * record['step_seconds']:.1f}",
        record["bound"],
        *(f"{1e3 * seconds[resource]:.1f}" for resource in ("compute", "memory", "interconnect")),
        f"{record['utilization']:.0%}",
        f"{record['tokens_per_second']:,.0f}",
        f"{1e3 * by_compiler:.1f}" if by_compiler else "-",
    ]


def main(arguments: Sequence[str]) -> None:
    """Plans the cases that have no file, and prints the table of all plans."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the plans")
    parser.add_argument("--cases", default="", help="a pattern of case names (SIZE ROWS TOPOLOGY) to plan")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for size, rows, topology in _CASES:
        name = f"{size} {rows} {topology}"
        path = args.folder / (re.sub(r"\W", "_", name) + ".json")
        if not path.exists() and re.search(args.cases, name):
            done = subprocess.run([sys.executable, *command(size, rows, topology), f"--output={path}"], check=False)
            if not path.exists():  # the compiler may crash; the other cases continue
                lines.append([name, f"no plan: status {done.returncode}", *[""] * (len(_COLUMNS) - 2)])
        if path.exists():
            lines.append(row(name, json.loads(path.read_text())))
    print(table(_COLUMNS, lines))


if __name__ == "__main__":
    main(sys.argv[1:])
