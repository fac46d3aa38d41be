"""Speed of fine-tuning and prediction with an encoder, compared with transformers, on a CPU or a GPU.

    BERTJAX_DATA=FOLDER python -m benchmarks.fine_tuning --init_from=BERT_FOLDER --rounds=6

Without `--init_from`, the encoder is BERT-Base with random weights, on which the speed does not depend.
Training is compared with the `Trainer`, and prediction with the pipeline. Both train on the same rows of MRPC and SST-2
with batch size 32, dropout and AdamW, in float32 or with `--dtype=bfloat16`, which is autocast in training and
bfloat16 weights in prediction for transformers. Reading, encoding and padding are included: ours batches by length,
theirs uses dynamic padding. Then both label the same texts; their batch size is the best of several. Rounds are
interleaved in one process. Compilation time is listed separately. `--smoke` runs a small encoder once.
"""

import argparse
import functools
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import common, turns
from benchmarks.common import Speed
from bertjax.configs import classification as config_file
from bertjax.data.codecs.labeled_text import LabeledText
from bertjax.experiments import classification

_FILES = {"mrpc": ("mrpc/train.tsv", "mrpc/dev.tsv"), "sst2": ("sst2/train.tsv.gz", "sst2/dev.tsv")}
_BATCH_SIZES = (1, 8, 32, 64)
_VOCABULARY = "vocab/bert-base-uncased-vocab.txt"
_WARMUP = 120  # about an epoch of MRPC


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=6)
    parser.add_argument("--init_from", help="a Hugging Face folder of a BERT encoder")
    parser.add_argument("--tasks", nargs="+", choices=tuple(_FILES), default=tuple(_FILES))
    parser.add_argument("--updates", type=int, default=30, help="updates of a round")
    parser.add_argument("--texts", type=int, default=5000, help="texts to predict")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, default=1e9, help="no work begins after this time")
    args = parser.parse_args()
    if "BERTJAX_DATA" not in os.environ:
        sys.exit("error: set BERTJAX_DATA to the folder with mrpc and sst2")
    if args.smoke:
        args.tasks = ["sst2"]
        args.updates = 2
        args.texts = 8
    common.report(measure, args)


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields the speeds of training on each task, and of prediction."""
    clock = turns.Clock(args.seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args.init_from = args.init_from or random_encoder(folder / "encoder", args.smoke)
        for work in (*(functools.partial(train, task) for task in args.tasks), predict):
            if clock.left() > 0:
                yield work(args, folder)


def random_encoder(folder: Path, is_small: bool) -> str:
    """Writes a folder of BERT-Base, or of a small BERT, with random weights. Returns its path."""
    import transformers

    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**(sizes if is_small else {}))
    transformers.BertModel(config).save_pretrained(folder)
    shutil.copy(Path(os.environ["BERTJAX_DATA"]) / _VOCABULARY, folder / "vocab.txt")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return str(folder)


def train(name: str, args: argparse.Namespace, folder: Path) -> Speed:
    """Returns the speed on a task: in each round, `args.updates` of our updates, then of theirs."""
    from benchmarks.torch_fine_tuning import TorchTraining

    opened, rows = make(name, args, folder)
    settings = opened.settings
    ours = common.OurTraining(opened, args.updates, 1 if args.smoke else _WARMUP)
    recipe = (settings.batch_size, settings.optimizer.learning_rate, args.updates, args.dtype == "bfloat16")
    theirs = TorchTraining(args.init_from, rows, *recipe)
    seconds = common.interleave({"ours": ours, "Trainer": theirs}, args.rounds)
    examples = args.updates * settings.batch_size
    compiled = ours.compile_seconds
    return common.speed_of(f"fine-tuning {name}", "examples/s", examples, seconds, compile_seconds=compiled)


def predict(args: argparse.Namespace, folder: Path) -> Speed:
    """Returns the speed of predicting labels for the first training rows of SST-2."""
    from benchmarks.torch_fine_tuning import TorchPrediction

    opened, rows = make("sst2", args, folder)
    texts = [row.first for row in rows[: args.texts]]
    ours = common.OurPrediction(opened, texts)
    theirs = TorchPrediction(args.init_from, texts, args.dtype == "bfloat16")
    sizes = _BATCH_SIZES[-1:] if args.smoke else _BATCH_SIZES
    timed = {size: common.seconds_of(functools.partial(theirs, size)) for size in sizes}
    best = min(timed, key=timed.__getitem__)
    peer = f"pipeline, batch size {best}"
    seconds = common.interleave({"ours": ours, peer: lambda: theirs(best)}, args.rounds)
    work = f"predicting {len(texts)} texts"
    return common.speed_of(work, "texts/s", len(texts), seconds, compile_seconds=ours.compile_seconds)


def make(name: str, args: argparse.Namespace, folder: Path) -> tuple[common.Opened, list[LabeledText]]:
    """Builds a task as `launch.py` does. Returns it and its training rows."""
    data = Path(os.environ["BERTJAX_DATA"])
    config = config_file.get_config(f"{name},tsv")
    config.init_from, config.model.dtype = args.init_from, args.dtype
    config.data.source, config.data.valid_source = (str(data / file) for file in _FILES[name])
    config.num_steps = 10**6  # more than the benchmark makes
    if args.smoke:
        config.data.seq_len, config.data.row_lengths = 32, (32,)
    opened = common.open_task(classification, config, folder / name)
    codec = opened.data.codec
    rows = codec.config.read(codec.config.source, "data.source", codec.labeled)
    return opened, list(itertools.islice(rows, 100 if args.smoke else None))


if __name__ == "__main__":
    main()
