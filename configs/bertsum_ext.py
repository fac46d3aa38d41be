"""Trains BertSum: chooses the sentences of an article that make its summary.

    python launch.py --config=configs/bertsum_ext.py --workdir=runs/news --config.init_from=BERT_FOLDER \\
        --config.data.source=train.jsonl --config.data.valid_source=valid.jsonl --config.data.test_source=test.jsonl
    python launch.py --config=configs/bertsum_ext.py:tiny --workdir=runs/demo
    python launch.py --mode=predict --workdir=runs/news --input=article.txt
    python launch.py --mode=predict --workdir=runs/news --input=articles/ --output=summaries.html
    python launch.py --mode=predict --config=configs/bertsum_ext.py:presumm --config.init_from=bertext_cnndm.pt \\
        --config.data.vocab_file=vocab.txt --input=tokenized.txt
    python launch.py --mode=evaluate --config=configs/bertsum_ext.py --config.init_from=runs/news \\
        --config.data.valid_source=valid.jsonl --config.selection.block_ngrams=0

Behind the colon, separated by commas: a size; a scorer; `presumm`.

- Sizes: tiny, mini, small, medium, base, large, from fresh weights, by the demonstration's recipe of 300 updates unless
  `presumm` or `num_steps` says otherwise; with a vocabulary in `data.vocab_file`, or else one
  that is trained on the articles. Without a size, `init_from` gives it: a Hugging Face folder, a checkpoint of
  Google's, a run of ours, or a .pt of PreSumm's or BertSum's.
- Scorers: classifier, transformer (of PreSumm), rnn (of BertSum). Without one, that of `init_from`, or a classifier.
- `presumm` trains and selects as the published code does: sums of losses, Adam at 2e-3 min(s^-.5, s 10000^-1.5) for
  50,000 updates, articles cut at 512 tokens, words between spaces, sentences in the order of their scores.

Articles are files of .jsonl, .story, .txt, BertSum's .json, or `tfds:cnn_dailymail`; what is learned is the oracle's
choice unless they name their own. With a size and no `data.source` they are docstrings of Python's standard library,
whose first lines are the summaries.

`init_from` says how words are parted and whether segments alternate if it has learned from articles, unless
`data.words` and `data.interval_segments` say otherwise. For articles that are not in English set
`data.oracle.letters=unicode`, `rouge.flavor=unicode` and `rouge.stem=False`.

Training and evaluation leave out sentences of up to `data.limits.min_words` words. Predictions can choose them, unless
`selection.min_words` says otherwise, as with `presumm`.

Predictions are texts, a line each; with --format=jsonl, or where the output's name ends so, records with positions and
scores of all sentences, and what was passed over and why; with --format=html, a page that shows them.

Held-out figures are ROUGE F1 as ROUGE-1.5.5 -m has them, and recall where `rouge.words` is set, with 95 % intervals,
beside those of the first sentences (`lead_...`) and of the oracle. The paper's BERT-Base has 43.25, 20.24 and 39.63
(ROUGE-1, 2 and L of sentences, here rougeLsum) on CNN/Daily Mail with the Transformer, and 43.23, 20.22 and 39.60 with
the classifier, on three GPUs.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

_SCORERS = ("classifier", "transformer", "rnn")


def get_config(variant: str = "") -> ConfigDict:
    """The config of a variant such as `tiny`, `transformer` or `base,transformer,presumm`."""
    size, scorer, presumm = parts.chosen(variant, (tuple(SIZES), _SCORERS, ("presumm",)))
    config = parts.fine_tuning("bertsum_ext", size)
    del config.model.classifier_dropout, config.model.lstm_size
    config.model.scorer = scorer or ("classifier" if size else "")
    config.model.scorer_layers = 2
    config.model.scorer_heads = 8
    config.model.scorer_intermediate = 2048
    config.model.rnn_compat = False
    config.model.sentence_pooling = "cls"  # or "mean"; without a size as init_from says, so that of a sentence encoder
    if not size:  # what `init_from` fills in, or these values if it has no scorer
        of_scorer = ("scorer_layers", "scorer_heads", "scorer_intermediate", "rnn_compat", "sentence_pooling")
        config.model.update({key: placeholder(type(config.model[key])) for key in of_scorer})
    config.model.scorer_dropout = 0.1
    config.batch_size = 8
    config.positions = "tile"
    config.loss_reduction = "mean"
    config.data = parts.articles(size)
    config.selection = {
        "num_sentences": 3,
        "word_budget": 0,
        "threshold": placeholder(float),
        "block_ngrams": 3,
        "order": "document",
        "min_words": 0,
    }
    config.match_reference = ""
    config.rouge = {"flavor": "rouge-1.5.5", "stem": True, "words": placeholder(object)}
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
    """PreSumm's README and `train.py`: -batch_size 3000 (tokens) -accum_count 2 on three GPUs."""
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
