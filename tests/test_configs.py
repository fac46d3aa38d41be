"""All configs in configs/, at all sizes: they load, all their keys are used, and unknown keys are errors."""

import functools
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util

import bertjax
from bertjax import config as config_module
from bertjax.config import check_keys
from bertjax.errors import UserError
from bertjax.modes import stages
from bertjax.runs.checkpoints import restore_params
from bertjax.training import loop
from bertjax.training.config import TrainingConfig
from tests import tiny
from tests.experiments.commands import done, flags, metrics_of

ROOT = Path(__file__).parents[1]
MODULES = {
    path.stem: module
    for path in sorted((ROOT / "configs").glob("*.py"))
    if hasattr(module := importlib.import_module(f"bertjax.configs.{path.stem}"), "get_config")
}
del MODULES["text_to_text"]  # of the experiment translation; see tests/experiments/test_translation.py
UNTRAINED = ("features", "minimal_pairs", "retrieval")  # without sizes; see tests/experiments/
for name in UNTRAINED:
    del MODULES[name]
SIZES = {name: tuple(getattr(module, "SIZES", ())) for name, module in MODULES.items()}
SIZES["translation"] = ("tiny", "base", "big", "rnn")
VARIANTS = [(name, size) for name, sizes in SIZES.items() for size in sizes]
VARIANTS += [("bert_pretraining", variant) for variant in ("tiny,modern", "modernbert_base")]
VARIANTS += [("denoising", "base,t5")]
# The values that a config needs in addition to a size.
NEEDED = {"classification": {"data.labels": ("no", "yes")}, "tagging": {"data.labels": ("O", "B-PER", "I-PER")}}


def small(name: str, folder: Path) -> dict[str, Any]:
    """Writes tiny data for a config and returns the values that it needs."""
    values = {"num_steps": 2, "batch_size": 8, "data.valid_fraction": 0.2}
    if name in ("bert_pretraining", "denoising", "replaced_tokens"):
        text = {"data.source": tiny.write_text(folder / "text.txt"), "data.lines": "sentence"}
        return {**values, **text, "data.workers": 1, "data.vocab_size": 120}
    if name == "question_answering":
        return {**values, **tiny.write_questions(folder), "data.seq_len": 24, "data.max_query_length": 8}
    if name == "bertsum_ext":
        return {**values, **tiny.write_articles(folder), "data.seq_len": 32, "data.window_overlap": 8}
    if name == "bertsum_abs":
        text = {"data.source": tiny.write_articles(folder)["data.source"], "data.vocab_size": 120}
        text |= {"data.seq_len": 32, "data.window_overlap": 8}
        return {**values, **text, "target_len": 12, "decoding.max_extra": 12, "decoding.min_extra": 1}
    if name == "translation":
        dates = {"data.num_valid": 8, "data.num_test": 0, "data.seq_len": 48, "data.vocab_size": 300}
        return {**values, **dates, "checkpoint.final": "latest"}
    writers = {
        "classification": tiny.write_table,
        "multiple_choice": tiny.write_choices,
        "embeddings": tiny.write_related,
        "reranker": tiny.write_rankings,
        "tagging": tiny.write_sentences,
    }
    return {**values, **writers[name](folder), "data.seq_len": 16}


def tree_of(name: str, size: str) -> dict[str, Any]:
    config = MODULES[name].get_config(size)
    config.update_from_flattened_dict(NEEDED.get(name, {}))
    return json.loads(config.to_json())


def make(tree: Mapping[str, Any]) -> tuple[Any, TrainingConfig]:
    """The task of a config, made without data, and its settings."""
    module = importlib.import_module(f"bertjax.experiments.{tree['experiment']}")
    check_keys(stages.readers(module, tree), tree)
    resolved = stages.of_config(module, dict(tree))
    resolved.data(Path("unused"))
    complete = resolved.example()
    return complete.task, complete.settings


