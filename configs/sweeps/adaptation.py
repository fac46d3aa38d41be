"""Ablation: adaptation of a model to a domain, by masked text, replay of general text, and added words.

    python launch.py --sweep=configs/sweeps/adaptation.py --workdir=runs/adaptation \\
        --set=pretrain.data.source='wiki/*.txt' \\
        --set=adapt.data.mixture="(('domain', 'notes/*.txt', 0.7), ('general', 'wiki/*.txt', 0.3))" \\
        --set=adapt.word_likelihood.source="(('domain', 'notes_held_out.txt'), ('general', 'wiki_held_out.txt'))" \\
        --set=stsb.data.source=STS-B/train.tsv --set=stsb.data.valid_source=STS-B/dev.tsv

A model of the size `mini`, or `tiny`, is pretrained on the general text with the first seed. Each row adapts it, and
fine-tunes the result on STS-B. "none" makes one update with a learning rate of 0; "masked" has a thousandth of replay.
"""

from typing import Any

from bertjax.configs import parts as config_parts
from bertjax.configs.sweeps import parts

_SCALES = {"mini": (20_000, 2_000), "tiny": (2_000, 500)}  # updates of pretraining and of adaptation
_NO_UPDATE = {"adapt.num_steps": 1, "adapt.optimizer.learning_rate": 0.0, "adapt.optimizer.warmup_steps": 0}
_NO_REPLAY = {"adapt.data.phases": ((0.999, {"weights": {"domain": 1.0}}),)}
_NO_WORDS = {"adapt.data.add_words": 0}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep of `mini`, or of `tiny`."""
    (tiny,) = config_parts.chosen(variant, (("tiny",),))
    size = tiny or "mini"
    pretraining, updates = _SCALES[size]
    shared = {
        "batch_size": 32,
        "data.seq_len": parts.TINY_LENGTH,
        "data.prepared_dir": "{workdir}/prepared",
        "optimizer.learning_rate": 1e-3,
        "optimizer.bias_correction": True,
    }
    before = {"data.source": "", "data.next_sentence": False, "data.stages": ((0.7, 32),), "num_steps": pretraining}
    after = {"num_steps": updates, "optimizer.warmup_steps": updates // 16}
    return {
        "stages": [
            parts.stage("pretrain", f"configs/bert_pretraining.py:{size}", {**shared, **before}, one_seed=True),
            parts.stage("adapt", "configs/bert_pretraining.py:adaptation", {**shared, **after}, "pretrain"),
            parts.task("stsb", "adapt", {"data.seq_len": parts.TINY_LENGTH, "optimizer.learning_rate": 3e-4}),
        ],
        "rows": [
            parts.row("none", {**_NO_UPDATE, **_NO_WORDS}),
            parts.row("masked", {**_NO_REPLAY, **_NO_WORDS}),
            parts.row("+ replay", _NO_WORDS),
            parts.row("+ added words"),
        ],
        "base": "masked",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric("domain, nats per word", "adapt", "valid/domain/nats_per_word", direction="min", digits=3),
            parts.metric("general, nats per word", "adapt", "valid/general/nats_per_word", direction="min", digits=3),
            parts.task_metric("stsb", "STS-B"),
        ],
        "source": "no paper has these rows.",
        "needs": {
            "pretrain.data.source": "the general text",
            "adapt.data.mixture": "the text of the domain and the general text",
            "adapt.word_likelihood.source": "other text of the domain and other general text",
            **parts.task_needs(["stsb"]),
        },
    }
