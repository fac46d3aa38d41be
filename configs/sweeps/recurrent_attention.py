"""What attention is worth to a recurrent translation model, and the Transformer beside it.

    python launch.py --sweep=configs/sweeps/recurrent_attention.py --workdir=runs/attention \\
        --set=train.data.source=train.en --set=train.data.target=train.de \\
        --set=train.data.valid_source=val.en --set=train.data.valid_target=val.de \\
        --set=train.data.test_source=test.en --set=train.data.test_target=test.de
    python launch.py --sweep=configs/sweeps/recurrent_attention.py:tiny --workdir=runs/attention

No attention is Sutskever et al. 2014 with a gated unit, additive Bahdanau et al. 2015, dot and general Luong et al.
2015. For some ten thousands of pairs, such as Multi30k; `tiny` learns to write dates: minutes a row on two cores.
"""

from typing import Any

from configs.sweeps import parts

_KINDS = ("none", "additive", "dot", "general")
_TINY = {"num_steps": 600, "batch_size": 64, "evaluate_every": 600, "checkpoint.save_every": 600}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """The sweep for Multi30k, or `tiny`."""
    tiny = parts.is_tiny(variant)
    transformer, recurrent = ("dates", "rnn,dates") if tiny else ("tiny", "rnn")
    score = ("exact match", "valid/exact_match") if tiny else ("BLEU", "test/bleu")
    splits = (("", "text to train on"), ("valid_", "held-out text"), ("test_", "text to test on"))
    return {
        "stages": [parts.stage("train", f"configs/translation.py:{transformer}", _TINY if tiny else {})],
        "rows": [
            parts.row("Transformer"),
            *(
                parts.row(
                    f"recurrent, {kind}",
                    {"train.model.attention": kind},
                    configs={"train": f"configs/translation.py:{recurrent}"},
                )
                for kind in _KINDS
            ),
        ],
        "base": "recurrent, additive",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric(score[0], "train", score[1], digits=1),
            parts.metric("chrF", "train", "valid/chrf" if tiny else "test/chrf", digits=1),
            parts.metric("perplexity", "train", "valid/perplexity", direction="min"),
        ],
        "source": "None of the same setting. Revisit-MMT has 41.02 BLEU for this Transformer on Multi30k's test2016, "
        "lower-cased and tokenized, which is not comparable with sacreBLEU's.",
        "needs": {}
        if tiny
        else {f"train.data.{split}{side}": what for split, what in splits for side in ("source", "target")},
    }