def leaves(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each value and each subtree."""
    for key, value in tree.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from leaves(value, (*prefix, key))


def changed(tree: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    return {**tree, key: changed(tree.get(key, {}), tuple(rest), value) if rest else value}


@pytest.fixture(autouse=True)
def _no_fingerprint(monkeypatch):
    """Avoids reading the whole embedded text."""
    monkeypatch.setattr("bertjax.data.readers.documentation.fingerprint", lambda: {})


@pytest.mark.parametrize(("name", "size"), VARIANTS)
def test_a_config_builds_task_and_settings(name, size):
    task, settings = make(tree_of(name, size))
    assert settings.optimizer.warmup_steps < settings.num_steps
    # Encoders have the sizes of pretraining, so other tasks are traced only at the smallest and the largest size.
    if name in ("bert_pretraining", "translation") or size in (SIZES[name][0], SIZES[name][-1]):
        loop.Trainer(task, settings, jax.devices()[:1])


@pytest.mark.parametrize(
    ("size", "vocab_size", "published"),
    [
        ("base", 30_522, 109_482_240),
        ("large", 30_522, 335_141_888),
        # Ours also have a norm before the first attention, which is not used.
        ("modern", 50_368, 149_014_272 + 768),
        ("modernbert_large", 50_368, 394_781_696 + 1024),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(size, vocab_size, published):
    tree = changed(tree_of("bert_pretraining", size), ("model", "vocab_size"), vocab_size)
    shapes = jax.eval_shape(make(tree)[0].init, jax.random.key(0))["bert"]
    assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == published


@pytest.mark.parametrize("name", MODULES)
def test_a_config_without_a_size_needs_a_size_or_a_folder(name):
    with pytest.raises(UserError, match=r"--config: got neither a (size|model) nor init_from .*Fix: append "):
        make(tree_of(name, ""))


@pytest.mark.parametrize("name", MODULES)
def test_the_docstring_has_a_command_that_names_the_config(name):
    assert f"python launch.py --config=configs/{name}.py:" in MODULES[name].__doc__
    sizes = MODULES[name].__doc__.partition("Models: " if name == "translation" else "Sizes: ")[2]
    assert [size for size in re.findall(r"[a-z]+", sizes) if size in SIZES[name]][: len(SIZES[name])] == [*SIZES[name]]


@pytest.mark.parametrize("name", MODULES)
def test_an_unknown_key_is_an_error_in_every_subtree(name):
    tree = tree_of(name, SIZES[name][0])
    subtrees = [(), *(path for path in leaves(tree) if isinstance(value_at(tree, path), Mapping))]
    assert len(subtrees) > 4
    for path in subtrees:
        with pytest.raises(UserError) as error:
            make(changed(tree, (*path, "num_stepz"), 1))
        assert f"config key {'.'.join((*path, 'num_stepz'))}: got an unknown key; expected " in str(error.value)


@pytest.mark.parametrize(("name", "size"), VARIANTS)
def test_a_config_file_names_every_key(name, size, monkeypatch):
    """This includes keys with a default. A missing key without a default is an error anyway."""
    have, missing = set(), set()

    def recorded(classes, values, where, **options):
        keys = {f"{where}.{name}": name for cls in classes for name in config_module.keys(cls)}
        have.update(keys)
        missing.update(key for key, name in keys.items() if name not in values)
        return checked_fields(classes, values, where, **options)

    checked_fields = config_module._checked_fields
    monkeypatch.setattr(config_module, "_checked_fields", recorded)
    make(tree_of(name, size))
    assert have
    assert not missing


@pytest.mark.parametrize("name", MODULES)
def test_a_key_that_every_run_has_may_not_be_missing(name):
    for path in (("seed",), ("optimizer", "learning_rate"), ("data", "on_bad_row")):
        tree = tree_of(name, SIZES[name][0])
        del value_at(tree, path[:-1])[path[-1]]
        with pytest.raises(UserError, match=rf"config key {'.'.join(path)}: got no value; expected a value of type"):
            make(tree)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("classification", "threshold", 0.5),
        ("classification", "class_weights", ()),
        ("classification", "data.label_separator", ","),
        ("tagging", "data.packing", False),
        ("tagging", "data.split_punctuation", True),
        ("question_answering", "data.workers", 0),
        ("bert_pretraining", "objective", "masked_lm"),
        ("bertsum_ext", "rouge.references", "average"),
        ("bertsum_ext", "data.oracle.first_sentences", 0),
        ("translation", "model.norm", "post"),
    ],
)
def test_a_run_that_is_older_than_a_key_has_its_default(name, key, value):
    tree, path = tree_of(name, SIZES[name][0]), key.split(".")
    value_at(tree, path[:-1]).pop(path[-1])
    assert functools.reduce(getattr, path, make(tree)[0]._config) == value


@pytest.mark.parametrize("name", MODULES)
def test_every_value_has_a_type(name):
    tree = tree_of(name, SIZES[name][0])
    for path in leaves(tree):
        if path[0] == "experiment":
            continue
        wrong = 3 if isinstance(value_at(tree, path), (Mapping, str)) else {"wrong": 1}
        with pytest.raises(UserError) as error:
            make(changed(tree, path, wrong))
        assert f"config key {'.'.join(path)}: got {wrong!r} ({type(wrong).__name__}); expected" in str(error.value)


def value_at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


# For each config, a variant that sets no length, and the default length.
LENGTHS = {
    "bert_pretraining": ("mini", 128),
    "bertsum_abs": ("mini", 512),
    "bertsum_ext": ("tiny", 512),
    "classification": ("tiny", 128),
    "multiple_choice": ("tiny", 128),
    "question_answering": ("tiny", 384),
    "replaced_tokens": ("mini", 128),
    "reranker": ("tiny", 512),
    "tagging": ("tiny", 128),
    "translation": ("tiny", 128),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_the_default_length_fits_the_model(name):
    """A length that is set may not fit; then it is compared with the model's."""
    variant, default = LENGTHS[name]
    for positions, expected in ((512, default), (77, 77)):
        tree = changed(tree_of(name, variant), ("model", "max_positions"), positions)
        if name == "translation":
            tree = changed(tree, ("decoding", "max_length"), 77)
        task, _ = make(tree)
        assert task._config.data.seq_len == expected
    tree = changed(tree, ("data", "seq_len"), 128)
    resolved = importlib.import_module(f"bertjax.experiments.{name}").resolve(tree, None)
    assert resolved["data"]["seq_len"] == 128


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("large", (256, 900_000, 128, "adamw", 1e-4, 10_000)),
        ("base,phase2", (256, 100_000, 512, "adamw", 1e-4, 10_000)),
        ("large,lamb", (65_536, 7_038, 128, "lamb", 6e-3, 2_001)),
        ("lamb,phase2,large", (32_768, 1_563, 512, "lamb", 4e-3, 200)),
    ],
)
def test_pretraining_settings_match_published_ones(variant, expected):
    tree = tree_of("bert_pretraining", variant)
    optimizer = tree["optimizer"]
    length = make({**tree, "init_from": ""})[0]._config.data.seq_len
    found = (tree["batch_size"], tree["num_steps"], length, optimizer["name"])
    assert (*found, optimizer["learning_rate"], optimizer["warmup_steps"]) == expected
    if "phase2" in variant:
        with pytest.raises(UserError, match=r"config key init_from: got None"):
            make(tree)


