"""Pretrains BERT on the masked language model and next-sentence prediction.

    python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/tiny
    python launch.py --config=configs/bert_pretraining.py:base --workdir=runs/base \\
        --config.data.source='wiki/*.txt' --config.data.vocab_file=vocab.txt
    python launch.py --config=configs/bert_pretraining.py:phase2 --workdir=runs/base512 \\
        --config.init_from=runs/base --config.data.source='wiki/*.txt'

The variant, after the colon, is any of a size, `modern`, `lamb`, `phase2` or `adaptation`, `diffusion` or `gpt_bert`,
and `distilbert`, `tinybert` or `minilm`, separated by commas:

- Sizes: tiny, mini, small, medium, base, large. Without a size, `init_from` determines it.
- `modern` has the structure of ModernBERT (Warner et al. 2024) with a size of BERT: rotary positions, pre-norm, GeGLU,
  no biases, no token types. There is no next-sentence prediction and no dropout. Training has Muon, a trapezoidal
  schedule, and 30 % of masked tokens; evaluations mask 15 %.
- `modernbert_base` and `modernbert_large`, and `ettin_17m`, `ettin_32m`, `ettin_68m` and `ettin_150m` (Weller et al.
  2025), are published sizes, with local and global layers. Rows have 1,024 tokens, of which 30 % are masked. The
  optimizer is BERT's. `modern` without a size is `modernbert_base`.
- `phase2` continues the run in `init_from` at length 512, with a new warm-up and learning-rate schedule;
  `modern,phase2` continues a run of `modern`.
- `adaptation` continues the model in `init_from` on text of a domain with the recipe of Gururangan et al. (2020,
  appendix B): 12,500 updates of 2,048 rows of 512 tokens, at a learning rate of 5e-4 after 6 % of warm-up. It adds the
  words of the text that save the most tokens. `word_likelihood.source` names texts to score before and after. See
  docs/guides/adaptation.md; `modern,adaptation` has no dropout.
- `diffusion` trains a masked diffusion model (Sahoo et al. 2024): each row hides a share of its tokens drawn from
  (0, 1], and the loss is a bound of the negative log-likelihood. `gpt_bert` also trains on causal rows, one in 16, and
  predicts hidden tokens, 30 % to 15 %, one position earlier (Charpentier and Samuel 2024). Without a size, they
  continue the model in `init_from`, such as ModernBERT's folder. `likelihood.source` and `causal_pairs.source` name
  texts and minimal pairs to evaluate.
- `distilbert`, `tinybert` and `minilm` train a student of the BERT in `teacher`, whose vocabulary it has; a size makes
  another student. Weights of terms are relative to means over tokens. DistilBERT (Sanh et al. 2019) has 6 of the
  teacher's layers, logits of all tokens at temperature 2, labels and cosines, with the weights 5, 2 and 1 of its code;
  the code starts from layers 1,3,5,8,10,12 of 12. TinyBERT (Jiao et al. 2020) has 4 layers of width 312; its
  embeddings, outputs of layers and attention scores are compared, as in its general distillation. Its code adds up
  layers, and its augmentation of fine-tuning rows is not built. MiniLM (MiniLMv2, Wang et al. 2021) has 6 layers of
  width 384, and 48 relation heads in the last layer; for a large teacher, the paper takes layer 21 of 24.
- `lamb` is the large-batch recipe of NVIDIA's BERT (LAMB, You et al. 2020): 7,038 updates of 65,536 rows, then
  1,563 of 32,768. The default is BERT's AdamW: 900,000 updates of 256 rows, then 100,000.

`tiny` trains on the embedded documentation by default, as in `make demo`. It takes two minutes on 2 cores and reaches a
validation masked-LM loss 2.0 nats below the unigram baseline; `tiny,modern` is 2.9 nats below it (docs/results.md). The
other sizes use BERT's recipe and take days on accelerators. In the paper, the average on GLUE's test sets is 79.6
(base) and 82.1 (large).
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import MODERNBERT_SIZES, SIZES

# The terms of `distillation`, and the sizes of the paper's student: layers, hidden size, heads, feed-forward size.
_STUDENTS = {
    "distilbert": (
        {"labels": 2.0, "logits": 5.0, "logits_at": "all", "temperature": 2.0, "cosine": 1.0, "init_layers": "uniform"},
        (6, 768, 12, 3072),
    ),
    "tinybert": ({"labels": 0.0, "hidden": 1.0, "embeddings": 1.0, "attention": 1.0}, (4, 312, 12, 1200)),
    "minilm": ({"labels": 0.0, "relations": 1.0, "relation_heads": 48}, (6, 384, 12, 1536)),
}
VARIANTS = (
    (*SIZES, *MODERNBERT_SIZES),
    ("modern",),
    ("lamb",),
    ("phase2", "adaptation"),
    ("diffusion", "gpt_bert"),
    tuple(_STUDENTS),
)
_NOISE = {
    "diffusion": {
        "mask_fraction": 1.0,
        "random_fraction": 0.0,
        "keep_fraction": 0.0,
        "distribution": "uniform",
        "loss_weight": "inverse_rate",
    },
    "gpt_bert": {"rate": 0.3, "final_rate": 0.15, "valid_rate": 0.15, "predict_at": "previous", "causal_share": 1 / 16},
}


def get_config(variant: str = "", experiment: str = "bert_pretraining") -> ConfigDict:
    """Returns the config of a variant such as `base`, `large,lamb`, `tiny,modern` or `lamb,phase2`."""
    size, modern, lamb, continued, noise, student = parts.chosen(variant, VARIANTS)
    size = size or ("modernbert_base" if modern and not continued else "")
    config = parts.config_of(experiment)
    config.num_steps = 900_000
    config.batch_size = 256
    config.log_every = 100
    config.evaluate_every = 10_000
    is_published = size in MODERNBERT_SIZES
    if is_published:
        parts.set_modernbert(config.model, size)
    else:
        parts.set_size(config.model, size or ("base" if student else ""), is_modern=bool(modern))
    config.data.source = "documentation"
    config.data.valid_seed = 0  # runs with different seeds compare
    parts.set_vocabulary(config.data)
    if size:
        config.data.lowercase = True
    if experiment == "bert_pretraining":
        for name in ("minimal_pairs", "causal_pairs", "likelihood", "word_likelihood"):
            config[name] = parts.evaluation(name)
    config.checkpoint.save_every = 10_000
    config.checkpoint.keep = 3
    parts.unset(config.checkpoint, ["best_metric"])  # default: the loss of `objective`
    config.checkpoint.best_mode = "min"
    config.checkpoint.final = "latest"
    if size == "tiny":
        _shorten(config)
    if modern or is_published:
        _modernize(config)
    if modern and not is_published:
        _speed_up(config, size)
    if is_published:
        _use_long_rows(config)
    if continued == "phase2":
        _lengthen(config)
    if continued == "adaptation":
        _adapt(config)
    if student:
        _distil(config, student, has_size=bool(size), is_new=not continued)
    if noise:
        config.data.next_sentence = False
        config.masking.update(_NOISE[noise])
    if lamb:
        _enlarge_batches(config, second_phase=continued == "phase2")
    return config


def _distil(config: ConfigDict, student: str, *, has_size: bool, is_new: bool) -> None:
    """Sets the terms of a student and, unless the variant has a size or continues a model, the sizes of the paper's."""
    terms, (layers, hidden, heads, intermediate) = _STUDENTS[student]
    parts.unset(config, ["teacher"])  # required
    config.distillation.update(terms)
    config.data.next_sentence = False
    if not is_new:
        config.distillation.init_layers = ""
    elif not has_size:
        config.model.num_layers = layers
        config.model.hidden_size = hidden
        config.model.num_heads = heads
        config.model.intermediate_size = intermediate


