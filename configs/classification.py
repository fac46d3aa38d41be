"""Fine-tunes BERT to classify sentences or sentence pairs, with one class or several, or to predict a number for each.

    python launch.py --config=configs/classification.py:mrpc,tsv --workdir=runs/mrpc --config.init_from=BERT_FOLDER \\
        --config.data.source=MRPC/train.tsv --config.data.valid_source=MRPC/dev.tsv
    python launch.py --config=configs/classification.py --workdir=runs/mine --config.init_from=BERT_FOLDER \\
        --config.data.source=train.tsv --config.data.text_columns="('text',)" --config.data.label_column=label
    python launch.py --config=configs/classification.py:mrpc --workdir=runs/mrpc --config.init_from=BERT_FOLDER
    python launch.py --mode=predict --workdir=runs/mrpc --input=pairs.txt --output=labels.jsonl

An input line is a text, or two texts separated by a tab. In tables, `data.text_columns` names the columns to read
(docs/reference/inputs.md). `--seeds=0,1,2,3,4` trains once per seed and reports how the metrics vary.

The variant, after the colon, is any of a size, a task and `tsv`, separated by commas:

- Sizes: tiny, mini, small, medium, base, large start from random weights, with the vocabulary in `data.vocab_file`.
  Without a size, `init_from` determines it: a Hugging Face folder, a google-research checkpoint, or a bertjax run.
- Tasks: cola, sst2, mrpc, stsb, qqp, mnli, mnli_mismatched, qnli, rte, wnli set the columns and metrics. stsb is a
  regression task. Rows are read from TFDS, which must first be prepared once with
  `tfds.builder('glue/mrpc', file_format='array_record').download_and_prepare()`. With `tsv` they are read from the
  published files.
- Korean tasks, read from their published files: nsmc (`data.source`=ratings_train.txt, `data.valid_source`=
  ratings_test.txt; empty reviews are skipped), klue_nli (klue-nli-v1.1_train.json, ..._dev.json), klue_sts
  (klue-sts-v1.1_train.json, ..._dev.json; KLUE reports Pearson's r and the F1 of similarities from 3 on) and korsts
  (sts-train.tsv, sts-dev.tsv; Spearman's r). klue_sts and korsts are regression tasks.
- Multi-label tasks, read from their published files: goemotions (`data.source`=train.tsv, `data.valid_source`=dev.tsv),
  a column with the numbers of the classes, and jigsaw (train.csv), a column of 0 and 1 for each class.

For your own rows with any number of classes: `--config.objective=multi_label`, and `data.label_column` names the column
of a list of classes, or the columns of 0 and 1 as in `a,b,c`.

BERT's recipe: 3 epochs with batch size 32 and learning rate 5e-5 (the paper also tries 4e-5, 3e-5 and 2e-5). In the
paper, BERT-Base has 84.6 on MNLI, 93.5 on SST-2, 88.9 F1 on MRPC and 66.4 on RTE (test sets).
"""

from ml_collections import ConfigDict

from bertjax.configs import glue, parts
from bertjax.configs.sizes import SIZES
from bertjax.errors import UserError

TASKS = (*glue.TASKS, "mnli_mismatched")
# Tasks whose metrics differ from those of their objective. The last metric selects the best checkpoint.
_METRICS = {
    "cola": ("matthews_correlation",),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    "klue_sts": ("f1_from_3", "pearson"),
}
_REGRESSION = ("stsb", "klue_sts", "korsts")
# Keys of `data` that read the published files of Korean tasks.
_KOREAN = {
    # Quotes are plain characters. 8 of 200,000 reviews are empty.
    "nsmc": {"separator": "\t", "text_columns": ("document",), "on_bad_row": "skip"},
    "klue_nli": {"text_columns": ("premise", "hypothesis"), "label_column": "gold_label"},  # Park et al. 2021
    "klue_sts": {"text_columns": ("sentence1", "sentence2"), "label_column": "labels.real-label"},
    "korsts": {"text_columns": ("sentence1", "sentence2"), "label_column": "score"},  # Ham et al. 2020
}
# Keys of `data` that read the published files of multi-label tasks.
_MULTI_LABEL = {
    # Demszky et al. 2020; macro-F1 0.46 of BERT-Base (test set).
    "goemotions": {"header": False, "text_columns": ("0",), "label_column": "1"},
    # Kaggle's Toxic Comment Classification Challenge, 2018.
    "jigsaw": {
        "text_columns": ("comment_text",),
        "label_column": "toxic,severe_toxic,obscene,threat,insult,identity_hate",
    },
}
_READ = {**_MULTI_LABEL, **_KOREAN}
VARIANTS = (tuple(SIZES), (*TASKS, *_READ), ("tsv",))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `mrpc`, `mrpc,tsv` or `base,mnli`."""
    size, task, tsv = parts.chosen(variant, VARIANTS)
    if tsv and task not in TASKS:
        expected = f"a task with tsv: one of {', '.join(TASKS)}"
        fix = "omit tsv" if task else f"append a task, such as :{variant},mrpc"
        raise UserError("variant", got=repr(variant), expected=expected, fix=fix)
    config = parts.fine_tuning("classification", size)
    if task in (*_MULTI_LABEL, *_REGRESSION):
        config.objective = "multi_label" if task in _MULTI_LABEL else "regression"
    if task in _METRICS:
        config.metrics = _METRICS[task]
    parts.unset(config.checkpoint, ["best_metric"])  # default: the last metric
    if task in _READ:
        config.data.update(_READ[task])
    elif task:
        name = task.removesuffix("_mismatched")
        config.data.update(glue.tsv(name) if tsv else glue.tfds(name))
        if task == "mnli_mismatched" and not tsv:
            config.data.valid_source = "tfds:glue/mnli:validation_mismatched"
    return config
