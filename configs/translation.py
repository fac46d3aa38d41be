"""Trains translation with an encoder-decoder Transformer, or with the earlier recurrent model with attention.

    python launch.py --config=configs/translation.py:dates --workdir=runs/dates
    python launch.py --config=configs/translation.py:tiny --workdir=runs/multi30k \\
        --config.data.source=train.en --config.data.target=train.de \\
        --config.data.valid_source=val.en --config.data.valid_target=val.de \\
        --config.data.test_source=test.en --config.data.test_target=test.de
    python launch.py --mode=predict --workdir=runs/multi30k --input=text.en --output=text.de

The variant, after the colon, is a model and `dates`, separated by a comma:

- Models: tiny (4 + 4 layers of width 128), base, big (Vaswani et al. 2017, table 3), rnn (a bidirectional GRU and a GRU
  with additive attention; `model.attention` can also be dot, general or none). Without a model, `init_from` determines
  it: a bertjax run, or the folder of a Marian, BART, mBART, PEGASUS or T5, which is fine-tuned with learning rate 5e-5
  and dropout 0.1.
- Pairs: two files aligned by line, a table (`data.source_column`, `data.target_column`), or
  `tfds:wmt14_translate/de-en:train`. By default the task is to translate generated dates, from English to Korean
  (`data.source_locale`, `data.target_locales`); their number is unlimited. `dates` makes the model small enough to
  learn them in minutes on two cores.
- Vocabularies: trained with `data.subwords=bpe` (joint, unless `data.joint=False`), wordpiece or characters; or given
  by `data.vocab_file` (a tokenizer.json, a SentencePiece model, a vocab.txt).
- Metrics: sacreBLEU's BLEU and chrF in percent, on the first `num_scored` validation pairs. At the end of training, the
  checkpoints that `checkpoint.final` names are scored on all test pairs (`test/...`).

In the paper, base has 27.3 BLEU from English to German (newstest2014) after 100,000 updates on 8 GPUs, big 28.4.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts

# model: layers of each side, width, heads, feed-forward size, dropout
_TRANSFORMERS = {"tiny": (4, 128, 4, 256, 0.3), "base": (6, 512, 8, 2048, 0.1), "big": (6, 1024, 16, 4096, 0.3)}

# Keys of `model` that `init_from` does not determine, apart from dropout inside layers, which is that of the folder.
CHOSEN = (
    *("dropout", "attention_backend", "dtype", "scan_layers", "remat"),
    *("initializer", "initializer_range", "depth_scaled_init"),
)
VARIANTS = ((*_TRANSFORMERS, "rnn"), ("dates",))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `base`, `dates` or `rnn,dates`."""
    model, dates = parts.chosen(variant, VARIANTS)
    config = parts.config_of("translation")
    config.num_steps = 100_000
    config.batch_size = 96
    config.log_every = 100
    config.evaluate_every = 1000
    config.architecture = "recurrent" if model == "rnn" else "transformer"
    config.start_token = "begin"
    config.model = _recurrent() if model == "rnn" else _transformer(*_TRANSFORMERS[model or "tiny"])
    if not model and not dates:
        parts.unset(config, ("architecture", "start_token"))
        parts.unset(config.model, [key for key in config.model if key not in CHOSEN])
    config.data.source = "dates"
    config.smoothing_denominator = "V"
    _set_optimizer(config.optimizer, _TRANSFORMERS[model or "tiny"][1] if model != "rnn" else 512)
    config.checkpoint.save_every = 1000
    config.checkpoint.keep = 5
    config.checkpoint.best_metric = "valid/bleu"
    parts.unset(config.checkpoint, ["final"])  # default: the mean of the last five, or of all of a short run
    if model in ("", "tiny", "rnn"):
        _shorten(config)
    else:
        config.data.seq_len = 256
    if not model and not dates:
        config.model.dropout = 0.1
        config.optimizer.schedule = "linear"
        config.optimizer.warmup_steps = 500
        config.optimizer.learning_rate = 5e-5
    if dates:
        _shrink_to_dates(config)
    return config


def _transformer(layers: int, hidden: int, heads: int, intermediate: int, dropout: float) -> ConfigDict:
    from bertjax.tasks.translators import TransformerKeys

    model = parts.keys_of(TransformerKeys)
    model.num_layers = layers
    model.num_decoder_layers = layers
    model.hidden_size = hidden
    model.num_heads = heads
    model.intermediate_size = intermediate
    model.activation = "relu"
    model.norm_eps = 1e-5  # as in Marian, like the sinusoid layout, so that a run can be exported
    model.sinusoid_layout = "deinterleaved"
    model.max_positions = 1024
    model.share_embeddings = True
    model.tie_output = True
    model.dropout = dropout
    model.attention_dropout = 0.0
    model.initializer = "xavier_uniform"
    model.initializer_range = hidden**-0.5  # of embeddings
    return model


def _recurrent() -> ConfigDict:
    from bertjax.tasks.translators import RecurrentKeys

    model = parts.keys_of(RecurrentKeys)
    model.embedding_size = 256
    model.hidden_size = 512
    model.attention = "additive"
    model.dropout = 0.3
    model.initializer_range = 0.1
    return model


def _set_optimizer(optimizer: ConfigDict, hidden_size: int) -> None:
    """Sets Adam and the schedule of the paper (section 5.3)."""
    optimizer.schedule = "inverse_sqrt"
    optimizer.warmup_steps = 4000
    optimizer.learning_rate = hidden_size**-0.5 * 4000**-0.5  # the peak
    optimizer.weight_decay = 0.0
    optimizer.beta2 = 0.98
    optimizer.eps = 1e-9
    optimizer.bias_correction = True
    optimizer.clip_norm = 0.0


def _shorten(config: ConfigDict) -> None:
    """Adapts to some ten thousand pairs of short sentences; the Transformer uses fairseq's recipe for Multi30k."""
    config.num_steps = 8000
    config.batch_size = 32
    config.evaluate_every = 500
    config.checkpoint.save_every = 500
    config.data.vocab_size = 10_000
    config.optimizer.warmup_steps = 2000
    config.optimizer.learning_rate = 5e-3
    if config.architecture == "recurrent":
        config.optimizer.schedule = "linear"
        config.optimizer.warmup_steps = 200
        config.optimizer.learning_rate = 1e-3
        config.optimizer.clip_norm = 1.0


def _shrink_to_dates(config: ConfigDict) -> None:
    config.num_steps = 1200
    config.batch_size = 128
    config.evaluate_every = 400
    config.checkpoint.save_every = 400
    config.checkpoint.best_metric = "valid/exact_match"
    config.checkpoint.final = "latest"
    config.metrics = ("exact_match", "chrf")
    config.data.subwords = "characters"
    config.data.joint = False
    config.data.seq_len = 32
    config.decoding.num_beams = 1
    config.model.dropout = 0.1
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = 100
    config.optimizer.learning_rate = 2e-3
    if config.architecture == "recurrent":
        config.model.embedding_size = 64
        config.model.hidden_size = 128
        return
    config.model.num_layers = 2
    config.model.num_decoder_layers = 2
    config.model.hidden_size = 64
    config.model.num_heads = 4
    config.model.intermediate_size = 256
    config.model.initializer_range = 64**-0.5
    config.model.max_positions = 64
    config.model.share_embeddings = False
    config.decoding.max_length = 64
