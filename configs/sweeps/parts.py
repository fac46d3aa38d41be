"""Building blocks of the sweep files. `bertjax/tools/sweeps/definition.py` explains each value."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.configs import parts
from bertjax.errors import UserError

_NONE: Mapping[str, Any] = {}
# task: (config, metric in metrics.jsonl without "valid/", form of the metric)
_TASKS = {
    "mnli": ("configs/classification.py:mnli,tsv", "accuracy", "percent"),
    "qnli": ("configs/classification.py:qnli,tsv", "accuracy", "percent"),
    "mrpc": ("configs/classification.py:mrpc,tsv", "accuracy", "percent"),
    "sst2": ("configs/classification.py:sst2,tsv", "accuracy", "percent"),
    "rte": ("configs/classification.py:rte,tsv", "accuracy", "percent"),
    "cola": ("configs/classification.py:cola,tsv", "matthews_correlation", "percent"),
    "stsb": ("configs/classification.py:stsb,tsv", "spearman", "percent"),
    "squad": ("configs/question_answering.py:squad", "f1", "plain"),
    "ner": ("configs/tagging.py", "f1", "percent"),
}
# Makes `configs/translation.py:tiny` smaller.
SMALL_TRANSFORMER = {
    "model.num_layers": 2,
    "model.num_decoder_layers": 2,
    "model.hidden_size": 64,
    "model.initializer_range": 64**-0.5,
    "optimizer.schedule": "linear",
    "optimizer.warmup_steps": 200,
    "optimizer.learning_rate": 3e-3,
}
# Unsets the default of `configs/translation.py`, generated dates: the user must name files; see `pairs_needs`.
PAIRS = {"data.source": ""}
# Tasks of the small ablations: name and heading.
TINY_TASKS = {"sst2": "SST-2", "mrpc": "MRPC"}
TINY_LENGTH = 128
_SHORT_LENGTH = 32


def is_tiny(variant: str) -> bool:
    """Returns whether the variant is `tiny`. The only other variant is the paper's scale, ""."""
    return bool(parts.chosen(variant, (("tiny",),))[0])


def scale(variant: str) -> str:
    """Returns the scale of a translation sweep's variant: "paper", "dates" (`tiny`) or "text" (`tiny,text`)."""
    tiny, text = parts.chosen(variant, (("tiny",), ("text",)))
    if text and not tiny:
        raise UserError("variant", got="'text'", expected="'tiny,text', 'tiny' or no variant", fix="append :tiny,text")
    return text or ("dates" if tiny else "paper")


def pairs_needs() -> dict[str, str]:
    """Returns the files that the user must name for translation."""
    splits = (("", "training text"), ("valid_", "validation text"), ("test_", "test text"))
    return {f"train.data.{split}{side}": what for split, what in splits for side in ("source", "target")}


def tiny_translation(scale: str) -> dict[str, Any]:
    """Returns the overrides for all rows of a small translation ablation, which takes minutes per run on one core."""
    if scale == "dates":
        return {"num_steps": 600, "batch_size": 64, "evaluate_every": 600, "checkpoint.save_every": 600}
    return {
        **PAIRS,
        "num_steps": 2000,
        "batch_size": 16,
        "evaluate_every": 1000,
        "num_scored": 200,
        "data.vocab_size": 4000,
        "data.seq_len": 64,
        "model.dropout": 0.1,
        "checkpoint.save_every": 200,
    }


def stage(
    name: str, config: str, overrides: Mapping[str, Any] = _NONE, init_from: str = "", one_seed: bool = False
) -> dict[str, Any]:
    """Returns a stage: a run that every row has."""
    return {"name": name, "config": config, "overrides": overrides, "init_from": init_from, "one_seed": one_seed}


def row(
    name: str,
    overrides: Mapping[str, Any] = _NONE,
    paper: Mapping[str, float] = _NONE,
    configs: Mapping[str, str] = _NONE,
    baseline: str = "",
) -> dict[str, Any]:
    """Returns a row of the table: its overrides and the published scores."""
    return {"name": name, "overrides": overrides, "paper": paper, "configs": configs, "baseline": baseline}


def metric(
    name: str, stage: str, figure: str, form: str = "plain", direction: str = "", digits: int = 2
) -> dict[str, Any]:
    """Returns a column of the table. By default, the direction is inferred from the name of the metric."""
    of = {"stage": stage, "figure": figure, "form": form, "direction": direction}
    return {"name": name, "digits": digits, **of}


