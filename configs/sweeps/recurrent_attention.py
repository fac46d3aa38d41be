"""What attention is worth to a recurrent translation model, and the Transformer beside it.

    python launch.py --sweep=configs/sweeps/recurrent_attention.py --workdir=runs/attention \\
        --set=train.data.source=train.en --set=train.data.target=train.de \\
        --set=train.data.valid_source=val.en --set=train.data.valid_target=val.de \\
        --set=train.data.test_source=test.en --set=train.data.test_target=test.de
    python launch.py --sweep=configs/sweeps/recurrent_attention.py:tiny --workdir=runs/attention

No attention is Sutskever et al. 2014 with a gated unit, additive Bahdanau et al. 2015, dot and general Luong et al.
2015. For some ten thousands of pairs, such as Multi30k; `tiny` learns to write dates, and `tiny,text` from files named
as above, with a small model: minutes a row.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_KINDS = ("none", "additive", "dot", "general")
# At a rate of 1e-3 so few updates are too few for any of them to learn to attend.
_SMALL_RECURRENT = {"model.embedding_size": 64, "model.hidden_size": 128, "optimizer.learning_rate": 5e-3}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """The sweep for Multi30k, or `tiny`."""
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
            parts.metric("perplexity", "train", "valid/perplexity", direction="min"),
        ],
        "source": "None of the same setting. Revisit-MMT has 41.02 BLEU for this Transformer on Multi30k's test2016, "
        "lower-cased and tokenized, which is not comparable with sacreBLEU's.",
        "needs": {} if dates else parts.pairs_needs(),
    }


def _of_stage(values: dict[str, Any]) -> dict[str, Any]:
    return {f"train.{key}": value for key, value in values.items()}
