"""Pretrains an encoder-decoder on prepared text with hidden spans, as BART or as T5.

    python launch.py --config=configs/denoising.py:tiny,bart --workdir=runs/bart
    python launch.py --config=configs/denoising.py:base,t5 --workdir=runs/t5 \\
        --config.data.source='wiki/*.txt' --config.data.vocab_size=32000
    python launch.py --config=configs/text_to_text.py --workdir=runs/answers --config.init_from=runs/t5 ...

The variant, after the colon, is a size and a form, separated by a comma:

- Sizes: tiny, base. Without a size, `init_from` continues a run, or the folder of a BART.
- Forms: bart (the default) hides 30 % of the tokens, in spans that are Poisson with mean 3, each of which is one mask,
  and permutes sentences; the target is the whole text (Lewis et al. 2020). t5 hides 15 %, in spans with mean 3, each of
  which is a sentinel; the target is the spans (Raffel et al. 2020), and the model that of T5 1.1.

`objective` chooses what is predicted, and the keys of `noise` what is hidden, in either form. Losses of objectives do
not compare: `hidden_loss`, that of the hidden tokens alone, compares with `hidden_unigram_loss`; see
docs/guides/pretraining.md. --mode=predict reads texts with [MASK], or with <extra_id_0>, <extra_id_1>, ...
"""

from ml_collections import ConfigDict

from bertjax.configs import parts, translation

_FORMS = ("bart", "t5")
# Layers of each side in BART and T5, width, size of the feed-forward layer in BART and T5 1.1.
SIZES = {"tiny": (2, 2, 128, 512, 384), "base": (6, 12, 768, 3072, 2048)}
VARIANTS = (tuple(SIZES), _FORMS)


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `base,t5`."""
    size, form = parts.chosen(variant, VARIANTS)
    config = parts.config_of("denoising")
    config.log_every = 100
    config.evaluate_every = 10_000
    config.data.source = "documentation"
    config.data.valid_seed = 0  # runs with different seeds compare
    config.data.next_sentence = False
    config.data.short_seq_prob = 0.0
    parts.set_vocabulary(config.data)
    config.decoding.num_beams = 1
    config.checkpoint.save_every = 10_000
    config.checkpoint.keep = 3
    config.checkpoint.best_metric = "valid/nll"
    config.checkpoint.best_mode = "min"
    config.checkpoint.final = "latest"
    config.noise.permute_sentences = form != "t5"
    if form == "t5":
        config.objective = "span_corruption"
        config.noise.rate = 0.15
    config.start_token = "pad" if form == "t5" else "end"
    config.model = _model(size or "base", form or "bart")
    config.num_steps = 524_288 if form == "t5" else 1_000_000
    config.batch_size = 128 if form == "t5" else 256
    config.data.seq_len = 512
    config.optimizer.learning_rate = 1e-4
    config.optimizer.bias_correction = True
    if size:
        config.data.lowercase = True
    else:
        parts.unset(config, ["start_token"])
        parts.unset(config.model, [key for key in config.model if key not in translation.CHOSEN])
        parts.unset(config.data, ["seq_len"])
    if size == "tiny":
        _shorten(config, form)
    return config


def _model(size: str, form: str) -> ConfigDict:
    """Returns the model keys of a size in a form, which exports to the family of that name."""
    from bertjax.interop import families
    from bertjax.tasks.translators import TransformerKeys

    is_t5 = form == "t5"
    bart_layers, t5_layers, hidden, bart_intermediate, t5_intermediate = SIZES[size]
    model = parts.keys_of(TransformerKeys)
    model.num_layers = model.num_decoder_layers = t5_layers if is_t5 else bart_layers
    model.hidden_size = hidden
    model.num_heads = hidden // 64
    model.intermediate_size = t5_intermediate if is_t5 else bart_intermediate
    model.max_positions = 1024
    model.share_embeddings = True
    model.tie_output = not is_t5
    model.activation = "gelu_tanh" if is_t5 else "gelu"
    model.gated = is_t5
    model.norm_eps = 1e-6
    model.scale_embeddings = False
    model.key_size = model.value_size = 64
    model.dropout = 0.0 if is_t5 else 0.1
    model.attention_dropout = 0.0 if is_t5 else 0.1
    model.update(families.module(form).FAMILY.fixed)
    return model


def _shorten(config: ConfigDict, form: str) -> None:
    """Reduces the cost to minutes on a laptop: shorter rows, a smaller vocabulary, fewer updates at a higher rate."""
    config.num_steps = 2_000
    config.batch_size = 32
    config.log_every = 50
    config.evaluate_every = config.checkpoint.save_every = 400
    config.model.dropout = config.model.attention_dropout = 0.0
    config.data.seq_len = 64
    config.data.vocab_size = 4_096
    config.data.valid_fraction = 0.05
    config.optimizer.name = "muon"
    # T5 does not scale its attention scores: at 1e-2, the loss of 350 updates of 64 rows had 13 spikes.
    config.optimizer.learning_rate = 3e-3 if form == "t5" else 1e-2
    config.optimizer.warmup_steps = 100
    config.optimizer.schedule = "trapezoidal"
    config.optimizer.decay_fraction = 0.4