@pytest.mark.parametrize(
    ("size", "millions", "sizes", "dropout"),
    [("base", 65, (6, 512, 8, 2048), 0.1), ("big", 213, (6, 1024, 16, 4096), 0.3)],
)
def test_translation_settings_match_the_paper(size, millions, sizes, dropout):
    """Checks table 3 and sections 5.3 and 5.4 of Vaswani et al. (2017), with 37,000 tokens shared by both languages."""
    tree = tree_of("translation", size)
    for side in ("source", "target"):
        tree = changed(tree, ("model", f"{side}_vocab_size"), 37_000)
    shapes = jax.eval_shape(make(tree)[0].init, jax.random.key(0))
    assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == pytest.approx(millions * 1e6, rel=0.03)
    model, optimizer = tree["model"], tree["optimizer"]
    assert tuple(model[key] for key in ("num_layers", "hidden_size", "num_heads", "intermediate_size")) == sizes
    assert (model["num_decoder_layers"], model["norm"], model["activation"]) == (sizes[0], "post", "relu")
    assert (model["dropout"], model["attention_dropout"], tree["label_smoothing"]) == (dropout, 0, 0.1)
    names = ("name", "schedule", "warmup_steps", "beta1", "beta2", "eps", "bias_correction", "weight_decay")
    assert tuple(optimizer[key] for key in names) == ("adamw", "inverse_sqrt", 4000, 0.9, 0.98, 1e-9, True, 0)
    assert optimizer["learning_rate"] == pytest.approx((sizes[1] * 4000) ** -0.5)
    decoding = tree["decoding"]
    assert tuple(decoding[key] for key in ("num_beams", "alpha", "max_ratio", "max_extra")) == (4, 0.6, 1, 50)


