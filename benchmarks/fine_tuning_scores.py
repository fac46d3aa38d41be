"""Scores of the `Trainer` of transformers with the rows, epochs, learning rates and metrics of our run, on a CPU.

    python launch.py --config=configs/classification.py:mrpc,tsv --workdir=runs/mrpc --seeds=0,1,2 ...
    python -m benchmarks.fine_tuning_scores runs/mrpc/seed0 --seeds 0 1 2

Our code reads the rows and computes the validation metrics; everything else is transformers. Both evaluate once an
epoch and keep the best checkpoint. transformers draws rows in another order, and its batches mix lengths. Repeating the
command resumes an interrupted benchmark from `transformers/` in the run's folder.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from benchmarks import common
from bertjax.config import build_part
from bertjax.data.codecs.label_sets import LabelSetsConfig
from bertjax.data.codecs.labeled_text import LabeledText, LabeledTextCodec
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.scoring import glue

_SAVE_EVERY = 200  # updates


def main() -> None:
    """Trains with each seed, and prints the scores of each seed and their mean."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of classification or regression, for its config")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,))
    args = parser.parse_args()
    config = json.loads((args.run / "config.json").read_text())
    print(common.describe_machine(), flush=True)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.logging.set_verbosity_error()
    data = Rows(config)
    found = []
    for seed in args.seeds:
        began = time.perf_counter()
        found.append(train(config, data, seed, args.run / "transformers" / f"seed{seed}"))
        print(f"seed {seed}: {json.dumps(found[-1])}, {(time.perf_counter() - began) / 60:.1f} min", flush=True)
    for name in found[0]:
        values = [metrics[name] for metrics in found]
        deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        print(f"{name}: {statistics.mean(values):.4f}{deviation}")


class Rows:
    """The rows of our run, encoded by the tokenizer of transformers."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Reads the rows of a run's config."""
        text = build_part(LabelSetsConfig, config["data"], "data")
        self.numeric = config["objective"] == "regression"
        self._names, self._seq_len = config["data"]["labels"], config["data"]["seq_len"]
        codec = LabeledTextCodec(text, WordPiece(SPECIALS, lowercase=True), seq_len=8, is_numeric=self.numeric)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(config["init_from"])
        self.train, self.valid = (
            [self._encoded(row) for row in text.read(getattr(text, key), f"data.{key}", codec.labeled)]
            for key in ("source", "valid_source")
        )

    @property
    def num_labels(self) -> int:
        """The number of outputs of the model."""
        return 1 if self.numeric else len(self._names)

    def _encoded(self, row: LabeledText) -> dict[str, Any]:
        encoded = self.tokenizer(row.first, row.second, truncation=True, max_length=self._seq_len)
        return {**encoded, "labels": row.label if self.numeric else self._names.index(str(row.label))}


def train(config: Mapping[str, Any], data: Rows, seed: int, folder: Path) -> dict[str, float]:
    """Trains, or resumes from checkpoints in the folder. Returns the metrics of the best epoch."""
    transformers.set_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        config["init_from"], num_labels=data.num_labels
    )

    def metrics(prediction: transformers.EvalPrediction) -> dict[str, float]:
        logits = np.asarray(prediction.predictions)
        answers = logits[:, 0] if data.numeric else logits.argmax(axis=1)
        return dict(glue.score(config["metrics"], answers, np.asarray(prediction.label_ids)))

    trainer = transformers.Trainer(
        model=model,
        args=arguments(config, seed, folder),
        train_dataset=data.train,
        eval_dataset=data.valid,
        data_collator=transformers.DataCollatorWithPadding(data.tokenizer),
        compute_metrics=metrics,
    )
    folder.mkdir(parents=True, exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    best = config["checkpoint"]["best_metric"].removeprefix("valid/")
    return best_epoch(trainer.state.log_history, config["metrics"], best)


def arguments(config: Mapping[str, Any], seed: int, folder: Path) -> transformers.TrainingArguments:
    """Returns the run's recipe as arguments of transformers."""
    optimizer = config["optimizer"]
    return transformers.TrainingArguments(
        output_dir=str(folder),
        seed=seed,
        max_steps=config["num_steps"],
        per_device_train_batch_size=config["batch_size"],
        per_device_eval_batch_size=config["batch_size"],
        learning_rate=optimizer["learning_rate"],
        warmup_steps=optimizer["warmup_steps"],
        weight_decay=optimizer["weight_decay"],
        adam_beta1=optimizer["beta1"],
        adam_beta2=optimizer["beta2"],
        adam_epsilon=optimizer["eps"],
        max_grad_norm=optimizer["clip_norm"],
        eval_strategy="steps",
        eval_steps=config["evaluate_every"],
        save_strategy="steps",
        save_steps=_SAVE_EVERY,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )


def best_epoch(history: Sequence[Mapping[str, float]], metrics: Sequence[str], best: str) -> dict[str, float]:
    """Returns the metrics of the evaluation with the highest `best`."""
    evaluations = [logged for logged in history if f"eval_{best}" in logged]
    chosen = max(evaluations, key=lambda logged: logged[f"eval_{best}"])
    return {name: chosen[f"eval_{name}"] for name in metrics}


if __name__ == "__main__":
    main()
