"""Scores of PreSumm's model on PyTorch with the encoder, articles, updates, rates and selection of our run.

    python launch.py --config=configs/bertsum_ext.py:transformer --workdir=runs/bbc --config.init_from=BERT_FOLDER ...
    python -m benchmarks.summarization_scores runs/bbc PATH/TO/PreSumm --seed=0

The scorers come from a copy of nlpyang/PreSumm, on the BERT of transformers. Our code reads articles, selects sentences
and computes ROUGE, as in the run. The checkpoint with the lowest validation loss is tested. Batches contain rows of
similar length, and as many positions as the run's, including padding. The order of batches differs from the run's.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special

from benchmarks import common, torch_summarization
from benchmarks.summarization import encoded, training_articles
from benchmarks.torch_summarization import TorchSummarization
from bertjax.contract import Example
from bertjax.experiments import bertsum_ext

_PREDICTED_TOKENS = 4096  # in a batch; affects only the time
_LEAST = 1e-7  # the minimum distance of probabilities from 0 and 1, for finite logits


def main() -> None:
    """Trains once, and prints the scores of the best checkpoint on the test articles."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of bertsum_ext, for its config")
    parser.add_argument("repository", type=Path, help="a copy of nlpyang/PreSumm")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(common.describe_machine(), flush=True)
    torch.manual_seed(args.seed)
    config = json.loads((args.run / "config.json").read_text())
    task, data, *_ = common.open_run(bertsum_ext, args.run)
    began = time.perf_counter()
    theirs = TorchSummarization(args.repository, config)
    train(task, data, theirs, config, args.seed)
    metrics = score(task, theirs, data.test_examples())
    print(json.dumps(metrics, indent=2))
    print(f"{(time.perf_counter() - began) / 60:.1f} min")


def train(task: Any, data: Any, theirs: TorchSummarization, config: Mapping[str, Any], seed: int) -> None:
    """Trains, and keeps the parameters with the lowest validation loss."""
    rows = encoded(training_articles(data), data.codec)
    batches = torch_summarization.endless(rows, config["batch_size"] * config["data"]["seq_len"], seed)
    best, state = math.inf, theirs.state()
    for done, batch in enumerate(itertools.islice(batches, config["num_steps"]), 1):
        loss = theirs.update(batch)
        if done % config["evaluate_every"] == 0 or done == config["num_steps"]:
            metrics = score(task, theirs, data.validation_examples())
            told = "  ".join(f"{name}={metrics[name]:.4g}" for name in ("loss", "rouge1", "rouge2", "rougeLsum"))
            print(f"update {done}: train/loss={loss:.4g}; validation: {told}", flush=True)
            if metrics["loss"] < best:
                best, state = metrics["loss"], theirs.state()
    theirs.load(state)


def score(task: Any, theirs: TorchSummarization, examples: Iterable[Example]) -> dict[str, float]:
    """Returns the metrics of their scores, computed by our task."""
    members = list(examples)
    found: dict[int, np.ndarray] = {}
    for batch in torch_summarization.batches([row for each in members for row in each.rows], _PREDICTED_TOKENS):
        found |= {id(row): scores for row, scores in zip(batch, theirs.score(batch), strict=True)}
    logits = {key: special.logit(np.clip(scores, _LEAST, 1 - _LEAST)) for key, scores in found.items()}
    return dict(task.score([(each, [{"logits": logits[id(row)]} for row in each.rows]) for each in members]))


if __name__ == "__main__":
    main()
