"""Ablation: the changes from BERT to a modern encoder, one after another, and without each of them.

    python launch.py --sweep=configs/sweeps/modern_encoder.py --workdir=runs/modern \\
        --set=pretrain.data.source='wiki/*.txt' --set=pretrain.minimal_pairs.source=blimp.jsonl \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv
    python launch.py --sweep=configs/sweeps/modern_encoder.py:tiny --workdir=runs/modern ...

Each row pretrains BERT-Base on 10 G tokens and fine-tunes it on SST-2. A row "+ CHANGE" has the changes of all rows
above it too, so the last of them is `configs/bert_pretraining.py:modern`. A row "without CHANGE" has all the others.
All rows have the same tokens, vocabulary and validation text; the validation rows are single segments of which 15 % is
masked, whatever the rows of training are.

All rows of `tiny` have 15 M tokens, and those of `mini` 20 M. They have no dropout and a trapezoidal schedule, and
start with short rows of text, except "without short rows".
"""

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bertjax.configs import bert_pretraining
from bertjax.configs import parts as config_parts
from bertjax.configs.sweeps import parts

# The keys of each change. Their values are those of the variant `modern`.
_CHANGES = {
    "rotary positions": ("model.positions",),
    "pre-norm": ("model.norm", "model.norm_eps", "model.first_attention_norm", "model.depth_scaled_init"),
    "no biases": ("model.biases", "model.norm_biases"),
    "gated feed-forward": ("model.gated", "model.intermediate_size"),
    "no dropout": ("model.dropout", "model.attention_dropout"),
    "no next sentence": ("data.next_sentence", "model.type_vocab_size", "model.head", "model.pooling"),
    "masking 30 %": ("masking.rate",),
    "trapezoidal schedule": ("optimizer.schedule", "optimizer.decay_fraction"),
    "Muon": ("optimizer.name", "optimizer.learning_rate", "optimizer.bias_correction"),
}

_SMALL_TASK = {"num_epochs": 1.0, "data.seq_len": parts.TINY_LENGTH, "optimizer.learning_rate": 5e-4}
# Rows of 32 tokens first: with longer ones, learned positions do not get below the unigram loss in this number of
# updates (docs/results.md). The learning rate falls after that: with a low one, BERT does not learn longer rows.
_SMALL = {
    "tiny": {
        "budget.tokens": 15e6,
        "data.stages": ((0.57, 32),),
        "optimizer.warmup_steps": 200,
        "optimizer.decay_fraction": 0.43,
    },
    "mini": {
        "budget.tokens": 20e6,
        "data.stages": ((0.7, 32),),
        "optimizer.warmup_steps": 400,
        "optimizer.decay_fraction": 0.3,
    },
}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep of BERT-Base, or of `tiny` or `mini`."""
    (size,) = config_parts.chosen(variant, (("tiny", "mini", "base"),))
    size = size or "base"
    is_small = size in _SMALL
    changes = _changes(size, skipped=("no dropout", "trapezoidal schedule") if is_small else ())
    names = list(changes)
    cumulative = [parts.row("BERT")]
    cumulative += [parts.row(f"+ {name}", _join(changes, names[: i + 1])) for i, name in enumerate(names)]
    without = [parts.row(f"without {name}", _join(changes, set(names) - {name})) for name in names]
    if is_small:
        without.append(parts.row("without short rows", {**_join(changes, names), "pretrain.data.stages": ()}))
    return {
        "stages": [
            parts.stage("pretrain", f"configs/bert_pretraining.py:{size}", _pretraining(size)),
            parts.task("sst2", "pretrain", _SMALL_TASK if is_small else {}),
        ],
        "rows": [*cumulative, *without],
        "base": "BERT",
        "seeds": (0,),
        "metrics": [
            parts.metric("masked-LM loss", "pretrain", "valid/masked_lm_loss", digits=3),
            parts.metric("tokens/s", "pretrain", "train/tokens_per_second", digits=0),
            parts.metric("BLiMP", "pretrain", "valid/pairs/accuracy", "percent", digits=1),
            parts.task_metric("sst2", "SST-2"),
        ],
        "source": "no paper has these rows.",
        "needs": {
            "pretrain.data.source": "the text to pretrain on",
            "pretrain.minimal_pairs.source": "the file of minimal pairs",
            **parts.task_needs(["sst2"]),
        },
    }


def _pretraining(size: str) -> dict[str, Any]:
    """Returns the values of all rows."""
    values = {
        "budget.tokens": 10e9,
        "data.source": "",
        "data.prepared_dir": "{workdir}/prepared",
        "data.packing": True,
        "data.seq_len": 128,
        "data.valid_single_segments": True,
        "masking.valid_rate": 0.15,
    }
    if size in _SMALL:
        values |= {
            "batch_size": 32,
            "log_every": 100,
            "evaluate_every": 1_000,
            "checkpoint.save_every": 1_000,
            "data.vocab_size": 8_192,
            "model.dropout": 0.0,
            "model.attention_dropout": 0.0,
            "optimizer.learning_rate": 1e-3,
            "optimizer.bias_correction": False,
            "optimizer.schedule": "trapezoidal",
            **_SMALL[size],
        }
    return values


def _changes(size: str, skipped: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the values of each change."""
    config = bert_pretraining.get_config(f"{size},modern")

    def value(key: str) -> Any:
        return functools.reduce(operator.getitem, key.split("."), config)

    return {
        name: {f"pretrain.{key}": value(key) for key in keys} for name, keys in _CHANGES.items() if name not in skipped
    }


def _join(changes: Mapping[str, Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    """Returns the values of the changes with these names."""
    return {key: value for name in changes if name in names for key, value in changes[name].items()}
