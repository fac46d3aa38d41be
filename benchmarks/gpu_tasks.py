"""Speed of translation and summarization on one GPU in bfloat16: training (with utilization) and prediction.

    python -m benchmarks.gpu_tasks --output=gpu_tasks.json

The models are the Transformer, base and big, on sentences of Python's documentation, each with the next one as its
translation; BertSum with the Transformer scorer on whole documents, in windows of 512 tokens; and BertSumAbs on the
beginnings of documents. BERT has the size Base. Outputs have a fixed number of tokens, independent of the weights. The
table also has what a plan predicts of each training case. The output file is updated after each case. Cases for which
no time is left are listed. `--smoke` runs everything on small shapes, in minutes on a CPU.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common, prediction
from benchmarks.gpu import Clock
from bertjax.configs import bertsum_abs as bertsum_abs_config
from bertjax.configs import bertsum_ext as bertsum_ext_config
from bertjax.configs import translation as translation_config
from bertjax.contract import Batch, Task
from bertjax.data.readers import documentation
from bertjax.experiments import bertsum_abs, bertsum_ext, translation
from bertjax.planning.flops import training_flops
from bertjax.training import sharding
from bertjax.training.compilation import Compilations
from bertjax.training.inference import Predictor
from bertjax.training.loop import Trainer

_PEAK = 989.5e12  # dense bfloat16 operations per second of an H100 or H200 (data sheet)
_WRITTEN = 30  # tokens of a translation; summaries have PreSumm's minimum of 50
_HEADER = ["what", "batch", "unit", "a second", "TFLOP/s", "of peak", "compiled in", *prediction.HEADER]


class Scale(NamedTuple):
    """The sizes of models, batches and data."""

    translators: tuple[str, ...]
    bert: str
    pairs: int  # rows of the maximum length in a batch
    rows: int  # rows of 512 tokens in a batch
    updates: int
    examples: int  # examples to predict
    vocab_size: int


FULL = Scale(("base", "big"), "base", 256, 64, 60, 500, 30_000)
SMOKE = Scale(("tiny",), "tiny", 4, 2, 2, 2, 2000)


class Case(NamedTuple):
    """A case to time."""

    name: str
    experiment: Any
    config: ConfigDict
    trains: bool
    unit: str  # the unit that `count` counts
    count: Callable[[Batch], int]
    written: int  # tokens of an output; 0 for extractive summaries


def main() -> None:
    """Runs all cases for which there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--seconds", type=float, default=510.0, help="no case starts after this time")
    parser.add_argument("--peak", type=float, default=_PEAK, help="operations per second that count as 100 %%")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    clock, results, scale = Clock(args.seconds), [], SMOKE if args.smoke else FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        for case in cases(scale, folder):
            result = {"error": "no time left"} if clock.left() < 45 else attempt(case, scale, folder)
            results.append({"name": case.name, "batch_size": case.config.batch_size, "unit": case.unit, **result})
            print(f"{clock.used():4.0f} s  {results[-1]}", flush=True)
            args.output.write_text(
                json.dumps({"machine": common.describe_machine(), "peak": args.peak, "results": results}, indent=1)
            )
    print(f"\n{common.describe_machine()}; bfloat16\n\n" + common.table(_HEADER, [row(r, args.peak) for r in results]))
    if args.smoke and any("error" in result for result in results):
        sys.exit("error: a case failed")


def write_text(folder: Path) -> None:
    """Writes pairs of adjacent paragraphs, and documents with their first paragraph as summary, of Python's library."""
    documents = [paragraphs for _, paragraphs in documentation.documents() if len(paragraphs) > 3]
    pairs = [pair for paragraphs in documents for pair in itertools.pairwise(paragraphs)]
    for number, side in enumerate(("source", "target")):
        (folder / f"{side}.txt").write_text("".join(pair[number] + "\n" for pair in pairs))
    articles = ({"article": "\n".join(rest), "summary": first} for first, *rest in documents)
    (folder / "articles.jsonl").write_text("".join(json.dumps(article) + "\n" for article in articles))


def cases(scale: Scale, folder: Path) -> Iterator[Case]:
    """Yields all cases, training before prediction of each model."""
    for size in scale.translators:
        config = translation_config.get_config(size)
        config.data.update({"source": str(folder / "source.txt"), "target": str(folder / "target.txt")})
        config.data.update({"vocab_size": scale.vocab_size, "seq_len": 128})
        config.decoding.update({"max_extra": _WRITTEN + 1, "max_ratio": 0.0, "min_extra": _WRITTEN})
        yield from _both(f"translation {size}", translation, config, scale, count_targets, _WRITTEN)
    config = bertsum_ext_config.get_config(f"{scale.bert},transformer")
    config = _read(config, scale, folder)
    yield from _both(f"BertSum {scale.bert}", bertsum_ext, config, scale, count_articles, 0)
    config = bertsum_abs_config.get_config(scale.bert)
    config.decoding.max_extra = config.decoding.min_extra + 1
    config = _read(config, scale, folder)
    written = config.decoding.min_extra
    yield from _both(f"BertSumAbs {scale.bert}", bertsum_abs, config, scale, count_targets, written)


