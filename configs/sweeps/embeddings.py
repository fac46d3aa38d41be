"""Ablation: what the vectors of texts gain from pooling, objective and batch size, measured by search.

    python launch.py --sweep=configs/sweeps/embeddings.py --workdir=runs/vectors --set=embed.init_from=BERT_FOLDER \\
        --set=embed.data.source=pairs.jsonl --set=embed.retrieval.source=BEIR_FOLDER
    python launch.py --sweep=configs/sweeps/embeddings.py:tiny --workdir=runs/vectors \\
        --set=embed.data.source=pairs.jsonl --set=embed.retrieval.source=BEIR_FOLDER

`pairs.jsonl` has the columns `query` and `positive`. BEIR_FOLDER is searched at each evaluation
(docs/guides/retrieval.md). `tiny` first pretrains a model of 2 layers.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_ROWS: dict[str, dict[str, Any]] = {
    "mean": {},
    "[CLS]": {"sentence_pooling": "cls"},
    "batch of 16": {"batch_size": 16},
    "symmetric": {"symmetric": True},
    "learned scale": {"learn_scale": True},
    "sizes 32 and 64": {"sizes": (32, 64)},
}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep from any encoder, or `tiny`."""
    tiny = parts.is_tiny(variant)
    needs = {
        "embed.data.source": "rows with a query and a positive",
        "embed.retrieval.source": "a folder in BEIR's form",
    }
    values = {"sentence_pooling": "mean", "checkpoint.best_metric": "valid/retrieval/ndcg@10"}
    stage = parts.stage("embed", "configs/embeddings.py", values, "pretrain128" if tiny else "")
    names = {"nDCG@10": "ndcg@10", "MRR@10": "mrr@10", "accuracy@1": "accuracy@1"}
    return {
        "stages": [*parts.tiny(), stage] if tiny else [stage],
        "rows": [parts.row(name, {f"embed.{key}": row[key] for key in row}) for name, row in _ROWS.items()],
        "base": "mean",
        "seeds": (0, 1, 2),
        "metrics": [
            parts.metric(heading, "embed", f"valid/retrieval/{name}", "percent", "max", 1)
            for heading, name in names.items()
        ],
        "source": "No paper publishes these rows; Reimers and Gurevych 2019, table 6, compare poolings on STS.",
        "needs": needs if tiny else {**needs, "embed.init_from": "an encoder"},
    }
