"""Fine-tunes BERT to choose the best of several endings of a text, or answers to a question: SWAG, ARC.

    python launch.py --config=configs/multiple_choice.py:swag --workdir=runs/swag --config.init_from=BERT_FOLDER \\
        --config.data.source=train.csv --config.data.valid_source=val.csv
    python launch.py --config=configs/multiple_choice.py:arc --workdir=runs/arc --config.init_from=BERT_FOLDER \\
        --config.data.source=ARC-Easy-Train.jsonl
    python launch.py --mode=predict --workdir=runs/swag --input=questions.txt --output=answers.jsonl

To predict, a line has a text and its choices, parted by tabs; tables are read by the columns that `data` names
(docs/inputs.md). Behind the colon, separated by commas: a size, the form of the rows.

- Sizes: tiny, mini, small, medium, base, large, from fresh weights, with a vocabulary in `data.vocab_file`. Without a
  size, `init_from` gives it.
- Forms: `swag` (the default), CSV files with a column for each ending; `arc`, JSON lines with a list of choices.

BERT's recipe for SWAG (section 4.4): 3 epochs of batches of 16 at 2e-5. The paper's BERT-Base has 81.6 % on the
development set, and BERT-Large 86.6 %.
"""

from ml_collections import ConfigDict

from configs import parts
from configs.sizes import SIZES


def get_config(variant: str = "") -> ConfigDict:
    """The config of a variant such as `arc` or `base,swag`."""
    size, task = parts.chosen(variant, (tuple(SIZES), ("swag", "arc")))
    config = parts.fine_tuning("multiple_choice", size)
    config.batch_size = 16
    config.optimizer.learning_rate = 2e-5
    config.checkpoint.best_metric = "valid/accuracy"
    data = config.data = parts.table(size)
    data.context_column = "question.stem" if task == "arc" else "sent1"
    data.start_column = "" if task == "arc" else "sent2"
    data.choice_columns = ("question.choices",) if task == "arc" else ("ending0", "ending1", "ending2", "ending3")
    data.label_column = "answerKey" if task == "arc" else "label"
    data.num_choices = 5 if task == "arc" else 4
    return config
