"""Trains BertSumAbs: a BERT encoder reads an article, and a decoder writes its summary.

    python launch.py --config=configs/bertsum_abs.py:cnndm --workdir=runs/abs --config.init_from=BERT_FOLDER \\
        --config.data.source=tfds:cnn_dailymail:train --config.data.valid_source=tfds:cnn_dailymail:validation \\
        --config.data.summary_field=highlights
    python launch.py --config=configs/bertsum_abs.py:cnndm --workdir=runs/extabs --config.init_from=runs/ext ...
    python launch.py --config=configs/bertsum_abs.py:baseline,cnndm --workdir=runs/baseline ...
    python launch.py --mode=predict --workdir=runs/abs --input=article.txt

The variant, after the colon, is a size and a dataset, separated by a comma:

- Sizes: tiny, mini, small, medium, base, large start from random weights, as does `baseline`, the paper's
  TransformerAbs with 6 layers of width 512. Their vocabulary is `data.vocab_file`, or else is trained on the articles.
  `tiny` makes 600 updates: enough to test the code, too few for good summaries. Without a size, `init_from` determines
  it: a Hugging Face folder, a google-research checkpoint, a PreSumm .pt file, or a bertjax run. Of an extractive run
  only the encoder is used; this is BertSumExtAbs.
- Datasets: `cnndm` (the default) writes 50 to 200 word pieces with a length penalty of 0.95, `xsum` 20 to 100 with 0.9.

Articles are read as in `bertsum_ext`. A TFDS dataset must first be prepared once with
`tfds.builder('cnn_dailymail', file_format='array_record').download_and_prepare()`. As in PreSumm, a summary begins with
[unused0], ends with [unused1], and has [unused2] between sentences. PreSumm's .pt files expect text that CoreNLP has
tokenized.

The recipe is PreSumm's: 200,000 updates of about 60 articles, label smoothing 0.1, and beam search with 5 beams. Adam
has one schedule for the encoder (0.002 min(s^-.5, s 20000^-1.5)) and one for the other parameters (0.2, 10000). From
random weights it has a single schedule (0.05, 8000). The paper trained on four GPUs and reports on CNN/Daily Mail
ROUGE-1, ROUGE-2 and sentence-level ROUGE-L of 41.72, 19.39 and 38.76, and for BertSumExtAbs 42.13, 19.60 and 39.18.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

_BASELINE = "baseline"
VARIANTS = ((*SIZES, _BASELINE), ("cnndm", "xsum"))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `tiny`, `xsum` or `baseline,cnndm`."""
    size, dataset = parts.chosen(variant, VARIANTS)
    config = parts.summarization("bertsum_abs", "medium" if size == _BASELINE else size)
    config.model.decoder_layers = 6
    config.model.decoder_heads = 8
    config.model.decoder_intermediate = 2048
    if not size:  # default: `init_from`'s values, or these if it has no decoder
        of_decoder = ("decoder_layers", "decoder_heads", "decoder_intermediate")
        parts.unset(config.model, of_decoder)
    config.model.decoder_dropout = 0.2
    if size == _BASELINE:
        config.model.num_layers = 6
        config.model.decoder_dropout = 0.1
    config.batch_size = 60
    config.num_steps = 200_000
    config.evaluate_every = 2000
    config.data.long_articles = "cut"
    _set_decoding(config.decoding, dataset)
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.learning_rate = 0.2 * 10_000**-0.5
    config.optimizer.groups = (("^bert/", {"learning_rate": 0.002 * 20_000**-0.5, "warmup_steps": 20_000}),)
    config.optimizer.weight_decay = 0.0
    config.optimizer.eps = 1e-9
    config.optimizer.clip_norm = 0.0
    config.checkpoint.save_every = 2000
    config.checkpoint.best_metric = "valid/nll"
    config.checkpoint.best_mode = "min"
    config.checkpoint.keep_best = 3
    if size:
        config.optimizer.groups = ()  # one schedule, because the encoder also starts from random weights
        config.optimizer.warmup_steps = 8000
        config.optimizer.learning_rate = 0.05 * 8000**-0.5
    if size == "tiny":
        _shorten(config)
    return config


def _shorten(config: ConfigDict) -> None:
    """Reduces the cost to minutes on a laptop. The data are docstrings with their first lines as summaries."""
    config.num_steps = 600
    config.batch_size = 8
    config.evaluate_every = 200
    config.num_scored = 50
    config.target_len = 40
    config.data.seq_len = 256
    config.model.decoder_layers = 2
    config.model.decoder_heads = 2
    config.model.decoder_intermediate = 512
    config.decoding.max_length = 40
    config.decoding.max_extra = 40
    config.decoding.min_extra = 4
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 60
    config.optimizer.clip_norm = 1.0
    config.checkpoint.save_every = 200


def _set_decoding(decoding: ConfigDict, dataset: str) -> None:
    """Sets the beam search of PreSumm."""
    decoding.num_beams = 5
    decoding.alpha = 0.9 if dataset == "xsum" else 0.95
    decoding.max_length = 100 if dataset == "xsum" else 200
    decoding.max_ratio = 0.0
    decoding.max_extra = decoding.max_length
    decoding.min_extra = 20 if dataset == "xsum" else 50
    decoding.block_ngrams = 3
    decoding.stopping = "presumm"
