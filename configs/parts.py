"""Parts that several configs share."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertjax.configs.sizes import MODERNBERT_SIZES, SIZES
from bertjax.errors import UserError, did_you_mean


def chosen(variant: str, groups: Sequence[Sequence[str]]) -> list[str]:
    """Returns the name of each group that a variant such as `base,lamb` contains, or "" for a group without one.

    Args:
      variant: names, separated by commas.
      groups: names that exclude each other.
    Raises:
      UserError: for an unknown name, or two names of a group.
    """
    names = [name for name in variant.split(",") if name]
    found = [[name for name in names if name in group] for group in groups]
    unknown = [name for name in names if not any(name in group for group in groups)]
    if unknown or any(len(of_group) > 1 for of_group in found):
        expected = "; ".join(("at most one of " if len(group) > 1 else "") + ", ".join(group) for group in groups)
        fix = "correct the part after the colon"
        if unknown:
            fix = did_you_mean(unknown[0], [name for group in groups for name in group], fix)
        raise UserError("variant", got=repr(variant), expected=f"names, separated by commas: {expected}", fix=fix)
    return [of_group[0] if of_group else "" for of_group in found]


def mesh() -> ConfigDict:
    """Returns the default mesh: all devices on the data axis."""
    return ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})


def training(experiment: str) -> ConfigDict:
    """Returns the keys that all training configs share."""
    config = ConfigDict()
    config.experiment = experiment
    config.init_from = ""
    config.seed = 0
    config.rng = "threefry2x32"
    config.accumulation_steps = 1
    config.evaluate_patience = 0
    config.evaluations = ""
    config.budget = {"tokens": 0.0, "flops": 0.0, "hours": 0.0}
    config.parallel = "jit"
    config.mesh = mesh()
    config.optimizer = adamw()
    config.checkpoint = {
        "save_every": placeholder(int),
        "keep": 1,
        "best_metric": "",
        "best_mode": "max",
        "keep_best": 1,
        "final": "best",
    }
    return config


def model(size: str, *, is_modern: bool = False) -> ConfigDict:
    """Returns the model keys. Without a size, `init_from` fills in the keys that are None.

    Args:
      size: a name in `SIZES`, or "".
      is_modern: whether the model has the structure of ModernBERT instead of BERT's.
    """
    layers, hidden = SIZES[size or "tiny"]
    model = ConfigDict()
    model.num_layers = layers
    model.hidden_size = hidden
    model.num_heads = hidden // 64
    model.num_key_value_heads = 0  # that of num_heads
    model.intermediate_size = 4 * hidden
    model.max_positions = 512
    model.type_vocab_size = 2
    model.positions = "learned"
    model.rotary_base = 10_000.0  # with model.positions=rotary
    model.local_rotary_base = 10_000.0
    model.relative_positions = "none"
    model.relative_buckets = 32  # with model.relative_positions
    model.relative_distance = 128
    model.relative_terms = "both"  # with model.relative_positions=disentangled
    model.relative_norm = False
    model.convolution_size = 0
    model.convolution_activation = "gelu"
    model.local_attention = 0
    model.global_every = 3  # with model.local_attention
    model.activation = "gelu"
    model.gated = False
    model.biases = True
    model.unbiased = "none"
    model.norm = "post"
    model.norm_type = "layer"
    model.norm_biases = True
    model.norm_eps = 1e-12
    model.qk_norm = False
    model.layer_groups = 0  # no parameters are shared
    model.embedding_size = 0  # that of the layers
    model.embedding_norm = True
    model.first_attention_norm = True
    model.tie_output = True
    model.masked_lm_head = "transform"
    model.head = "pooler"
    model.pooling = "cls"
    model.pooler_activation = "tanh"
    model.direction = "both"
    if is_modern:
        model.update(_modern(hidden))
    if not size:
        model.update({key: placeholder(type(value)) for key, value in model.items()})
    _add_changeable(model)
    return model


def _add_changeable(model: ConfigDict) -> None:
    """Adds the model keys that a size does not determine."""
    model.vocab_size = placeholder(int)  # default: from the vocabulary
    model.family = placeholder(str)
    model.dropout = 0.1
    model.attention_dropout = 0.1
    model.activation_dropout = 0.0
    model.attention_backend = "auto"
    model.initializer = "truncated_normal"
    model.initializer_range = 0.02
    model.depth_scaled_init = False
    model.dtype = "float32"
    model.scan_layers = False  # True compiles faster and runs slower
    model.remat = "none"


def inference_model() -> ConfigDict:
    """Returns the model keys of experiments that train nothing: those of `model` that matter after training."""
    config = model("")
    of_training = ("dropout", "attention_dropout", "activation_dropout", "initializer", "initializer_range", "remat")
    for key in of_training:
        del config[key]
    return config


def _modern(hidden: int) -> dict[str, Any]:
    """Returns the keys in which ModernBERT's structure differs from BERT's (Warner et al. 2024, section 2.1)."""
    return {
        # A gate is a third matrix, so matrices with 2/3 of BERT's size have as many parameters; a multiple of 128.
        "intermediate_size": round(8 / 3 * hidden / 128) * 128,
        "type_vocab_size": 0,
        "positions": "rotary",
        "gated": True,
        "biases": False,
        "norm": "pre",
        "norm_biases": False,
        "norm_eps": 1e-5,
        "first_attention_norm": False,
        "head": "transform",
        "pooling": "mean",
    }


def modernbert(size: str) -> ConfigDict:
    """Returns the model keys of a published ModernBERT, a name in `MODERNBERT_SIZES`."""
    keys = model("base", is_modern=True)
    keys.num_layers, keys.hidden_size, keys.intermediate_size = MODERNBERT_SIZES[size]
    keys.num_heads = keys.hidden_size // 64
    keys.max_positions = 8192
    keys.rotary_base = 160_000.0
    keys.local_attention = 128
    keys.vocab_size = 50_368
    return keys


def adamw() -> ConfigDict:
    """Returns the optimizer of BERT's pretraining."""
    optimizer = ConfigDict()
    optimizer.name = "adamw"
    optimizer.learning_rate = 1e-4
    optimizer.schedule = "linear"
    optimizer.warmup_steps = 10_000
    optimizer.weight_decay = 0.01
    optimizer.no_decay = "bias|norm"
    optimizer.beta1 = 0.9
    optimizer.beta2 = 0.999
    optimizer.eps = 1e-6
    optimizer.bias_correction = False
    optimizer.clip_norm = 1.0
    optimizer.layer_decay = 1.0
    optimizer.frozen_layers = 0
    optimizer.groups = ()
    optimizer.schedule_steps = placeholder(int)  # default: num_steps
    optimizer.decay_fraction = 0.2
    optimizer.muon_beta = 0.95
    optimizer.muon_ns_steps = 5
    return optimizer


