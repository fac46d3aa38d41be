"""Ablation: what a student with half of the layers learns from its teacher, at equal FLOPs, the teacher's counted.

    python launch.py --config=configs/bert_pretraining.py:mini,modern --workdir=runs/teacher ...
    python launch.py --sweep=configs/sweeps/distillation.py:mini --workdir=runs/distillation \\
        --set=pretrain.teacher=runs/teacher --set=pretrain.data.source='wiki/*.txt' \\
        --set=stsb.data.source=STS-B/train.tsv --set=stsb.data.valid_source=STS-B/dev.tsv \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv

The teacher is a masked language model of the same size: BERT-Base, or `mini,modern` or `tiny,modern` with rows of 128
tokens. Each row pretrains a student with 1e19 FLOPs, `mini` with 1e14 or `tiny` with 1e13, and fine-tunes it. The first
three rows have no teacher; the third, which has all layers, is the teacher trained further. Rows whose labels have no
weight do not train the masked-LM head, so that their loss is not comparable. "TinyBERT" is its general distillation
alone, without the augmentation of fine-tuning rows. The page draws the scores against the time of a text of SST-2.
"""

from typing import Any

from bertjax.configs import parts as config_parts
from bertjax.configs.sizes import SIZES
from bertjax.configs.sweeps import parts

_FLOPS = {"base": 1e19, "mini": 1e14, "tiny": 1e13}
_RELATION_HEADS = {"base": 48, "mini": 16, "tiny": 8}  # of width 16, as in the paper
_WHOLE = "every layer"
_ROWS: dict[str, dict[str, Any]] = {
    "from scratch": {},
    "every second layer": {"init_layers": "uniform"},
    _WHOLE: {"init_layers": "uniform"},
    "DistilBERT": {
        "labels": 2.0,
        "logits": 5.0,
        "logits_at": "all",
        "temperature": 2.0,
        "cosine": 1.0,
        "init_layers": "uniform",
    },
    "TinyBERT, general": {"labels": 0.0, "hidden": 1.0, "embeddings": 1.0, "attention": 1.0},
    "MiniLMv2": {"labels": 0.0, "relations": 1.0},
}
_TASKS = {"stsb": "STS-B", "mrpc": "MRPC", "sst2": "SST-2"}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep of BERT-Base, or of `tiny` or `mini`."""
    (size,) = config_parts.chosen(variant, (tuple(_FLOPS),))
    size = size or "base"
    return {
        "stages": [
            parts.stage("pretrain", f"configs/bert_pretraining.py:{_model(size)}", _pretraining(size)),
            *parts.fine_tuned(list(_TASKS), size),
        ],
        "rows": [parts.row(name, _row(size, name)) for name in _ROWS],
        "base": "from scratch",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric("loss", "pretrain", "valid/masked_lm_loss", digits=3),
            *(parts.task_metric(name, heading) for name, heading in _TASKS.items()),
            parts.metric("ms per text", "sst2", "train/evaluation_row_seconds", "milliseconds"),
        ],
        "cost": "ms per text",
        "source": "no paper has these rows.",
        "needs": {
            "pretrain.data.source": "the text to pretrain on",
            "pretrain.teacher": "the teacher, a masked language model of this size",
            **parts.task_needs(list(_TASKS)),
        },
    }


def _model(size: str) -> str:
    return size if size == "base" else f"{size},modern"


def _row(size: str, name: str) -> dict[str, Any]:
    """Returns the terms of a row, and its number of layers."""
    layers, _ = SIZES[size]
    terms = {f"pretrain.distillation.{key}": value for key, value in _ROWS[name].items()}
    return {**terms, "pretrain.model.num_layers": layers if name == _WHOLE else layers // 2}


def _pretraining(size: str) -> dict[str, Any]:
    """Returns the values of all rows."""
    heads = _RELATION_HEADS[size]
    of_students = {"teacher": "", "distillation.relation_heads": heads, "data.next_sentence": False}
    return {**parts.one_phase(size, _FLOPS[size]), **of_students}
