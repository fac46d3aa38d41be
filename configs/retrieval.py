"""Evaluates vectors of texts by search, clustering and probing, and mines negatives. Nothing is trained.

    python launch.py --mode=evaluate --config=configs/retrieval.py --config.init_from=FOLDER_OR_RUN \\
        --config.data.test_source=BEIR_FOLDER [--config.reranker=CROSS_ENCODER] --output=scores.json
    python launch.py --mode=evaluate --config=configs/retrieval.py:labels --config.init_from=FOLDER_OR_RUN \\
        --config.data.source=train.tsv --config.data.test_source=test.tsv
    python launch.py --mode=mine --config=configs/retrieval.py --config.init_from=FOLDER_OR_RUN \\
        --config.data.source=pairs.jsonl --output=rows.jsonl

`init_from` is a folder of sentence-transformers or Hugging Face, or a run of bertjax. A run of configs/embeddings.py
and a folder of sentence-transformers determine pooling, prompts, length and normalization.

- A folder in BEIR's form has `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv` (docs/reference/inputs.md). A table
  of pairs, `data.text_columns`, has a query and a relevant document in each row.
- Metrics are nDCG@10, MRR@10, recall@10 and recall@100, equal to those of trec_eval, with 95 % intervals by bootstrap
  over queries. The search is exact. "protocol" in the output has everything that they depend on.
- The variant `labels` reads labeled texts: the v-measure of k-means, and with `data.source` the accuracy of a logistic
  regression on the frozen vectors.
- --mode=mine writes training rows for configs/embeddings.py; `mining.*` chooses the negatives.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts

VARIANTS = (("labels",),)


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config, or that of labeled texts."""
    (kind,) = parts.chosen(variant, VARIANTS)
    config = parts.inference("retrieval")
    if kind:
        config.data.label_column = "label"
    return config