def task(name: str, init_from: str = "", overrides: Mapping[str, Any] = _NONE) -> dict[str, Any]:
    """Returns the fine-tuning stage of a GLUE task, squad or ner."""
    return stage(name, _TASKS[name][0], overrides, init_from)


def task_metric(name: str, heading: str) -> dict[str, Any]:
    """Returns the column of a task's score, in percent."""
    _, figure, form = _TASKS[name]
    return metric(heading, name, f"valid/{figure}", form, digits=1)


def task_needs(names: Sequence[str]) -> dict[str, str]:
    """Returns the files that the user must name for tasks."""
    pairs = (("source", "for training"), ("valid_source", "for validation"))
    return {f"{name}.data.{key}": f"{name}'s file {what}" for name in names for key, what in pairs}


def base() -> list[dict[str, Any]]:
    """Returns BERT's two phases of pretraining; later stages start from `pretrain512`. The text is prepared once."""
    prepared = {"data.source": "", "data.prepared_dir": "{workdir}/prepared"}
    return [
        stage("pretrain", "configs/bert_pretraining.py:base", prepared, one_seed=True),
        stage("pretrain512", "configs/bert_pretraining.py:phase2", prepared, "pretrain", one_seed=True),
    ]


def base_needs() -> dict[str, str]:
    """Returns the sources that the user must name for pretraining at the paper's scale."""
    return {f"{name}.data.source": "the text to pretrain on" for name in ("pretrain", "pretrain512")}


def one_phase(size: str, flops: float) -> dict[str, Any]:
    """Returns the overrides of pretraining on rows of 128 tokens with a budget; "base" keeps the config's optimizer.

    At the rate of `tiny,modern`, 1e-2, small models stay near the loss of unigrams, 6.62 with 4,096 tokens: after 1,000
    updates the loss is 6.42. At 2e-3 it is 5.56 after 700.
    """
    values: dict[str, Any] = {"budget.flops": flops, "data.source": "", "data.prepared_dir": "{workdir}/prepared"}
    values |= {"data.stages": (), "data.seq_len": 128}
    if size != "base":
        values |= {"evaluate_every": 200, "checkpoint.save_every": 200, "log_every": 50, "batch_size": 32}
        values |= {"optimizer.learning_rate": 2e-3, "optimizer.warmup_steps": 50}
    return values


def fine_tuned(names: Sequence[str], size: str) -> list[dict[str, Any]]:
    """Returns the fine-tuning stages of models of `one_phase`."""
    values = {} if size == "base" else {"data.seq_len": TINY_LENGTH, "optimizer.learning_rate": 3e-4}
    return [task(name, "pretrain", values) for name in names]


def tiny() -> list[dict[str, Any]]:
    """Returns two phases of pretraining a small model with the first seed; later stages start from `pretrain128`.

    The default text is the embedded documentation. Rows are short at first: with longer rows, a model of this size does
    not get below the unigram baseline in this number of updates (docs/results.md).
    """
    common = {
        "log_every": 100,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "data.stages": (),
        "data.packing": True,
        "data.prepared_dir": "{workdir}/prepared",
        "optimizer.learning_rate": 1e-3,
        "optimizer.bias_correction": False,
    }
    short = {
        "num_steps": 3000,
        "batch_size": 128,
        "evaluate_every": 1000,
        "checkpoint.save_every": 1000,
        "data.seq_len": _SHORT_LENGTH,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 400,
    }
    long = {
        "learned_positions": _SHORT_LENGTH,
        "num_steps": 600,
        "batch_size": 32,
        "evaluate_every": 300,
        "checkpoint.save_every": 300,
        "data.seq_len": TINY_LENGTH,
        "optimizer.warmup_steps": 60,
    }
    return [
        stage("pretrain", "configs/bert_pretraining.py:tiny", {**common, **short}, one_seed=True),
        stage("pretrain128", "configs/bert_pretraining.py", {**common, **long}, "pretrain", one_seed=True),
    ]


def tiny_tasks() -> list[dict[str, Any]]:
    """Returns the fine-tuning stages of the small ablations: a task on sentences and a task on pairs."""
    values = {"data.seq_len": TINY_LENGTH, "optimizer.learning_rate": 5e-4}
    return [task(name, "pretrain128", values) for name in TINY_TASKS]
