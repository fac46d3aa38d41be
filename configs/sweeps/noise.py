"""Ablation: the noise of pretraining, at equal FLOPs: rates of hidden tokens, and causal rows.

    python launch.py --sweep=configs/sweeps/noise.py --workdir=runs/noise \\
        --set=pretrain.data.source='wiki/*.txt' --set=pretrain.likelihood.source=held_out.txt \\
        --set=pretrain.minimal_pairs.source=blimp.jsonl --set=pretrain.causal_pairs.source=blimp.jsonl \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv
    python launch.py --sweep=configs/sweeps/noise.py:mini --workdir=runs/noise ...

Each row pretrains the modern encoder, of BERT-Base's size with 1e19 FLOPs, `mini` with 5e13 or `tiny` with 1.5e13, and
fine-tunes it. All rows read the same rows of text, each with one instance, and replace every hidden token by [MASK].
"bits per byte" is the bound of any-order models, but exact for "causal", whose "BLiMP" is also that from left to right.
"""

from typing import Any

from bertjax.configs import parts as config_parts
from bertjax.configs.sweeps import parts

_FLOPS = {"base": 1e19, "mini": 5e13, "tiny": 1.5e13}
_UNIFORM = {"pretrain.masking.distribution": "uniform"}
_PREVIOUS = {"pretrain.masking.predict_at": "previous"}
_ROWS: dict[str, dict[str, Any]] = {
    "masked 15 %": {},
    "masked 30 %": {"pretrain.masking.rate": 0.3},
    "uniform": _UNIFORM,
    "uniform, weighted": {**_UNIFORM, "pretrain.masking.loss_weight": "inverse_rate"},
    "causal": {**_PREVIOUS, "pretrain.masking.causal_share": 1.0},
    "15:1": {**_PREVIOUS, "pretrain.masking.causal_share": 1 / 16},
    "1:1": {**_PREVIOUS, "pretrain.masking.causal_share": 1 / 2},
    "causal, then masked": {**_PREVIOUS, "pretrain.masking.causal_stages": ((0.5, 1.0),)},
}
_TASKS = {"sst2": "SST-2", "mrpc": "MRPC"}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep of BERT-Base, or of `tiny` or `mini`."""
    (size,) = config_parts.chosen(variant, (tuple(_FLOPS),))
    size = size or "base"
    return {
        "stages": [
            parts.stage("pretrain", f"configs/bert_pretraining.py:{size},modern", _pretraining(size)),
            *parts.fine_tuned(list(_TASKS), size),
        ],
        "rows": [parts.row(name, values) for name, values in _ROWS.items()],
        "base": "masked 15 %",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric("loss at 15 %", "pretrain", "valid/masked_lm_loss", digits=3),
            parts.metric("bits per byte", "pretrain", "valid/bits_per_byte", direction="min", digits=3),
            parts.metric("BLiMP", "pretrain", "valid/pairs/accuracy", "percent", digits=1),
            parts.metric("BLiMP, causal", "pretrain", "valid/causal_pairs/accuracy", "percent", digits=1),
            *(parts.task_metric(name, heading) for name, heading in _TASKS.items()),
        ],
        "source": "no paper has these rows.",
        "needs": {
            "pretrain.data.source": "the text to pretrain on",
            "pretrain.likelihood.source": "the text whose likelihood is computed",
            "pretrain.minimal_pairs.source": "the file of minimal pairs",
            "pretrain.causal_pairs.source": "the file of minimal pairs",
            **parts.task_needs(list(_TASKS)),
        },
    }


def _pretraining(size: str) -> dict[str, Any]:
    """Returns the values of all rows."""
    return {
        **parts.one_phase(size, _FLOPS[size]),
        **({} if size == "base" else {"data.vocab_size": 4_096}),
        "data.packing": False,
        "masking.rate": 0.15,
        "masking.valid_rate": 0.15,
        "masking.mask_fraction": 1.0,
        "masking.random_fraction": 0.0,
        "masking.keep_fraction": 0.0,
        **{f"{name}.every": 1_000 for name in ("likelihood", "minimal_pairs", "causal_pairs")},  # after training alone
    }
