"""Speed of translation and summarization on one GPU in bfloat16: training (with utilization) and prediction.

    python -m benchmarks.gpu_tasks --output=gpu_tasks.json

The models are the Transformer, base and big, on sentences of Python's documentation, each with the next one as its
translation; BertSum with the Transformer scorer on whole documents, in windows of 512 tokens; and BertSumAbs on the
beginnings of documents. BERT has the size Base. Training takes the batches of the longest rows, so that each case is
one program. Outputs have a fixed number of tokens, independent of the weights. All cases compile at the same time, each
in a process of its own, and are then timed one after another. The output file is updated after each case. `--smoke`
runs everything on small shapes, in minutes on a CPU.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common, turns
from bertjax.configs import bertsum_abs as bertsum_abs_config
from bertjax.configs import bertsum_ext as bertsum_ext_config
from bertjax.configs import translation as translation_config
from bertjax.contract import Batch, TrainingTask
from bertjax.data.readers import documentation
from bertjax.experiments import bertsum_abs, bertsum_ext, translation
from bertjax.training.flops import training_flops

_WARMUP = 4  # updates
_WRITTEN = 30  # tokens of a translation; summaries have PreSumm's minimum of 50
_HEADER = ["what", "batch", "unit", "a second", "TFLOP/s", "of peak", "GiB", "compiled in"]


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

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.name.split(",")[0]

    @property
    def fields(self) -> dict[str, Any]:
        """What the result repeats."""
        return {"name": self.name, "batch_size": self.config.batch_size, "unit": self.unit}


def main() -> None:
    """Runs all cases for which there is time."""
    args = turns.parser(__doc__ or "", jobs=8).parse_args()
    clock, scale, wanted = turns.Clock(args.seconds), SMOKE if args.smoke else FULL, args.cases.split(";")
    with turns.folder_of(args) as folder:
        write_text(folder, 100 if args.smoke else None)
        selected = [case for case in cases(scale, folder) if any(text in case.name for text in wanted)]
        for case in selected:
            common.open_task(case.experiment, case.config, folder / case.model)  # prepares the data
        arguments = [(case.fields, (case.name, scale, folder)) for case in selected]
        turns.report(run, arguments, args, clock, _HEADER, row)


def write_text(folder: Path, most: int | None) -> None:
    """Writes pairs of adjacent paragraphs, and documents with their first paragraph as summary, of Python's library.

    Args:
      folder: the folder of the files.
      most: the number of documents; None for all.
    """
    long = (paragraphs for _, paragraphs in documentation.documents() if len(paragraphs) > 3)
    documents = list(itertools.islice(long, most))
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
    yield from _both(f"BertSum {scale.bert}", bertsum_ext, config, scale, common.real_tokens, 0)
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
    unit = "target tokens" if written else "tokens"
    yield Case(f"{name}, training", experiment, config, True, unit, count, written)
    unit = "tokens written" if written else "articles"
    yield Case(f"{name}, prediction", experiment, config, False, unit, count, written)


def run(name: str, scale: Scale, folder: Path, turn: turns.Wait) -> dict[str, Any]:
    """Runs a case. Returns its results."""
    case = next(case for case in cases(scale, folder) if case.name == name)
    opened = common.open_task(case.experiment, case.config, folder / case.model)
    if case.trains:
        opened = opened._replace(data=LongRows(opened))
        seconds = turns.compile_ahead(opened.task, opened.settings, folder / "programs", opened.data.spec)
        turn()
        result = train(case, scale, opened, seconds)
    else:
        turn()
        result = predict(case, scale, opened)
    return {"machine": common.describe_machine(), **result}


class LongRows:
    """The training batches of the longest rows.

    Attributes:
      spec: the shapes of their arrays.
    """

    def __init__(self, opened: common.Opened) -> None:
        self._data = opened.data
        self.spec = max(opened.task.batch_specs(), key=lambda spec: spec["input_ids"].shape[1])

    def batches(self, split: str, start: int, rows: np.ndarray) -> Iterator[Batch]:
        """Yields those of the data's batches that have the shapes."""
        batches = self._data.batches(split, start, rows)
        return (batch for batch in batches if batch["input_ids"].shape == self.spec["input_ids"].shape)


def train(case: Case, scale: Scale, opened: common.Opened, compile_seconds: float) -> dict[str, Any]:
    """Times updates on the task's own batches, whose program is compiled."""
    task, data, settings, *_ = opened
    peak = common.peak_bytes()
    ours = common.OurTraining(opened, scale.updates, _WARMUP)
    batches = itertools.islice(data.batches("train", 0, np.arange(settings.batch_size)), _WARMUP, None)
    taken = list(itertools.islice(batches, scale.updates))
    seconds = common.seconds_of(ours)
    return {
        "per_second": sum(map(case.count, taken)) / seconds,
        "flops_per_second": flops(task, taken) / seconds,
        "compile_seconds": compile_seconds,
        "memory_bytes": common.new_peak_bytes(peak),
    }


def predict(case: Case, scale: Scale, opened: common.Opened) -> dict[str, Any]:
    """Times prediction with random weights, from texts to records."""
    texts = list(itertools.islice(_texts(case), scale.examples))
    ours = common.OurPrediction(opened, texts)
    units = len(texts) * (case.written or 1)
    return {"per_second": units / common.seconds_of(ours), "compile_seconds": ours.compile_seconds}


def _texts(case: Case) -> Iterator[str]:
    lines = Path(case.config.data.source).read_text().splitlines()
    if case.experiment is translation:
        return (line for line in lines if line)
    return (json.loads(line)["article"].replace("\n", " ") for line in lines)


def count_targets(batch: Batch) -> int:
    """Returns the number of target tokens without padding."""
    return int(np.count_nonzero(batch["target_segment_ids"]))


def flops(task: TrainingTask, batches: Iterable[Batch]) -> float:
    """Returns the operations of an update on each of the batches, including padding; see `training_flops`."""
    specs = Counter(
        tuple((name, jax.ShapeDtypeStruct(array.shape, array.dtype)) for name, array in batch.items())
        for batch in batches
    )
    return sum(count * training_flops(task, dict(spec)) for spec, count in specs.items())


def row(result: Mapping[str, Any], peak: float) -> list[str]:
    """Returns a table row."""
    label = [result["name"], str(result["batch_size"]), result["unit"]]
    if "per_second" not in result:
        return [*label, turns.obstacle_of(result), *[""] * (len(_HEADER) - 4)]
    flops = result.get("flops_per_second")
    share = ["", ""] if flops is None else [f"{flops / 1e12:.3g}", f"{flops / peak:.1%}"]
    return [
        *label,
        f"{result['per_second']:,.1f}",
        *share,
        turns.gibibytes(result),
        f"{result['compile_seconds']:.0f} s",
    ]


if __name__ == "__main__":
    main()
