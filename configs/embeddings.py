"""Trains vectors of texts: similar ones for texts that are related, for search, clustering and semantic similarity.

    python launch.py --config=configs/embeddings.py --workdir=runs/search --config.init_from=BERT_FOLDER \\
        --config.data.source=train.jsonl --config.data.text_columns="('query', 'positive', 'negatives')"
    python launch.py --config=configs/embeddings.py:similarity --workdir=runs/sts --config.init_from=BERT_FOLDER \\
        --config.data.source=train.tsv --config.data.text_columns="('sentence1', 'sentence2')" \\
        --config.data.score_column=score
    python launch.py --mode=export --workdir=runs/search --output=exported

A row is a query, a text that answers it or has the same meaning (its positive), and any number of texts that do not
(negatives), in columns of their own or one column with a list. With `data.score_column` it is a pair with its
similarity, or has the scores of a teacher. With `data.label_column` it is a text of a class.

The variant, after the colon, is a size, an objective, or both:

- Sizes: tiny, mini, small, medium, base, large, from random weights, with a vocabulary in `data.vocab_file`. Without a
  size, `init_from` determines it.
- Objectives: `ranking`, the default, chooses the positive among all documents of a batch; `similarity` orders pairs by
  their scores (`objective=cosent`); `distillation` learns the differences of a teacher's scores (`objective=margin`).

A batch has `batch_size` rows, whose texts are packed. All its documents are compared, so larger batches are harder:
`accumulation_steps` encodes them in slices, with the same result and less memory.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

OBJECTIVES = {"ranking": "ranking", "similarity": "cosent", "distillation": "margin"}
VARIANTS = (tuple(SIZES), tuple(OBJECTIVES))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `similarity` or `base,similarity`."""
    size, objective = parts.chosen(variant, VARIANTS)
    config = parts.fine_tuning("embeddings", size)
    config.objective = OBJECTIVES[objective or "ranking"]
    config.batch_size = 64
    config.num_epochs = 1.0
    config.retrieval = parts.evaluation("retrieval")
    is_pair = config.objective == "cosent"
    config.checkpoint.best_metric = "valid/spearman" if is_pair else "valid/ndcg@10"
    if is_pair:
        config.data.text_columns = ("sentence1", "sentence2")
    if config.objective != "ranking":
        config.data.score_column = "score"
    return config
