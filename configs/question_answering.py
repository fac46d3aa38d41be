"""Fine-tunes BERT to answer questions with a span of a text, or to detect that the text has no answer.

    python launch.py --config=configs/question_answering.py:squad --workdir=runs/squad --config.init_from=BERT_FOLDER \\
        --config.data.source=train-v1.1.json --config.data.valid_source=dev-v1.1.json
    python launch.py --config=configs/question_answering.py:squad2 --workdir=runs/squad2 \\
        --config.init_from=BERT_FOLDER --config.data.source=train-v2.0.json --config.data.valid_source=dev-v2.0.json
    python launch.py --mode=predict --workdir=runs/squad2 --input=dev-v2.0.json --output=answers.jsonl
    python launch.py --mode=predict --config=configs/question_answering.py:squad2 --config.init_from=runs/squad2 \\
        --config.data.null_threshold=-1.5 --input=dev-v2.0.json --output=predictions.json

The variant, after the colon, is a size and `squad`, `squad2` or `korquad`, separated by a comma:

- Sizes: tiny, mini, small, medium, base, large start from random weights, with the vocabulary in `data.vocab_file`.
  Without a size, `init_from` determines it: a Hugging Face folder, a google-research checkpoint, or a bertjax run.
- `korquad` is KorQuAD 1.0 (KorQuAD_v1.0_train.json, KorQuAD_v1.0_dev.json), with the metrics of its script
  (`metric=korquad`), whose F1 counts characters.
- `squad` (the default) is SQuAD 1.1, in which each question has an answer. `squad2` is SQuAD 2.0, in which some
  questions have none. Other files in the same format also work, including .gz files, and so do tables of questions and
  MRQA's lines; see docs/reference/inputs.md. Without `data.valid_source`, a tenth of the contexts is used for
  validation.

Predictions read the same files, with or without answers, and write one record per line with the answer's character
offsets in the context. If the output name ends in .json, they are one object that maps ids to answers, as the official
scripts expect. "" means no answer. `null_score` is the score that the SQuAD 2.0 script reads as `--na-prob-file`.
Evaluation finds the best threshold for it (`best_f1_thresh`). The last command above sets a threshold; it takes the
weights and the vocabulary from the run, but no other key.

BERT's recipe: batch size 32 and learning rate 5e-5 for 3 epochs; for SQuAD 2.0 batch size 48 for 2 epochs. In the
paper, BERT-Base has 80.8 exact match and 88.5 F1 on the development set of 1.1, BERT-Large 78.7 and 81.9 on that of
2.0.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

VARIANTS = (tuple(SIZES), ("squad", "squad2", "korquad"))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `squad2` or `base,squad`."""
    size, task = parts.chosen(variant, VARIANTS)
    config = parts.fine_tuning("question_answering", size)
    config.checkpoint.best_metric = "valid/f1"
    if task == "korquad":
        config.metric = "korquad"
    if task == "squad2":
        config.batch_size = 48
        config.num_epochs = 2.0
        config.data.null_answers = True
        config.checkpoint.best_metric = "valid/best_f1"
    return config
