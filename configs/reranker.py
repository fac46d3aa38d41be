"""Trains a cross-encoder, which reads a query and a text together and scores how well the text answers the query.

    python launch.py --config=configs/reranker.py --workdir=runs/reranker --config.init_from=BERT_FOLDER \\
        --config.data.source=train.jsonl --config.data.text_columns="('query', 'positive', 'negatives')"
    python launch.py --config=configs/reranker.py:regression --workdir=runs/scores --config.init_from=BERT_FOLDER \\
        --config.data.source=pairs.tsv --config.data.text_columns="('query', 'text')" --config.data.score_column=score
    python launch.py --mode=predict --workdir=runs/reranker --input=pairs.tsv --output=scores.jsonl
    python launch.py --mode=export --workdir=runs/reranker --output=exported

A row is a query, a text that answers it (its positive), and texts that do not (negatives), in columns of their own or
one column with a list; or, with `data.score_column`, a query and texts with a score each. Each line of the input of
predictions is a query and a text, separated by a tab.

The variant, after the colon, is a size, an objective, or both, as in `configs/reranker.py:tiny,binary`:

- Sizes: tiny, mini, small, medium, base, large, as in configs/classification.py.
- Objectives: `listwise`, the default, chooses the positive among the texts of its row, or learns the distribution of
  scores; `binary` learns the probability of each text; `regression` learns scores; `distillation` learns the
  differences of a teacher's scores.

`CrossEncoder` of sentence-transformers opens the export and gives the same scores.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

OBJECTIVES = ("listwise", "binary", "regression", "distillation")
VARIANTS = (tuple(SIZES), OBJECTIVES)


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `binary` or `base,regression`."""
    size, objective = parts.chosen(variant, VARIANTS)
    config = parts.fine_tuning("reranker", size)
    config.objective = objective or "listwise"
    config.batch_size = 16
    config.num_epochs = 1.0
    config.optimizer.learning_rate = 2e-5
    is_scored = config.objective == "regression"
    config.checkpoint.best_metric = "valid/spearman" if is_scored else "valid/ndcg@10"
    config.data.text_columns = ("query", "text") if is_scored else ("query", "positive", "negatives")
    config.data.score_column = "score" if config.objective in ("regression", "distillation") else ""
    return config
