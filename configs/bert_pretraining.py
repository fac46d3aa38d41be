"""Pretrains BERT: masked language model and next-sentence prediction.

    python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/tiny
    python launch.py --config=configs/bert_pretraining.py:base --workdir=runs/base \\
        --config.data.source='wiki/*.txt' --config.data.vocab_file=vocab.txt

Sizes: tiny, mini, small, medium, base, large. Without a size, `init_from` gives it.

`tiny` on the embedded documentation: 2 cores, minutes; the held-out masked-LM loss ends about 1 nat below the
unigram line (`make demo` shows it). `base` and `large` hold BERT's own recipe at length 128 (batch 256,
1,000,000 steps, learning rate 1e-4): days on an accelerator pod, for GLUE 79.6 and 82.1.
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
    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})
    config.objective = "masked_lm"

    config.model = ConfigDict()
    layers, hidden = SIZES.get(size, (None, None))
    config.model.vocab_size = placeholder(int)
    config.model.num_layers = layers or placeholder(int)
    config.model.hidden_size = hidden or placeholder(int)
    config.model.num_heads = hidden // 64 if hidden else placeholder(int)
    config.model.intermediate_size = 4 * hidden if hidden else placeholder(int)
    config.model.max_positions = 512 if size else placeholder(int)
    config.model.type_vocab_size = 2 if size else placeholder(int)
    config.model.gelu = "erf" if size else placeholder(str)
    config.model.norm_eps = 1e-12 if size else placeholder(float)
    config.model.initializer_range = 0.02
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.norm = "post"
    config.model.direction = "both"
    config.model.dtype = "float32"
    config.model.scan_layers = True
    config.model.remat = False

    config.data = ConfigDict()
    config.data.source = "documentation"
    config.data.valid_source = ""
    config.data.valid_fraction = 0.02
    config.data.text_field = "text"
    config.data.on_bad_row = "stop"
    config.data.lines = "paragraph"
    config.data.vocab_file = ""
    config.data.vocab_size = 30_522
    config.data.lowercase = True if size else placeholder(bool)
    config.data.workers = 0
    config.data.prepared_dir = ""
    config.data.seq_len = 128
    config.data.next_sentence = True
    config.data.short_seq_prob = 0.1
    config.data.random_next_prob = 0.5

    config.masking = ConfigDict()
    config.masking.rate = 0.15
    config.masking.max_predictions = 20
    config.masking.mask_fraction = 0.8
    config.masking.random_fraction = 0.1
    config.masking.keep_fraction = 0.1
    config.masking.whole_word = False
    config.masking.mode = "dynamic"
    config.masking.dupe_factor = 10

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = 0.01
    config.optimizer.no_decay = "bias|norm"
    config.optimizer.beta1 = 0.9
    config.optimizer.beta2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.bias_correction = False
    config.optimizer.clip_norm = 1.0
    config.optimizer.groups = ()

    config.checkpoint = ConfigDict()
    config.checkpoint.save_every = 10_000
    config.checkpoint.keep = 3
    config.checkpoint.best_metric = "valid/masked_lm_loss"
    config.checkpoint.best_mode = "min"

    if size == "tiny":
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
    return config
