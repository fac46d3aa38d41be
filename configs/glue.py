"""The columns of the GLUE tasks (Wang et al. 2019), as keys of `config.data`, in the two forms that they come in.

`config.data.update(glue.tfds("mnli"))` reads them by way of TFDS, which names the classes and gives their order. With
`glue.tsv("mnli")` they are read from the published files, where most classes are 0 and 1; set `config.data.source` to
its train.tsv and `config.data.valid_source` to its dev.tsv (of MNLI dev_matched.tsv or dev_mismatched.tsv).
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
    """Returns what the published files of a task are read with."""
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
    """Returns what a task is read with by way of TFDS; of MNLI, the held-out rows are those of matched genres."""
    valid = "validation_matched" if task == "mnli" else "validation"
    return {
        "source": f"tfds:glue/{task}:train",
        "valid_source": f"tfds:glue/{task}:{valid}",
        "text_columns": _TFDS[task],
        "label_column": "label",
    }