def _modernize(config: ConfigDict) -> None:
    """Sets what ModernBERT's pretraining changes for every size."""
    config.data.next_sentence = False
    config.model.dropout = config.model.attention_dropout = 0.0
    config.model.depth_scaled_init = True


def _speed_up(config: ConfigDict, size: str) -> None:
    """Sets the training of the last row of `configs/sweeps/modern_encoder.py`."""
    config.masking.rate = 0.3
    config.masking.valid_rate = 0.15  # as BERT
    config.optimizer.name = "muon"
    config.optimizer.learning_rate = {"tiny": 1e-2, "mini": 5e-3}.get(size, 1e-3)
    config.optimizer.bias_correction = True
    config.optimizer.schedule = "trapezoidal"
    config.optimizer.decay_fraction = 0.4


def _use_long_rows(config: ConfigDict) -> None:
    """Sets the rows of the first phase of ModernBERT's pretraining (Warner et al. 2024, section 2.2)."""
    config.data.seq_len = 1024
    config.data.packing = True
    config.data.vocab_size = config.model.vocab_size
    config.masking.rate = 0.3


def _lengthen(config: ConfigDict) -> None:
    """Sets the second phase: a tenth of the updates, at full length."""
    parts.unset(config, ["init_from"])  # required: the run of the first phase
    config.num_steps = 100_000
    config.data.seq_len = 512
    config.data.stages = ()


def _adapt(config: ConfigDict) -> None:
    """Sets domain-adaptive pretraining (Gururangan et al. 2020, appendix B), and the words to add."""
    parts.unset(config, ["init_from"])  # required: the model to adapt
    config.data.source = ""  # required: the text
    config.data.add_words = 10_000  # fewer save at least one token in 10,000
    config.data.next_sentence = False
    config.data.seq_len = 512
    config.data.stages = ()
    config.num_steps = 12_500
    config.batch_size = 2_048
    config.evaluate_every = config.checkpoint.save_every = 500
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4
    config.optimizer.beta2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = round(0.06 * config.num_steps)
    config.word_likelihood.every = config.num_steps  # before and after training alone


def _enlarge_batches(config: ConfigDict, second_phase: bool) -> None:
    """Sets the recipe of NVIDIA's DeepLearningExamples for a phase of BERT-Large."""
    config.batch_size = 32_768 if second_phase else 65_536
    config.num_steps = 1_563 if second_phase else 7_038
    config.log_every = 10
    config.evaluate_every = config.checkpoint.save_every = 200
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 4e-3 if second_phase else 6e-3
    config.optimizer.schedule = "sqrt_decay"
    config.optimizer.warmup_steps = round((0.128 if second_phase else 0.2843) * config.num_steps)
    config.optimizer.bias_correction = True


def _shorten(config: ConfigDict) -> None:
    """Reduces the cost to minutes on a laptop: shorter rows, a smaller vocabulary, fewer updates at a higher rate."""
    config.num_steps = 2_000
    config.batch_size = 32
    config.log_every = 50
    config.evaluate_every = 400
    config.model.dropout = config.model.attention_dropout = 0.0
    config.data.seq_len = 64
    config.data.stages = ((0.7, 16),)  # with longer rows, learned positions do not get far below the unigram loss
    config.data.packing = True
    config.data.vocab_size = 4_096
    config.data.valid_fraction = 0.05
    config.optimizer.learning_rate = 1e-3
    config.optimizer.bias_correction = True
    config.optimizer.warmup_steps = 100
    config.optimizer.schedule = "trapezoidal"
    config.optimizer.decay_fraction = 0.4
    config.checkpoint.save_every = 400
