"""Ablation: parts of BertSum (scorer, interval segments, trigram blocking, encoder size).

    python launch.py --sweep=configs/sweeps/bertsum.py --workdir=runs/bertsum --set=extract.init_from=BERT_BASE \\
        --set=large-encoder/extract.init_from=BERT_LARGE --set=extract.data.source=train.jsonl \\
        --set=extract.data.valid_source=valid.jsonl --set=extract.data.test_source=test.jsonl
    python launch.py --sweep=configs/sweeps/bertsum.py:tiny --workdir=runs/bertsum

Each row trains on CNN/Daily Mail for 50,000 updates with PreSumm's recipe (Liu 2019; Liu and Lapata 2019). Blocking
affects only the selection of sentences; its row trains the classifier again, to the same weights. `tiny` summarizes
docstrings of Python's library with models from random weights, in minutes per row on two cores.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_ROUGE = {"R1": "rouge1", "R2": "rouge2", "RLsum": "rougeLsum"}
_TINY = {"num_steps": 100, "evaluate_every": 100, "checkpoint.save_every": 100, "data.seq_len": 256}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    size, recipe = ("tiny,", "") if tiny else ("", ",presumm")
    large = {} if tiny else {"extract.init_from": ""}

    def row(
        name: str, paper: tuple[float, ...], values: dict[str, Any], scorer: str = "classifier", of_size: str = size
    ) -> dict[str, Any]:
        config = f"configs/bertsum_ext.py:{of_size}{scorer}{recipe}"
        return parts.row(name, values, {} if tiny else dict(zip(_ROUGE, paper, strict=True)), {"extract": config})

    return {
        "stages": [parts.stage("extract", f"configs/bertsum_ext.py:{size}classifier{recipe}", _TINY if tiny else {})],
        "rows": [
            row("classifier", (43.23, 20.22, 39.60), {}),
            row("transformer", (43.25, 20.24, 39.63), {}, "transformer"),
            row("LSTM", (43.22, 20.17, 39.59), {}, "rnn"),
            row("no interval segments", (43.21, 20.17, 39.57), {"extract.data.interval_segments": False}),
            row("no trigram blocking", (42.57, 19.96, 39.04), {"extract.selection.block_ngrams": 0}),
            row("large encoder", (43.85, 20.34, 39.90), large, "transformer", "mini," if tiny else size),
        ],
        "base": "classifier",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric(name, "extract", f"{'valid' if tiny else 'test'}/{figure}") for name, figure in _ROUGE.items()
        ],
        "source": "Liu 2019, and Liu and Lapata 2019 for transformer and large encoder: "
        "CNN/Daily Mail. LEAD-3 has 40.42, 17.62 and 36.67 there, the oracle 52.59, 31.24 and 48.87.",
        "needs": {}
        if tiny
        else {
            "extract.init_from": "BERT (bert-base-uncased)",
            "extract.data.source": "training articles",
            "extract.data.valid_source": "validation articles",
            "extract.data.test_source": "test articles",
        },
    }
