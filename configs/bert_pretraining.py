"""Pretrains BERT: masked language model and next-sentence prediction.

    python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/tiny
    python launch.py --config=configs/bert_pretraining.py:base --workdir=runs/base \\
        --config.data.source='wiki/*.txt' --config.data.vocab_file=vocab.txt

Sizes: tiny, mini, small, medium, base, large. Without a size, `init_from` gives it.

`tiny` on the embedded documentation, as `make demo` runs it: minutes on 2 cores, and a held-out masked-LM loss about
0.9 nat below the unigram line. The other sizes hold BERT's recipe at length 128 (batch 256, 1,000,000 steps, learning
rate 1e-4): days on accelerators, for an average on GLUE's tests of 79.6 (base) and 82.1 (large) in the paper.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs.sizes import SIZES


def get_config(size: str = "") -> ConfigDict:
    """The config of a size, or of whatever size the folder in `init_from` has."""
    if size and size not in SIZES:
        raise ValueError(f"config variant: got {size!r}; expected one of {', '.join(SIZES)}")
    config = ConfigDict()
    config.experiment = "bert_pretraining"
    config.init_from = ""
    config.seed = 0
    config.num_steps = 1_000_000
    config.batch_size = 256
    config.accumulation_steps = 1
    config.log_every = 100
    config.evaluate_every = 10_000
    config.parallel = "jit"
    config.mesh = {"data": -1, "fsdp": 1, "tensor": 1}
    config.objective = "masked_lm"
    config.model = _published(size) if size else _unknown()
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.initializer_range = 0.02
    config.model.dtype = "float32"
    config.model.scan_layers = True
    config.model.remat = False
    config.data = _data()
    config.data.lowercase = True if size else placeholder(bool)
    config.masking = _masking()
    config.optimizer = _adamw_of_bert()
    config.checkpoint = {
        "save_every": 10_000,
        "keep": 3,
        "best_metric": "valid/masked_lm_loss",
        "best_mode": "min",
    }
    if size == "tiny":
        _shorten(config)
    return config


def _published(size: str) -> ConfigDict:
    layers, hidden = SIZES[size]
    model = ConfigDict()
    model.vocab_size = placeholder(int)  # follows from the vocabulary
    model.num_layers = layers
    model.hidden_size = hidden
    model.num_heads = hidden // 64
    model.intermediate_size = 4 * hidden
    model.max_positions = 512
    model.type_vocab_size = 2
    model.gelu = "erf"
    model.norm_eps = 1e-12
    model.norm = "post"
    model.direction = "both"
    return model


def _unknown() -> ConfigDict:
    """What `init_from` fills in."""
    model = _published("tiny")
    types = {key: type(value) for key, value in model.items() if key != "vocab_size"}
    model.update({key: placeholder(kind) for key, kind in types.items()})
    return model


def _data() -> ConfigDict:
    data = ConfigDict()
    data.source = "documentation"
    data.valid_source = ""
    data.valid_fraction = 0.02
    data.text_field = "text"
    data.on_bad_row = "stop"
    data.lines = "paragraph"
    data.vocab_file = ""
    data.vocab_size = 30_522
    data.workers = 0
    data.prepared_dir = ""
    data.seq_len = 128
    data.next_sentence = True
    data.short_seq_prob = 0.1
    data.random_next_prob = 0.5
    return data


def _masking() -> ConfigDict:
    masking = ConfigDict()
    masking.rate = 0.15
    masking.max_predictions = 20
    masking.mask_fraction = 0.8
    masking.random_fraction = 0.1
    masking.keep_fraction = 0.1
    masking.whole_word = False
    masking.mode = "dynamic"
    masking.dupe_factor = 10
    return masking


def _adamw_of_bert() -> ConfigDict:
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
    optimizer.groups = ()
    return optimizer


def _shorten(config: ConfigDict) -> None:
    """Minutes on a laptop: shorter rows, a smaller vocabulary, fewer updates at a higher rate."""
    config.num_steps = 1_600
    config.batch_size = 64
    config.log_every = 50
    config.evaluate_every = 400
    config.data.seq_len = 64
    config.data.vocab_size = 4_096
    config.data.valid_fraction = 0.05
    config.masking.max_predictions = 10
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 200
    config.checkpoint.save_every = 400