def fine_tuning(experiment: str, size: str) -> ConfigDict:
    """Returns the keys that all fine-tuning configs share: BERT's recipe (Devlin et al. 2019, appendix A.3)."""
    config = training(experiment)
    config.num_epochs = 3.0
    config.warmup_fraction = 0.1
    config.num_steps = placeholder(int)  # default: from num_epochs
    config.batch_size = 32
    config.log_every = 50
    config.evaluate_every = placeholder(int)  # default: once an epoch
    config.model = model(size)
    config.model.classifier_dropout = 0.1
    config.model.lstm_size = 0
    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup_steps = placeholder(int)  # default: from warmup_fraction
    # Without it, short runs sometimes fail (Zhang et al. 2021; Mosbach et al. 2021).
    config.optimizer.bias_correction = True
    return config


def rows(size: str) -> ConfigDict:
    """Returns the keys of the sources of fine-tuning rows and of the vocabulary."""
    data = ConfigDict()
    data.source = ""
    data.valid_source = ""
    data.valid_fraction = 0.1
    data.on_bad_row = "stop"
    data.seq_len = placeholder(int)  # default: the experiment's, or all positions of a model with fewer
    data.row_lengths = placeholder(tuple)  # default: from the training rows
    data.vocab_file = ""
    data.add_tokens = ()
    data.lowercase = True if size else placeholder(bool)
    data.workers = 0  # default: one per core
    data.prepared_dir = ""  # default: the run's folder
    data.beam = {"runner": "", "options": ()}
    return data


def table(size: str) -> ConfigDict:
    """Returns the keys of `rows` and those of tables."""
    data = rows(size)
    data.header = True
    data.separator = ""
    return data


def decoding() -> ConfigDict:
    """Returns the keys of beam search and of `decoding.method=sampling`."""
    decoding = ConfigDict()
    decoding.method = "beam_search"
    decoding.num_beams = 4
    decoding.n_best = 1
    decoding.length_penalty = "gnmt"
    decoding.alpha = 0.6
    decoding.count_eos = True
    decoding.max_length = 1024
    decoding.max_ratio = 1.0
    decoding.max_extra = 50
    decoding.min_ratio = 0.0
    decoding.min_extra = 0
    decoding.block_ngrams = 0
    decoding.force_eos = False
    decoding.forbid_unk = False
    decoding.sample_by_line = False
    decoding.stopping = "exact"
    decoding.temperature = 1.0  # this and the following keys apply to sampling
    decoding.top_k = 0
    decoding.top_p = 1.0
    return decoding


def articles(size: str) -> ConfigDict:
    """Returns the keys of articles to summarize, and of how they are encoded as BERT rows."""
    data = ConfigDict()
    data.source = "documentation" if size else ""
    data.valid_source = ""
    data.test_source = ""
    data.valid_fraction = 0.1
    data.layout = "file"
    data.article_field = "article"
    data.summary_field = "summary"
    data.gold_field = ""
    data.gold_as = "numbers"
    data.summary_as = "sentences"
    data.splitter = "punkt"
    data.on_bad_row = "stop"
    data.limits = {
        "min_sentences": 3,
        "max_sentences": 1000,
        "min_words": 5,
        "max_words": 200,
        "min_summary_words": 5,
        "max_summary_words": 500,
    }
    data.oracle = {
        "method": "greedy",
        "counts": "sets",
        "ngrams": (1, 2),
        "stem": False,
        "lowercase": False,
        "num_sentences": 3,
        "first_sentences": 0,
        "letters": "ascii",
    }
    data.seq_len = placeholder(int)  # default: 512, or all positions of a model with fewer
    data.row_lengths = placeholder(tuple)  # default: from the training rows
    data.long_articles = "windows"
    data.window_overlap = placeholder(int)  # default: 128, or a quarter of data.seq_len if that is at most 128
    data.interval_segments = True if size else placeholder(bool)  # default: init_from's, or True
    data.words = "bert" if size else placeholder(str)  # default: init_from's, or "bert"
    data.vocab_file = ""
    data.add_tokens = ()
    data.vocab_size = 8192
    data.tokenizer = "wordpiece"
    data.lowercase = True if size else placeholder(bool)
    data.workers = 0  # default: one per core
    data.prepared_dir = ""  # default: the run's folder
    data.beam = {"runner": "", "options": ()}
    return data
