"""Fine-tunes BERT to answer questions by a part of a text, or to tell that it has no answer.

    python launch.py --config=configs/question_answering.py:squad --workdir=runs/squad --config.init_from=BERT_FOLDER \\
        --config.data.source=train-v1.1.json --config.data.valid_source=dev-v1.1.json
    python launch.py --config=configs/question_answering.py:squad2 --workdir=runs/squad2 \\
        --config.init_from=BERT_FOLDER --config.data.source=train-v2.0.json --config.data.valid_source=dev-v2.0.json
    python launch.py --mode=predict --workdir=runs/squad2 --input=dev-v2.0.json --output=answers.jsonl
    python launch.py --mode=predict --config=configs/question_answering.py:squad2 --config.init_from=runs/squad2 \\
        --config.data.null_threshold=-1.5 --input=dev-v2.0.json --output=predictions.json

Behind the colon, separated by commas: a size; `squad` or `squad2`.

- Sizes: tiny, mini, small, medium, base, large, from fresh weights, with a vocabulary in `data.vocab_file`. Without a
  size, `init_from` gives it: a Hugging Face folder, a checkpoint of Google's, or a run of ours.
- `squad` (the default) is SQuAD 1.1, in which each question has an answer; `squad2` is SQuAD 2.0, in which some have
  none. Any files of that form will do, .gz too; without `data.valid_source` a tenth of the contexts is held out.

Predictions are of a SQuAD file, with or without answers: a record a line, with the characters of the context that the
answer takes. Where the output's name ends in .json, they are one object of ids and answers, which the official scripts
read. "" is no answer, and `null_score` is what the script of SQuAD 2.0 takes as `--na-prob-file`. Evaluation finds the
best threshold for it (`best_f1_thresh`), and the last command above sets one; that takes weights and vocabulary from
the run, but no other key.

BERT's recipe: batches of 32 at 5e-5, for 3 epochs; of 48 for 2 with SQuAD 2.0. The paper's BERT-Base has 80.8 exact and
88.5 F1 on the development set of 1.1, and BERT-Large 78.7 and 81.9 on that of 2.0.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES


def get_config(variant: str = "") -> ConfigDict:
    """The config of a variant such as `squad2` or `base,squad`."""
    size, task = parts.chosen(variant, (tuple(SIZES), ("squad", "squad2")))
    config = parts.fine_tuning("question_answering", size)
    del config.model.classifier_dropout  # BERT has none here
    config.data = _data(size)
    config.checkpoint.best_metric = "valid/f1"
    if task == "squad2":
        config.batch_size = 48
        config.num_epochs = 2.0
        config.data.null_answers = True
        config.checkpoint.best_metric = "valid/best_f1"
    return config


def _data(size: str) -> ConfigDict:
    data = parts.rows(size)
    data.packing = False
    data.doc_stride = 128
    data.max_query_length = 64
    data.max_answer_length = 30
    data.n_best = 20
    data.null_answers = False
    data.null_threshold = 0.0
    return data
