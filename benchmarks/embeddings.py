"""Training of embeddings compared with sentence-transformers: same recipe, same batches, scores before and after.

    python -m benchmarks.embeddings FOLDER similarity --train=stsb/train.tsv --valid=stsb/dev.tsv --seeds 0 1 2
    python -m benchmarks.embeddings FOLDER ranking --train=train.jsonl --valid=valid.jsonl

FOLDER is an encoder of sentence-transformers. "similarity" reads the columns sentence1, sentence2 and score (0 to 5),
and trains with CoSENT; "ranking" reads query, positive and negatives. The peer trains with sentence-transformers' model
and loss on the texts of our batches, in the same order, with the same AdamW, schedule and clipping. Before the runs,
updates of both are timed in turns. Both models are scored by our code on the vectors of their own `encode`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertjax
from benchmarks import common
from bertjax.configs import embeddings as config_file
from bertjax.experiments import embeddings
from bertjax.training.optimizers import make_schedule

_COLUMNS = {"similarity": ("sentence1", "sentence2"), "ranking": ("query", "positive", "negatives")}


def main() -> None:
    """Trains with each seed, and prints the scores of each seed and their mean."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("objective", choices=tuple(_COLUMNS))
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--columns", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--set", action="append", default=[], help="KEY=JSON of the config")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,))
    parser.add_argument("--rounds", type=int, default=5, help="rounds of timed updates; 0 for none")
    parser.add_argument("--updates", type=int, default=4, help="updates of a round")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(common.describe_machine(), flush=True)
    config = config_file.get_config(args.objective)
    config.init_from, config.data.source, config.data.valid_source = str(args.folder), args.train, args.valid
    config.data.text_columns = args.columns or _COLUMNS[args.objective]
    for key, value in (each.split("=", 1) for each in args.set):
        config.update_from_flattened_dict({key: json.loads(value)})
    if args.rounds:
        compare_speed(config, args.updates, args.rounds)
    scores: dict[str, list[dict[str, float]]] = {"before": [], "bertjax": [], "sentence-transformers": []}
    for seed in args.seeds:
        config.seed = seed
        with tempfile.TemporaryDirectory() as folder:
            for name, values in both(config, Path(folder)).items():
                scores[name].append(values)
                print(f"seed {seed}, {name}: {json.dumps(values)}", flush=True)
    names = list(scores["before"][0])
    rows = [[name, *(_mean([each[key] for each in of_model]) for key in names)] for name, of_model in scores.items()]
    print("\n" + common.table(["model", *names], rows))


def compare_speed(config: Any, updates: int, rounds: int) -> None:
    """Prints the seconds of an update of both, interleaved, and the ratio of each round."""
    config = config.copy_and_resolve_references()
    config.num_steps = 10_000
    with tempfile.TemporaryDirectory() as folder:
        opened = common.open_task(embeddings, config, Path(folder))
        shapes = len(opened.keys.data.row_counts)
        ours, theirs = common.OurTraining(opened, updates, 2 * shapes), _Peer(opened)
        theirs.train(2)
        calls = {"bertjax": ours, "sentence-transformers": lambda: theirs.train(updates)}
        seconds = common.interleave(calls, rounds)
    ratios = [a / b for b, a in zip(*seconds.values(), strict=True)]
    rows = [[name, common.spread([each / updates for each in values], 3)] for name, values in seconds.items()]
    print(common.table(["model", "s/update"], [*rows, ["ratio", common.spread(ratios, 2)]]), flush=True)


def both(config: Any, folder: Path) -> dict[str, dict[str, float]]:
    """Returns the scores before training, and of each model after training with one seed."""
    opened = common.open_task(embeddings, config, folder / "peer")
    before = _score(opened, bertjax.load(config.init_from).encode)
    began = time.perf_counter()
    ours = _score(opened, bertjax.train(config, folder / "run", report=False).encode)
    between, peer = time.perf_counter(), _Peer(opened)
    peer.train(opened.settings.num_steps)
    theirs = _score(opened, lambda texts: peer.model.encode(texts, batch_size=32))
    minutes = {"minutes": (between - began) / 60}, {"minutes": (time.perf_counter() - between) / 60}
    return {"before": before, "bertjax": ours | minutes[0], "sentence-transformers": theirs | minutes[1]}


class _Peer:
    """sentence-transformers' model and loss on the batches of our data."""

    def __init__(self, opened: common.Opened) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses

        keys, settings = opened.keys, opened.settings
        self.model = SentenceTransformer(keys.init_from, device="cpu")
        self.model.max_seq_length = keys.data.seq_len
        made = {"ranking": losses.MultipleNegativesRankingLoss, "cosent": losses.CoSENTLoss}
        self._loss = made[keys.objective](self.model, scale=keys.scale)
        self._batches = _texts(opened)
        optimizer = settings.optimizer
        groups = [
            {"params": [p for p in self.model.parameters() if p.ndim > 1], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in self.model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=optimizer.learning_rate, eps=optimizer.eps)
        rate = make_schedule(optimizer, settings.num_steps)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: float(rate(step)) / optimizer.learning_rate
        )
        torch.manual_seed(settings.seed)

    def train(self, updates: int) -> None:
        """Makes updates."""
        self.model.train()
        for _ in range(updates):
            columns, scores = next(self._batches)
            features = [self.model.preprocess(list(column)) for column in columns]
            loss = self._loss(features, torch.tensor(scores) if scores else None)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._schedule.step()
        self.model.eval()


def _texts(opened: common.Opened) -> Iterator[tuple[list[Sequence[str]], list[float]]]:
    """Yields the texts of each training batch, column after column, and the scores of its rows."""
    rows = [row for split, row in opened.data.codec.splits() if split == "train"]
    row_of_text = [number for number, row in enumerate(rows) for _ in row.texts]
    examples, size = opened.data.train.examples, opened.settings.batch_size
    epoch = 0
    while True:
        firsts = examples.ordered(opened.settings.seed, epoch)[:, 0]
        for start in range(0, len(firsts), size):
            batch = [rows[row_of_text[text]] for text in firsts[start : start + size]]
            yield list(zip(*(row.texts for row in batch), strict=True)), [row.scores[0] for row in batch if row.scores]
        epoch += 1


def _score(opened: common.Opened, encode: Any) -> dict[str, float]:
    """The metrics of the task on the validation rows."""
    examples = opened.data.valid
    texts = [text for example in examples for text in example.source.item.texts]
    vectors = iter(np.asarray(encode(texts)))
    results = [(example, [{"features": next(vectors)} for _ in example.rows]) for example in examples]
    return dict(opened.task.score(results))


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{deviation}"


if __name__ == "__main__":
    main()
