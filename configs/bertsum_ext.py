"""Trains BertSum: selects the sentences of an article that form its summary.

    python launch.py --config=configs/bertsum_ext.py --workdir=runs/news --config.init_from=BERT_FOLDER \\
        --config.data.source=train.jsonl --config.data.valid_source=valid.jsonl --config.data.test_source=test.jsonl
    python launch.py --config=configs/bertsum_ext.py:tiny --workdir=runs/demo
    python launch.py --mode=predict --workdir=runs/news --input=article.txt
    python launch.py --mode=predict --workdir=runs/news --input=articles/ --output=summaries.html
    python launch.py --mode=predict --config=configs/bertsum_ext.py:presumm --config.init_from=bertext_cnndm.pt \\
        --config.data.vocab_file=vocab.txt --input=tokenized.txt
    python launch.py --mode=evaluate --config=configs/bertsum_ext.py --config.init_from=runs/news \\
        --config.data.valid_source=valid.jsonl --config.selection.block_ngrams=0

The variant, after the colon, is any of a size, a scorer and `presumm`, separated by commas:

- Sizes: tiny, mini, small, medium, base, large start from random weights and make 300 updates, unless `presumm` or
  `num_steps` sets another number. Their vocabulary is `data.vocab_file`, or else is trained on the articles. Without a
  size, `init_from` determines it: a Hugging Face folder, a google-research checkpoint, a bertjax run, or a .pt file of
  PreSumm or BertSum.
- Scorers: classifier, transformer (PreSumm), rnn (BertSum). The default is the scorer of `init_from`, or classifier.
- `presumm` trains and selects like the published code: summed losses, Adam at 2e-3 min(s^-.5, s 10000^-1.5) for
  50,000 updates, articles truncated to 512 tokens, words split at spaces, selected sentences sorted by score.

Articles are read from tables (docs/reference/inputs.md), .story or .txt files, BertSum's .json and .bert.pt files, or
`tfds:cnn_dailymail`. The model learns to select the oracle's sentences, unless the files name the sentences to select
(`data.gold_field`); then articles need no summaries.
With a size and no `data.source`, the articles are docstrings of Python's standard library, and their first lines are
the summaries.

If `init_from` was trained on articles, it determines how words are split and whether segments alternate.
`data.words` and `data.interval_segments` override this. For articles in other languages than English, set
`data.oracle.letters=unicode`, `rouge.flavor=unicode` and `rouge.stem=False`.

Training and evaluation omit sentences of at most `data.limits.min_words` words. Predictions can select them, unless
`selection.min_words` is set, as in `presumm`.

Predictions are summaries, one per line. With --format=jsonl, or an output name that ends in .jsonl, they are records
with the positions and scores of all sentences, and with the skipped sentences and the reasons. With --format=html they
are a page with the articles and the selected sentences.

Validation metrics are ROUGE F1 as computed by ROUGE-1.5.5 -m, and recall if `rouge.words` is set, with 95 % intervals.
The baselines are the first sentences (`lead_...`) and the oracle (`oracle_...`). The paper trained BERT-Base on three
GPUs and reports on CNN/Daily Mail ROUGE-1, ROUGE-2 and sentence-level ROUGE-L (here rougeLsum) of 43.25, 20.24 and
39.63 with the Transformer, and of 43.23, 20.22 and 39.60 with the classifier.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

_SCORERS = ("classifier", "transformer", "rnn")
VARIANTS = (tuple(SIZES), _SCORERS, ("presumm",))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `tiny`, `transformer` or `base,transformer,presumm`."""
    size, scorer, presumm = parts.chosen(variant, VARIANTS)
    config = parts.summarization("bertsum_ext", size)
    config.model.scorer = scorer or ("classifier" if size else "")
    config.model.scorer_layers = 2
    config.model.scorer_heads = 8
    config.model.scorer_intermediate = 2048
    config.model.rnn_compat = False
    config.model.sentence_pooling = "cls"  # or "mean"; default without a size: init_from's, or "cls"
    if not size:  # default: `init_from`'s values, or these if it has no scorer
        of_scorer = ("scorer_layers", "scorer_heads", "scorer_intermediate", "rnn_compat", "sentence_pooling")
        parts.unset(config.model, of_scorer)
    config.model.scorer_dropout = 0.1
    config.batch_size = 8
    config.checkpoint.best_metric = "valid/loss"
    config.checkpoint.best_mode = "min"
    config.checkpoint.keep_best = 3
    if size:
        config.num_steps = 300
        config.evaluate_every = 100
        config.checkpoint.save_every = 100
        config.optimizer.learning_rate = 5e-4
    if presumm:
        _as_published(config)
    return config


def _as_published(config: ConfigDict) -> None:
    """Sets the recipe of PreSumm's README and `train.py`: -batch_size 3000 (tokens) -accum_count 2 on three GPUs."""
    config.num_steps = 50_000
    config.model.sentence_pooling = "cls"
    config.batch_size = 36
    config.evaluate_every = 1000
    config.checkpoint.save_every = 1000
    config.loss_reduction = "sum"
    config.positions = "repeat_last"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.learning_rate = 2e-5
    config.optimizer.weight_decay = 0.0
    config.optimizer.eps = 1e-9
    config.optimizer.clip_norm = 0.0
    config.data.words = "spaces"
    config.data.long_articles = "cut_presumm"
    config.data.limits.max_sentences = 100
    config.selection.min_words = config.data.limits.min_words
    config.data.oracle.first_sentences = 100
    config.selection.order = "score"
