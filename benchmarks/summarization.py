"""Speed of BertSum's training and prediction, compared with PreSumm's model on PyTorch, interleaved, on a CPU.

    python -m benchmarks.summarization PATH/TO/PreSumm SOURCE --init_from=BERT_FOLDER --rounds=5

SOURCE has articles with summaries, in the form of data.source. Both train BERT with the Transformer scorer in float32,
with dropout and Adam, on articles truncated to 512 tokens. Ours batches by length, with six rows of 512 tokens; theirs
has batches of 3,000 positions, as published. Then both score articles: ours from text to the record of a summary,
theirs from prepared rows. Compilation time is listed separately.
"""

import argparse
import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common, torch_summarization
from benchmarks.common import Speed
from benchmarks.torch_summarization import TorchSummarization
from bertjax.configs.bertsum_ext import get_config
from bertjax.contract import Batch
from bertjax.data.codecs.summarization.limits import LimitedArticle, limit
from bertjax.data.codecs.summarization.prepared_articles import ArticleCodec
from bertjax.data.rows import stored
from bertjax.data.splits import TRAIN
from bertjax.experiments import bertsum_ext

_ROWS = 6  # of 512 tokens: 3,072 positions in a batch
_TOKENS = 3000  # in a batch of PreSumm, including padding: -batch_size 3000
_WARMUP = 40
_PREDICTED_TOKENS = (512, 3000, 12000)  # in PreSumm's batches for prediction; the best is used


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=5)
    parser.add_argument("repository", type=Path, help="a copy of nlpyang/PreSumm")
    parser.add_argument("source", help="articles with summaries")
    parser.add_argument("--init_from", required=True, help="a Hugging Face folder of a BERT encoder")
    parser.add_argument("--updates", type=int, default=10, help="updates of a round")
    parser.add_argument("--articles", type=int, default=200, help="articles to summarize")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager", help="of PreSumm's BERT")
    args = parser.parse_args()
    if args.smoke:
        args.updates = 1
        args.articles = 2
    common.report(measure, args)


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields the speeds of training and of prediction."""
    opened = make(args.source, args.init_from)
    settings, keys = opened.settings, opened.keys
    recipe = {"optimizer": vars(settings.optimizer), "num_steps": settings.num_steps}
    values = {"init_from": keys.init_from, "model": vars(keys.model), **recipe}
    theirs = TorchSummarization(args.repository, values, args.attention)
    articles = training_articles(opened.data)
    batches = torch_summarization.endless(encoded(articles, opened.data.codec), _TOKENS, seed=0)

    def update() -> int:
        drawn = list(itertools.islice(batches, args.updates))
        for batch in drawn:
            theirs.update(batch)
        return sum(map(len, drawn))

    yield train(opened, update, args)
    yield predict(opened, theirs, articles[: args.articles], args)


def make(source: str, init_from: str) -> common.Opened:
    """Builds the task and its data as `launch.py` does."""
    config = get_config("transformer")
    config.init_from = init_from
    config.model.sentence_pooling = "cls"  # as in PreSumm
    config.batch_size = _ROWS
    config.data.source = config.data.valid_source = source
    config.data.long_articles = "cut"
    config.data.layout = "line"
    config.optimizer.weight_decay = 0.0
    config.num_steps = 10**6  # more than the benchmark makes
    with tempfile.TemporaryDirectory() as folder:
        return common.open_task(bertsum_ext, config, Path(folder))


def training_articles(data: Any) -> list[LimitedArticle]:
    """Returns the training articles within the limits, with labels."""
    codec = data.codec
    articles = (article for split, article in codec.splits() if split == TRAIN)
    limited = (limit(article, codec.labeled(article), codec.labels.limits, drops=True) for article in articles)
    return [article for article in limited if isinstance(article, LimitedArticle)]


def encoded(articles: Sequence[LimitedArticle], codec: ArticleCodec) -> list[Batch]:
    """Returns the rows of all articles, with labels."""
    fields = codec.with_targets(articles).fields
    return list(stored.split(fields, len(fields["first_sentences"])))


def train(opened: common.Opened, theirs: Callable[[], int], args: argparse.Namespace) -> Speed:
    """Returns the speed of training: in each round, `args.updates` updates of each side."""
    warmup = 2 if args.smoke else _WARMUP
    ours = common.OurTraining(opened, args.updates, warmup)
    batches = opened.data.batches("train", warmup, np.arange(opened.settings.batch_size))
    theirs()  # the first updates are slower
    speeds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(args.rounds):
        rows = sum(count_rows(batch) for batch in itertools.islice(batches, args.updates))
        speeds["ours"].append(rows / common.seconds_of(ours))
        began = time.perf_counter()
        rows = theirs()
        speeds["theirs"].append(rows / (time.perf_counter() - began))
    peer = f"PreSumm, {args.attention}"
    return Speed("training BertSum", "articles/s", speeds["ours"], peer, speeds["theirs"], ours.compile_seconds)


def count_rows(batch: Batch) -> int:
    """Returns the number of rows in a batch that are not padding."""
    return int(np.count_nonzero(batch["segment_ids"].any(axis=1)))


def predict(opened: common.Opened, theirs: Any, articles: Sequence[LimitedArticle], args: argparse.Namespace) -> Speed:
    """Returns the speed of summarizing the articles."""
    texts = [" ".join(" ".join(article.sentences).split()) for article in articles]
    rows = encoded(articles, opened.data.codec)
    ours = common.OurPrediction(opened, texts)

    def score(tokens: int) -> None:
        for batch in torch_summarization.batches(rows, tokens):
            theirs.score(batch)

    timed = {tokens: common.seconds_of(functools.partial(score, tokens)) for tokens in _PREDICTED_TOKENS}
    best = min(timed, key=timed.__getitem__)
    peer = f"PreSumm, {args.attention}, batches of {best} positions"
    seconds = common.interleave({"ours": ours, peer: functools.partial(score, best)}, args.rounds)
    work = f"summarizing {len(texts)} articles"
    return common.speed_of(work, "articles/s", len(texts), seconds, compile_seconds=ours.compile_seconds)


if __name__ == "__main__":
    main()
