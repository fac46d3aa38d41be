"""Speed of fine-tuning and prediction with a published encoder, compared with transformers, on a CPU or a GPU.

    BERTJAX_DATA=FOLDER python -m benchmarks.fine_tuning --init_from=BERT_FOLDER --rounds=6

Training is compared with the `Trainer`, and prediction with the pipeline. Both train on the same rows of MRPC and SST-2
with batch size 32, dropout and AdamW, in float32 or with `--dtype=bfloat16`, which is autocast in training and
bfloat16 weights in prediction for transformers. Reading, encoding and padding are included: ours batches by length,
theirs uses dynamic padding. Then both label the same texts; their batch size is the best of several. Rounds are
interleaved in one process. Compilation time is listed separately.
"""

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax

from benchmarks import common
from bertjax.config import part
from bertjax.configs import classification as config_file
from bertjax.data.fine_tuning import labeled_text
from bertjax.data.fine_tuning.labeled_text import LabeledText, LabeledTextConfig
from bertjax.experiments import classification
from bertjax.training import sharding
from bertjax.training.compilation import Compilations
from bertjax.training.inference import Predictor
from bertjax.training.loop import Trainer

_FILES = {"mrpc": ("mrpc/train.tsv", "mrpc/dev.tsv"), "sst2": ("sst2/train.tsv.gz", "sst2/dev.tsv")}
_BATCH_SIZES = (1, 8, 32, 64)
_WARMUP = 120  # about an epoch of MRPC
_HEADER = ["work", "ours, examples/s", "transformers, examples/s", "ratio", "our compilation"]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--init_from", required=True, help="a Hugging Face folder of a BERT encoder")
    parser.add_argument("--tasks", nargs="+", choices=tuple(_FILES), default=tuple(_FILES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=30, help="updates of a round")
    parser.add_argument("--texts", type=int, default=5000, help="texts to predict")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    if "BERTJAX_DATA" not in os.environ:
        sys.exit("error: set BERTJAX_DATA to the folder with mrpc and sst2")
    print(f"{common.describe_machine()}; {args.dtype}; {args.rounds} rounds\n", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.tasks:
            rows.append(train(name, args, Path(folder)))
            print(rows[-1], flush=True)
        rows.append(predict(args, Path(folder)))
    print("\n" + common.table(_HEADER, rows))
    print(f"\nLoad average at the end {common.load_average()}")


def train(name: str, args: argparse.Namespace, folder: Path) -> list[str]:
    """Returns a table row: in each round, `args.updates` of our updates, then of theirs."""
    from benchmarks.torch_fine_tuning import TorchTraining

    opened, rows = make(name, args, folder)
    settings = opened.settings
    ours = common.OurTraining(opened, args.updates, _WARMUP)
    recipe = settings.batch_size, settings.optimizer.learning_rate, args.updates, args.dtype == "bfloat16"
    theirs = TorchTraining(args.init_from, rows, *recipe)
    seconds = common.interleave({"ours": ours, "theirs": theirs}, args.rounds)
    return row(f"training {name}", args.updates * settings.batch_size, seconds, ours.compile_seconds)


def predict(args: argparse.Namespace, folder: Path) -> list[str]:
    """Returns a table row: prediction of labels for the first training rows of SST-2."""
    from benchmarks.torch_fine_tuning import TorchPrediction

    (task, _, settings, _, published), rows = make("sst2", args, folder)
    texts = [row.first for row in rows[: args.texts]]
    trainer = Trainer(task, settings, jax.devices()[:1], published)
    params = trainer.fresh().params
    predictor = Predictor(task, sharding.make_mesh(settings.mesh, jax.devices()[:1]))

    def ours() -> None:
        for example, outputs in predictor(params, task.examples(iter(texts))):
            task.record(example, outputs)

    with Compilations() as compiled:
        ours()
    theirs = TorchPrediction(args.init_from, texts, args.dtype == "bfloat16")
    timed = {size: seconds_of(functools.partial(theirs, size)) for size in _BATCH_SIZES}
    best = min(timed, key=timed.__getitem__)
    seconds = common.interleave({"ours": ours, "theirs": lambda: theirs(best)}, args.rounds)
    return row(f"predicting {len(texts)} texts, their batch size {best}", len(texts), seconds, compiled.seconds)


def row(work: str, examples: int, seconds: dict[str, list[float]], compile_seconds: float) -> list[str]:
    """Returns a table row."""
    speeds = {name: [examples / s for s in values] for name, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    cells = [common.spread(speeds["ours"], 0), common.spread(speeds["theirs"], 0), common.spread(ratios, 2)]
    return [work, *cells, f"{compile_seconds:.0f} s"]


def make(name: str, args: argparse.Namespace, folder: Path) -> tuple[common.Opened, list[LabeledText]]:
    """Builds a task as `launch.py` does. Returns it and its training rows."""
    data = Path(os.environ["BERTJAX_DATA"])
    config = config_file.get_config(f"{name},tsv")
    config.init_from, config.model.dtype = args.init_from, args.dtype
    config.data.source, config.data.valid_source = (str(data / file) for file in _FILES[name])
    config.num_steps = 10**6  # more than the benchmark makes
    opened = common.open_task(classification, config, folder / name)
    text = part(LabeledTextConfig, opened.keys.data)
    return opened, list(labeled_text.read(text, text.source, "data.source", False))


def seconds_of(call: Callable[[], None]) -> float:
    """Returns the duration of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
