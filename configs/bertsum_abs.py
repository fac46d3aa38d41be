"""Trains BertSumAbs: a decoder that writes the summary of what BERT has read.

    python launch.py --config=configs/bertsum_abs.py:cnndm --workdir=runs/abs --config.init_from=BERT_FOLDER \\
        --config.data.source=tfds:cnn_dailymail:train --config.data.valid_source=tfds:cnn_dailymail:validation \\
        --config.data.summary_field=highlights
    python launch.py --config=configs/bertsum_abs.py:cnndm --workdir=runs/extabs --config.init_from=runs/ext ...
    python launch.py --config=configs/bertsum_abs.py:baseline,cnndm --workdir=runs/baseline ...
    python launch.py --mode=predict --workdir=runs/abs --input=article.txt

Behind the colon, separated by commas: a size; a dataset.

- Sizes: tiny, mini, small, medium, base, large, from fresh weights, or `baseline`, the paper's TransformerAbs of six
  layers and width 512; with a vocabulary in `data.vocab_file`, or else one that is trained on the articles. `tiny`
  makes 600 updates, which try the code and summarize nothing well. Without a size, `init_from` gives it: a Hugging Face
  folder, a checkpoint of Google's, a .pt of PreSumm's, or a run of ours. Of an extractive one the encoder is taken:
  that is BertSumExtAbs.
- `cnndm` (the default) writes 50 to 200 pieces with a length penalty of 0.95, `xsum` 20 to 100 with 0.9.

Articles are read as in `bertsum_ext`; what TFDS is to read is prepared once by
`tfds.builder('cnn_dailymail', file_format='array_record').download_and_prepare()`. Summaries begin with [unused0], end
with [unused1], and have [unused2] between sentences, as PreSumm's do, whose .pt files open, too: give them text that
CoreNLP has tokenized.

The recipe is PreSumm's: 200,000 updates of some 60 articles, Adam with a schedule of its own for the encoder (0.002
min(s^-.5, s 20000^-1.5)) and for the rest (0.2, 10000), from fresh weights with one for all (0.05, 8000), label
smoothing 0.1, beams of 5. The paper's figures on CNN/Daily Mail, ROUGE-1, 2 and L of sentences: 41.72, 19.39 and 38.76,
and 42.13, 19.60 and 39.18 for BertSumExtAbs, on four GPUs.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

_BASELINE = "baseline"


def get_config(variant: str = "") -> ConfigDict:
    """The config of a variant such as `tiny`, `xsum` or `baseline,cnndm`."""
    size, dataset = parts.chosen(variant, ((*SIZES, _BASELINE), ("cnndm", "xsum")))
    config = parts.fine_tuning("bertsum_abs", "medium" if size == _BASELINE else size)
    del config.model.classifier_dropout, config.model.lstm_size, config.num_epochs, config.warmup_fraction
    config.model.decoder_layers = 6
    config.model.decoder_heads = 8
    config.model.decoder_intermediate = 2048
    if not size:  # what `init_from` fills in, or these values if it has no decoder
        of_decoder = ("decoder_layers", "decoder_heads", "decoder_intermediate")
        config.model.update({key: placeholder(int) for key in of_decoder})
    config.model.decoder_dropout = 0.2
    if size == _BASELINE:
        config.model.num_layers = 6
        config.model.decoder_dropout = 0.1
    config.batch_size = 60
    config.num_steps = 200_000
    config.evaluate_every = 2000
    config.positions = "tile"
    config.copy_embeddings = True
    config.data = parts.articles(size)
    config.data.long_articles = "cut"
    config.target_len = 139  # 140 with [unused0]
    config.label_smoothing = 0.1
    config.smoothing_denominator = "V-2"
    config.decoding = _decoding(dataset)
    config.num_scored = 200
    config.rouge = {"flavor": "rouge-1.5.5", "stem": True, "words": placeholder(object)}
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
        config.optimizer.groups = ()  # nothing has been learned yet
        config.optimizer.warmup_steps = 8000
        config.optimizer.learning_rate = 0.05 * 8000**-0.5
    if size == "tiny":
        _shorten(config)
    return config


def _shorten(config: ConfigDict) -> None:
    """Minutes on a laptop, of docstrings whose first lines are the summaries."""
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


def _decoding(dataset: str) -> ConfigDict:
    decoding = parts.decoding()
    decoding.num_beams = 5
    decoding.alpha = 0.9 if dataset == "xsum" else 0.95
    decoding.max_length = 100 if dataset == "xsum" else 200
    decoding.max_ratio = 0.0
    decoding.max_extra = decoding.max_length
    decoding.min_extra = 20 if dataset == "xsum" else 50
    decoding.block_ngrams = 3
    decoding.stopping = "presumm"
    return decoding
