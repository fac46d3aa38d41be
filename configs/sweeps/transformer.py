"""Ablation: variations of the Transformer (Vaswani et al. 2017, table 3).

    python launch.py --sweep=configs/sweeps/transformer.py --workdir=runs/transformer \\
        --set=train.data.source=wmt14.en --set=train.data.target=wmt14.de \\
        --set=train.data.valid_source=newstest2013.en --set=train.data.valid_target=newstest2013.de \\
        --set=train.data.test_source=newstest2013.en --set=train.data.test_target=newstest2013.de
    python launch.py --sweep=configs/sweeps/transformer.py:tiny --workdir=runs/transformer

Each row is a separate training of 100,000 updates (big: 300,000). `tiny` varies a model of 2 layers that learns to
write dates. `tiny,text` varies one that learns from files such as Multi30k's, named as above. Both take minutes per
row.
"""

from typing import Any

from bertjax.configs.sweeps import parts


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, `tiny` or `tiny,text`."""
    scale = parts.scale(variant)
    tiny = scale != "paper"
    small = parts.SMALL_TRANSFORMER
    stages = {
        "paper": parts.stage("train", "configs/translation.py:base", parts.PAIRS),
        "dates": parts.stage("train", "configs/translation.py:dates", parts.tiny_translation("dates")),
        "text": parts.stage("train", "configs/translation.py:tiny", {**parts.tiny_translation("text"), **small}),
    }
    return {
        "stages": [stages[scale]],
        "rows": _tiny_rows() if tiny else _rows(),
        "base": "base",
        "seeds": (0, 1, 2) if tiny else (0,),
        "metrics": [
            parts.metric("perplexity", "train", "valid/perplexity"),
            parts.metric("exact match", "train", "valid/exact_match", digits=1)
            if scale == "dates"
            else parts.metric("BLEU", "train", "test/bleu", digits=1),
        ],
        "source": "Vaswani et al. 2017, table 3: English to German, newstest2013, by word pieces.",
        "needs": {} if scale == "dates" else parts.pairs_needs(),
    }


def _rows() -> list[dict[str, Any]]:
    heads = ((1, 5.29, 24.9), (4, 5.00, 25.5), (16, 4.91, 25.8), (32, 5.01, 25.4))
    key_sizes = ((16, 5.16, 25.1), (32, 5.01, 25.4))
    layers = ((2, 6.11, 23.7), (4, 5.19, 25.3), (8, 4.88, 25.5))
    dropouts = ((0.0, 5.77, 24.6), (0.2, 4.95, 25.5))
    return [
        _row("base", {}, 4.92, 25.8),
        *(_row(f"A: h={count}", {"model.num_heads": count}, *paper) for count, *paper in heads),
        *(_row(f"B: dk={size}", {"model.key_size": size}, *paper) for size, *paper in key_sizes),
        *(_row(f"C: N={count}", _layers(count), *paper) for count, *paper in layers),
        _row("C: d=256", _width(256), 5.75, 24.5),
        _row("C: d=1024", _width(1024), 4.66, 26.0),
        _row("C: dff=1024", {"model.intermediate_size": 1024}, 5.12, 25.4),
        _row("C: dff=4096", {"model.intermediate_size": 4096}, 4.75, 26.2),
        *(_row(f"D: dropout {rate}", {"model.dropout": rate}, *paper) for rate, *paper in dropouts),
        _row("D: smoothing 0.0", {"label_smoothing": 0.0}, 4.67, 25.3),
        _row("D: smoothing 0.2", {"label_smoothing": 0.2}, 5.47, 25.7),
        _row("E: learned positions", {"model.positions": "learned"}, 4.92, 25.7),
        {
            **_row("big", {"num_steps": 300_000, "checkpoint.keep": 20, "checkpoint.final": "last:20"}, 4.33, 26.4),
            "configs": {"train": "configs/translation.py:big"},
        },
    ]


def _tiny_rows() -> list[dict[str, Any]]:
    """Returns a row for each letter of the paper's table."""
    return [
        _row("base", {}),
        _row("A: h=1", {"model.num_heads": 1}),
        _row("B: dk=4", {"model.key_size": 4}),
        _row("C: N=1", _layers(1)),
        _row("D: dropout 0.0", {"model.dropout": 0.0}),
        _row("E: learned positions", {"model.positions": "learned"}),
    ]


def _row(name: str, values: dict[str, Any], *paper: float) -> dict[str, Any]:
    overrides = {f"train.{key}": value for key, value in values.items()}
    return parts.row(name, overrides, dict(zip(("perplexity", "BLEU"), paper, strict=False)))


def _layers(count: int) -> dict[str, Any]:
    return {"model.num_layers": count, "model.num_decoder_layers": count}


def _width(size: int) -> dict[str, Any]:
    """Returns a width and the values that follow from it: the peak learning rate and the range of embeddings."""
    rate = size**-0.5 * 4000**-0.5
    return {"model.hidden_size": size, "model.initializer_range": size**-0.5, "optimizer.learning_rate": rate}
