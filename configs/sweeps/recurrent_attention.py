"""Ablation: attention in a recurrent translation model, compared with the Transformer.

    python launch.py --sweep=configs/sweeps/recurrent_attention.py --workdir=runs/attention \\
        --set=train.data.source=train.en --set=train.data.target=train.de \\
        --set=train.data.valid_source=val.en --set=train.data.valid_target=val.de \\
        --set=train.data.test_source=test.en --set=train.data.test_target=test.de
    python launch.py --sweep=configs/sweeps/recurrent_attention.py:tiny --workdir=runs/attention

The rows are Sutskever et al. 2014 with a GRU (no attention), Bahdanau et al. 2015 (additive), and Luong et al. 2015
(dot and general). The sweep suits some ten thousand pairs, such as Multi30k. `tiny` learns to write dates, and
`tiny,text` learns from files named as above, both with a small model in minutes per row.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_KINDS = ("none", "additive", "dot", "general")
# At a rate of 1e-3, no model learns to attend in this number of updates.
_SMALL_RECURRENT = {"model.embedding_size": 64, "model.hidden_size": 128, "optimizer.learning_rate": 5e-3}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep for Multi30k, `tiny` or `tiny,text`."""
    scale = parts.scale(variant)
    dates = scale == "dates"
    transformer, recurrent = ("dates", "rnn,dates") if dates else ("tiny", "rnn")
    score = ("exact match", "valid/exact_match") if dates else ("BLEU", "test/bleu")
    small = scale == "text"
    return {
        "stages": [
            parts.stage(
                "train",
                f"configs/translation.py:{transformer}",
                parts.PAIRS if scale == "paper" else parts.tiny_translation(scale),
            )
        ],
        "rows": [
            parts.row("Transformer", _of_stage(parts.SMALL_TRANSFORMER) if small else {}),
            *(
                parts.row(
                    f"recurrent, {kind}",
                    {"train.model.attention": kind, **(_of_stage(_SMALL_RECURRENT) if small else {})},
                    configs={"train": f"configs/translation.py:{recurrent}"},
                )
                for kind in _KINDS
            ),
        ],
        "base": "recurrent, additive",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric(score[0], "train", score[1], digits=1),
            parts.metric("chrF", "train", "valid/chrf" if dates else "test/chrf", digits=1),
            parts.metric("perplexity", "train", "valid/perplexity"),
        ],
        "source": "No paper has this setting. Revisit-MMT has 41.02 BLEU for this Transformer on Multi30k's test2016, "
        "lower-cased and tokenized; it is not comparable with sacreBLEU.",
        "needs": {} if dates else parts.pairs_needs(),
    }


def _of_stage(values: dict[str, Any]) -> dict[str, Any]:
    return {f"train.{key}": value for key, value in values.items()}