@pytest.mark.parametrize("variant", ["base,large", "lamb,lamb", "base,phase3", "base phase2"])
def test_invalid_variants_are_errors(variant):
    with pytest.raises(ValueError, match=rf"got '{variant}'; expected names, separated by commas: at most one of tiny"):
        MODULES["bert_pretraining"].get_config(variant)


@pytest.mark.slow
def test_a_task_starts_from_the_head_of_a_modern_run(tmp_path):
    """The map and norm of the masked-LM head become those of the task."""
    text = {**small("bert_pretraining", tmp_path), "model.num_layers": 1, "data.seq_len": 32}
    table = {**small("classification", tmp_path / "rows"), "data.vocab_file": "", "optimizer.learning_rate": 0.0}
    runs, trees = [tmp_path / "words", tmp_path / "classes"], []
    configs = ("bert_pretraining.py:tiny,modern", "classification.py")
    for config, run, values in zip(configs, runs, (text, {**table, "init_from": runs[0]}), strict=True):
        done(f"--config=configs/{config}", f"--workdir={run}", *flags({**values, "optimizer.warmup_steps": 0}))
        trees.append(restore_params(run, "latest", None))
    words, classes = trees
    assert classes.keys() == {"bert", "transform", "norm", "classifier"}
    same = {"bert": words["bert"], **{name: words["masked_lm"][name] for name in ("transform", "norm")}}
    jax.tree.map(np.testing.assert_array_equal, same, {name: classes[name] for name in same})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant"), [*((name, SIZES[name][0]) for name in MODULES), ("bert_pretraining", "tiny,modern")]
)
def test_each_config_trains_at_its_smallest_size(name, variant, tmp_path):
    workdir = tmp_path / "run"
    done(f"--config=configs/{name}.py:{variant}", f"--workdir={workdir}", *flags(small(name, tmp_path)))
    steps = [line["step"] for line in metrics_of(workdir)]
    baselines = [] if name == "translation" else [0]
    assert steps == [*baselines, 2, 2]
    assert json.loads((workdir / "config.json").read_text())["num_steps"] == 2
    if name not in ("embeddings", "denoising"):  # whose exports are of features and of pairs of texts
        _check_library(name, workdir, tmp_path)


# For each task: an input of the library, and the same as lines of the command line.
INPUTS = {
    "multiple_choice": (("the cat", "sees .", "dogs ."), "the cat\tsees .\tdogs .\n"),
    "reranker": (("likes cat", "the cat runs"), "likes cat\tthe cat runs\n"),
    "question_answering": (
        {"question": "who ?", "context": "the cat ."},
        json.dumps({"data": [{"paragraphs": [{"context": "the cat .", "qas": [{"id": "1", "question": "who ?"}]}]}]}),
    ),
    "bert_pretraining": ("the [MASK] .", "the [MASK] .\n"),
    "translation": ("Saturday, November 21, 2026", "Saturday, November 21, 2026\n"),
}


def _check_library(name, workdir, folder):
    """Checks that `bertjax.load` predicts as the command line, from the run and from the exported folder."""
    given, lines = INPUTS.get(name, ("the cat sees the dog .", "the cat sees the dog .\n"))
    command = ["--mode=predict", f"--workdir={workdir}", "--format=jsonl"]
    expected = [json.loads(tiny.run_on_one(*command, stdin=lines.encode()).stdout)]
    done("--mode=export", f"--workdir={workdir}", f"--output={folder / 'exported'}")
    with tiny.few_devices(1):
        run = bertjax.load(workdir)
        assert json.loads(json.dumps(run.predict([given]))) == expected
        # The folder does not say how the run generates.
        values = traverse_util.flatten_dict(dict(run.config), sep=".")
        keys = {"target_len", "data.seq_len", "data.max_query_length"}
        settings = {key: values[key] for key in values if key in keys or key.startswith("decoding.")}
        exported = bertjax.load(folder / "exported", config=settings)
        assert exported.config["experiment"] == name
        assert json.loads(json.dumps(exported.predict([given]))) == expected