def _read(config: ConfigDict, scale: Scale, folder: Path) -> ConfigDict:
    config.data.source = config.data.valid_source = str(folder / "articles.jsonl")
    config.data.vocab_size = scale.vocab_size
    return config


def _both(name: str, experiment: Any, config: ConfigDict, scale: Scale, count: Any, written: int) -> Iterator[Case]:
    config.model.dtype = "bfloat16"
    config.num_steps = 10**6  # more than the benchmark makes
    config.batch_size = scale.pairs if experiment is translation else scale.rows
    unit = "target tokens" if written else "articles"
    yield Case(f"{name}, training", experiment, config, True, unit, count, written)
    unit = "tokens written" if written else "articles"
    yield Case(f"{name}, prediction", experiment, config, False, unit, count, written)


def attempt(case: Case, scale: Scale, folder: Path) -> dict[str, Any]:
    """Runs a case. Returns its results, or its error, so that the other cases continue."""
    try:
        opened = common.open_task(case.experiment, case.config, folder / case.name.split(",")[0])
        return (train if case.trains else predict)(case, scale, opened)
    except Exception as error:
        return {"error": (" ".join(str(error).split()) or type(error).__name__)[:300]}


def train(case: Case, scale: Scale, opened: common.Opened) -> dict[str, Any]:
    """Times updates on the task's own batches, after all their shapes are compiled."""
    task, data, settings, _ = opened
    warmup, peak = 4 * len(task.batch_specs()), prediction.peak_bytes()
    ours = common.OurTraining(opened, scale.updates, warmup)
    batches = data.batches("train", warmup, np.arange(settings.batch_size))
    taken = list(itertools.islice(batches, scale.updates))
    seconds = _seconds(ours)
    return {
        "per_second": sum(map(case.count, taken)) / seconds,
        "flops_per_second": flops(task, taken) / seconds,
        "compile_seconds": ours.compile_seconds,
        **prediction.compare(taken, seconds, peak),
    }


def predict(case: Case, scale: Scale, opened: common.Opened) -> dict[str, Any]:
    """Times prediction with random weights, from texts to records."""
    task, _, settings, _ = opened
    texts = list(itertools.islice(_texts(case), scale.examples))
    params = Trainer(task, settings, jax.devices()[:1]).fresh().params
    predictor = Predictor(task, sharding.make_mesh(settings.mesh, jax.devices()[:1]))

    def ours() -> None:
        for example, outputs in predictor(params, task.examples(iter(texts))):
            task.record(example, outputs)

    with Compilations() as compiled:
        ours()
    return {"per_second": len(texts) * (case.written or 1) / _seconds(ours), "compile_seconds": compiled.seconds}


def _texts(case: Case) -> Iterator[str]:
    lines = Path(case.config.data.source).read_text().splitlines()
    if case.experiment is translation:
        return (line for line in lines if line)
    return (json.loads(line)["article"].replace("\n", " ") for line in lines)


def count_targets(batch: Batch) -> int:
    """Returns the number of target tokens without padding."""
    return int(np.count_nonzero(batch["target_segment_ids"]))


def count_articles(batch: Batch) -> int:
    """Returns the number of articles that start in a batch."""
    return int(np.count_nonzero(batch["segment_ids"].any(axis=1) & (batch["first_sentences"] == 0)))


def flops(task: Task, batches: Iterable[Batch]) -> float:
    """Returns the operations of an update on each of the batches, including padding; see `training_flops`."""
    specs = Counter(
        tuple((name, jax.ShapeDtypeStruct(array.shape, array.dtype)) for name, array in batch.items())
        for batch in batches
    )
    return sum(count * training_flops(task, dict(spec)) for spec, count in specs.items())


def row(result: Mapping[str, Any], peak: float) -> list[str]:
    """Returns a table row."""
    label = [result["name"], str(result["batch_size"]), result["unit"]]
    if "error" in result:
        return [*label, result["error"][:60], *[""] * (len(_HEADER) - 4)]
    flops = result.get("flops_per_second")
    share = ["", ""] if flops is None else [f"{flops / 1e12:.3g}", f"{flops / peak:.1%}"]
    return [
        *label,
        f"{result['per_second']:,.1f}",
        *share,
        f"{result['compile_seconds']:.0f} s",
        *prediction.cells(result),
    ]


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
