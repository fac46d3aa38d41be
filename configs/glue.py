"""Columns of the GLUE tasks (Wang et al. 2019) as keys of `config.data`, for TFDS and for the published files.

`config.data.update(glue.tfds("mnli"))` reads a task from TFDS, which determines the names and the order of the classes.
`glue.tsv("mnli")` reads the published files, in which most classes are 0 and 1. Then set `config.data.source` to the
task's train.tsv and `config.data.valid_source` to its dev.tsv (for MNLI dev_matched.tsv or dev_mismatched.tsv).
"""

from typing import Any

# task: text columns, label column; CoLA has no header.
_TSV = {
    "cola": (("3",), "1"),
    "sst2": (("sentence",), "label"),
    "mrpc": (("#1 String", "#2 String"), "Quality"),
    "stsb": (("sentence1", "sentence2"), "score"),
    "qqp": (("question1", "question2"), "is_duplicate"),
    "mnli": (("sentence1", "sentence2"), "gold_label"),
    "qnli": (("question", "sentence"), "label"),
    "rte": (("sentence1", "sentence2"), "label"),
    "wnli": (("sentence1", "sentence2"), "label"),
}

# task: text columns; the label column is always `label`.
_TFDS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
}

TASKS = tuple(_TSV)


def tsv(task: str) -> dict[str, Any]:
    """Returns the keys that read the published files of a task."""
    text_columns, label_column = _TSV[task]
    return {
        "header": task != "cola",
        "separator": "",
        "text_columns": text_columns,
        "label_column": label_column,
        # Some rows of QQP lack fields.
        "on_bad_row": "skip" if task == "qqp" else "stop",
    }


def tfds(task: str) -> dict[str, Any]:
    """Returns the keys that read a task from TFDS. The validation rows of MNLI are those of matched genres."""
    valid = "validation_matched" if task == "mnli" else "validation"
    return {
        "source": f"tfds:glue/{task}:train",
        "valid_source": f"tfds:glue/{task}:{valid}",
        "text_columns": _TFDS[task],
        "label_column": "label",
    }
