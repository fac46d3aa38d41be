"""Fine-tunes BERT on multiple choice: the best ending of a text (SWAG), or the answer to a question (ARC).

    python launch.py --config=configs/multiple_choice.py:swag --workdir=runs/swag --config.init_from=BERT_FOLDER \\
        --config.data.source=train.csv --config.data.valid_source=val.csv
    python launch.py --config=configs/multiple_choice.py:arc --workdir=runs/arc --config.init_from=BERT_FOLDER \\
        --config.data.source=ARC-Easy-Train.jsonl
    python launch.py --mode=predict --workdir=runs/swag --input=questions.txt --output=answers.jsonl

Each line of the input of predictions is a text and its choices, separated by tabs; tables are read by the columns that
`data` names (docs/reference/inputs.md). The variant, after the colon, is a size and a row format, separated by a comma:

- Sizes: tiny, mini, small, medium, base, large, from random weights, with a vocabulary in `data.vocab_file`. Without a
  size, `init_from` determines it.
- Row formats: `swag` (the default), CSV files with a column for each ending; `arc`, JSON lines with a list of choices.

BERT's recipe for SWAG (section 4.4): 3 epochs with batch size 16 and learning rate 2e-5. In the paper, BERT-Base has an
accuracy of 81.6 % on the development set, BERT-Large 86.6 %.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

VARIANTS = (tuple(SIZES), ("swag", "arc"))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `arc` or `base,swag`."""
    size, task = parts.chosen(variant, VARIANTS)
    config = parts.fine_tuning("multiple_choice", size)
    config.batch_size = 16
    config.optimizer.learning_rate = 2e-5
    config.checkpoint.best_metric = "valid/accuracy"
    if task == "arc":
        config.data.context_column = "question.stem"
        config.data.start_column = ""
        config.data.choice_columns = ("question.choices",)
        config.data.label_column = "answerKey"
        config.data.num_choices = 5
    return config
