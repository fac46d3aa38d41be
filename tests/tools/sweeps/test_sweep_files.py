"""Every file of configs/sweeps expands at both scales, and each of its configs passes the checks of a run."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from flax import traverse_util

from bertjax import launch
from bertjax.config import build
from bertjax.configs import bert_pretraining
from bertjax.configs.sizes import SIZES
from bertjax.interop import encoder_decoders
from bertjax.tools.sweeps import expansion
from bertjax.tools.sweeps.definition import Sweep
from tests import tiny
from tests.experiments.commands import tree_of
from tests.interop import test_marian
from tests.random_params import random_params

ROOT = Path(__file__).parents[3]
NAMES = [path.stem for path in sorted((ROOT / "configs" / "sweeps").glob("[a-z]*.py")) if path.stem != "parts"]
FILES = [f"{name}{variant}" for name in NAMES for variant in ("", ":tiny")]
FILES += ["transformer:tiny,text", "recurrent_attention:tiny,text"]
# No paper publishes their numbers.
UNPUBLISHED = {
    "bert_steps",
    "recurrent_attention",
    "modern_encoder",
    "embeddings",
    "noise",
    "adaptation",
    "distillation",
}
# The columns of GLUE tables.
COLUMNS = {
    "mnli": ("sentence1", "sentence2", "gold_label"),
    "qnli": ("question", "sentence", "label"),
    "mrpc": ("#1 String", "#2 String", "Quality"),
    "sst2": ("sentence", "label"),
    "rte": ("sentence1", "sentence2", "label"),
    "stsb": ("sentence1", "sentence2", "score"),
}


def sweep_of(spec):
    name, _, variant = spec.partition(":")
    return build(Sweep, importlib.import_module(f"bertjax.configs.sweeps.{name}").get_sweep(variant), "sweep")


def file_for(need: str, folder: Path) -> Any:
    """Makes a file for a need such as "mnli.data.source", and returns the value."""
    stage, key = need.split("/")[-1].split(".", 1)
    if key == "init_from":
        is_pairs = need.startswith("encoder-decoder")
        return marian(folder) if is_pairs else tiny_bert(folder, "large" if "large" in need else "base")
    kind = stage.partition("_")[0].removesuffix("512")
    path = folder / f"{kind}.{key}"
    if kind == "adapt":  # texts of two names
        weights = ((0.7,), (0.3,)) if key == "data.mixture" else ((), ())
        path = tiny.write_text(path)
        return tuple((name, str(path), *weight) for name, weight in zip(("domain", "general"), weights, strict=True))
    if key in ("minimal_pairs.source", "causal_pairs.source"):
        path.write_text("the cat sees a dog\tthe cat see a dog\n")
    elif key == "retrieval.source":
        return tiny.write_collection(path, ["a text"])
    elif kind == "embed":
        return Path(str(tiny.write_related(folder)["data.source"]))
    elif kind == "pretrain":
        return tiny.write_text(path)
    elif kind == "train":
        path.write_text("one\ntwo\nthree\n")
    elif kind == "ner":
        return Path(str(tiny.write_sentences(folder)["data.source"]))
    elif kind == "squad":
        return Path(str(tiny.write_questions(folder)["data.source"]))
    elif kind in ("extract", "summarize"):
        return Path(str(tiny.write_articles(folder)["data.source"]))
    elif kind == "cola":
        path = path.with_suffix(".tsv")
        path.write_text("".join(f"x\t{number % 2}\t*\ta text\n" for number in range(8)))
    else:
        path = path.with_suffix(".tsv")
        texts = ["a text"] * (len(COLUMNS[kind]) - 1)
        rows = [COLUMNS[kind], *((*texts, str(number % 2)) for number in range(8))]
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def marian(folder: Path) -> Path:
    """Makes the folder of a small encoder-decoder with random weights."""
    config = test_marian.make_config(max_positions=1024)
    params = test_marian.random_params(config)
    encoder_decoders.save(folder / "marian", params, config, test_marian.SPECIAL, {})
    test_marian.write_vocabularies(folder / "marian")
    return folder / "marian"


def tiny_bert(folder: Path, size: str) -> Path:
    """Makes a run folder that `init_from` can describe, with a size of BERT and no weights."""
    home = folder / size
    if not home.exists():
        tiny.write_table(home)
        layers, hidden = SIZES[size]
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64}
        more = {"intermediate_size": 4 * hidden, "max_position_embeddings": 512, "type_vocab_size": 2}
        vocab_size = len((home / "vocabulary" / "vocab.txt").read_text().splitlines())
        rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
        config = {**sizes, **more, **rates, "vocab_size": vocab_size, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
        (home / "vocabulary" / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    return home / "vocabulary"


def modern_bert(folder: Path, size: str) -> Path:
    """Makes the folder of a modern encoder of a size, with random weights."""
    values = {"data.source": str(tiny.write_text(folder / "text.txt")), "data.workers": 1, "data.valid_fraction": 0.2}
    ready = tiny.ready(tree_of("bert_pretraining", f"{size},modern", values), folder / "data")
    ready.task.export(random_params(ready.task.init), folder / "modern")
    return folder / "modern"


def needed(spec, folder):
    sweep = sweep_of(spec)
    of_rows = {"bertsum": ["large-encoder/extract.init_from"], "summaries": ["encoder-decoder/summarize.init_from"]}
    needs = [*sweep.needs, *of_rows.get(spec, [])]
    size = spec.partition(":")[2]
    teacher = {}
    if "distillation" in spec:
        teacher["pretrain.teacher"] = modern_bert(folder, size) if size else tiny_bert(folder, "base")
    return [f"--set={need}={teacher.get(need) or file_for(need, folder)}" for need in needs]


@pytest.mark.parametrize("spec", FILES)
def test_needs_and_metrics_of_a_sweep(spec):
    sweep = sweep_of(spec)
    module = importlib.import_module(f"bertjax.configs.sweeps.{spec.partition(':')[0]}")
    assert f"python launch.py --sweep=configs/sweeps/{spec.partition(':')[0]}.py" in module.__doc__
    assert sweep.source and sweep.seeds and len(sweep.rows) > 1
    (base,) = (row for row in sweep.rows if row.name == sweep.base)
    assert base.paper.keys() <= {metric.name for metric in sweep.metrics}
    assert base.paper or ":" in spec or spec in UNPUBLISHED, "its published scores"


@pytest.mark.parametrize("size", ["base", "mini", "tiny"])
def test_all_changes_to_bert_make_the_modern_encoder(size):
    sweep = sweep_of(f"modern_encoder:{size}")
    last = [row for row in sweep.rows if row.name.startswith("+")][-1]
    of_all_rows = sweep.stage("pretrain").overrides
    bert, modern = (
        traverse_util.flatten_dict(bert_pretraining.get_config(variant).to_dict(), sep=".")
        for variant in (size, f"{size},modern")
    )
    made = {**bert, **{key.removeprefix("pretrain."): value for key, value in last.overrides.items()}}
    assert {key for key in modern if made[key] != modern[key]} <= set(of_all_rows)
    without = {row.name: row for row in sweep.rows if row.name.startswith("without ")}
    if size != "base":  # all rows, BERT too, start with short rows
        long = without.pop("without short rows")
        assert long.overrides == {**last.overrides, "pretrain.data.stages": ()}
    for row in without.values():
        name = row.name.removeprefix("without ")
        (change,) = (other for other in sweep.rows if other.name == f"+ {name}")
        assert row.overrides.items() < last.overrides.items()
        assert (last.overrides.keys() - row.overrides.keys()) <= change.overrides.keys()


def test_rows_of_table_5_share_pretraining():
    sweep = sweep_of("bert_pretraining_tasks")
    recipes = expansion.recipes(sweep, [f"{need}=x" for need in sweep.needs], launch._load)
    runs = expansion.runs(sweep, recipes, (0, 1, 2), 0, Path("w"), {})
    assert len([run for run in runs if run.keys[0].stage == "pretrain"]) == 3
    assert len([run for run in runs if run.keys[0].stage == "mnli"]) == 12
    both = {key.row for run in runs for key in run.keys if run.name.startswith("pretrain-")}
    assert both == {"LTR & no NSP", "+ BiLSTM"}


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=() if ":tiny" in spec else pytest.mark.slow) for spec in FILES]
)
def test_every_config_passes_the_checks_of_a_run(spec, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.data.readers.documentation.fingerprint", lambda: {})  # of the whole embedded text
    name, _, variant = spec.partition(":")
    file = f"--sweep=configs/sweeps/{name}.py" + (f":{variant}" if variant else "")
    workdir = tmp_path / "sweep"
    outcome = tiny.run(file, f"--workdir={workdir}", "--dry_run", "--seeds=0,1", *needed(spec, tmp_path))
    assert outcome.status is None, outcome.status
    listed = outcome.stdout.splitlines()
    rows = len(sweep_of(spec).rows)
    assert re.fullmatch(rf"\d+ runs of {rows} rows", listed[-1])
    assert all(line.startswith("new ") for line in listed[:-1])
    assert not workdir.exists()


@pytest.mark.parametrize("spec", NAMES)
def test_one_error_lists_all_missing_values(spec, tmp_path):
    outcome = tiny.run(f"--sweep=configs/sweeps/{spec}.py", f"--workdir={tmp_path}", "--dry_run")
    assert outcome.error.startswith("error: the sweep's data: got no ")
    missing = re.findall(r"--set=(\S+)=PATH", outcome.error)
    assert {*sweep_of(spec).needs} <= {*missing}
    expansion.recipes(sweep_of(spec), [f"{name}=x" for name in missing], launch._load)
