"""Messages of user errors, and dataclasses built from configs."""

import contextlib
import dataclasses
import errno
import math
import os
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from absl import flags
from hypothesis import given
from hypothesis import strategies as st

from bertjax import contract, experiments, launch, loading
from bertjax.config import (
    Composed,
    Constrained,
    Flat,
    Size,
    above,
    at_least,
    build,
    choice,
    constraints,
    defaults,
    each,
    one_of,
)
from bertjax.errors import UserError, as_user_error


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    rate: float


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    steps: int
    is_on: bool
    groups: tuple[Any, ...]
    weights: tuple[float, ...]
    maybe: int | None
    inner: Inner
    free: Mapping[str, Any]


GOOD = {
    "name": "x",
    "steps": 3,
    "is_on": True,
    "groups": [("a", {})],
    "weights": [1, 0.5],
    "maybe": None,
    "inner": {"size": 2, "rate": 0.5},
    "free": {"anything": 1},
}


def test_a_message_is_one_line():
    shown = str(UserError("a\rfile", got="x" * 10**6 + "\0\n\x1b", expected="\u2028\ud800 \u00fc", fix="mend it"))
    assert shown.startswith("a\\rfile: got xxx")
    assert shown.endswith("xxx\\x00\\n\\x1b; expected \\u2028\\ud800 \u00fc. Fix: mend it.")
    assert len(shown) < 3000


def test_build_makes_nested_dataclasses():
    made = build(Outer, GOOD, "")
    assert made == Outer("x", 3, True, (("a", {}),), (1.0, 0.5), None, Inner(2, 0.5), {"anything": 1})
    assert type(build(Inner, {"size": 1, "rate": 2}, "inner").rate) is float


@dataclasses.dataclass(frozen=True)
class Limited(Constrained):
    threshold: float | None
    size: Size | None = None


def test_optional_values():
    assert type(build(Limited, {"threshold": 0}).threshold) is float
    assert build(Limited, {"threshold": None, "size": 1}) == Limited(None, 1)
    with pytest.raises(UserError, match="config key size: got 0; expected at least 1"):
        build(Limited, {"threshold": None, "size": 0})


@dataclasses.dataclass(frozen=True)
class Older:
    size: int
    later: bool = False


@dataclasses.dataclass(frozen=True)
class Either:
    model: Inner | Older


def test_of_a_union_the_class_with_the_most_keys_is_built():
    assert build(Either, {"model": {"size": 1, "rate": 0.5}}).model == Inner(1, 0.5)
    assert build(Either, {"model": {"size": 1, "later": True}}).model == Older(1, True)
    with pytest.raises(UserError, match=r"config key model\.later: got an unknown key"):
        build(Either, {"model": {"size": 1, "rate": 0.5, "later": True}})


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_key_is_named(key):
    values = {k: v for k, v in GOOD.items() if k != key}
    message = rf"config key top\.{key}: got no value; expected .*Fix: set --config\.top\.{key}="
    with pytest.raises(UserError, match=message):
        build(Outer, values, "top")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stepz": 1}, r"config key stepz: got an unknown key; expected a key that .*\. Did you mean 'steps'\?$"),
        ({"rate": 1}, r"config key rate: got an unknown key; .*\. Did you mean 'inner\.rate'\?$"),
        ({"inner": {"size": 2, "rate": 0.5, "sizes": 1}}, r"inner\.sizes: .*\. Did you mean 'inner\.size'\?$"),
        ({"xyz": {"x": 1}}, r"config key xyz: got an unknown key; .*Fix: correct the name"),
        ({"xyz": 1}, r"config key xyz: got an unknown key; expected one of name, steps, .*\. Fix: correct the name"),
    ],
)
def test_an_unknown_key_suggests_a_known_one(values, message):
    with pytest.raises(UserError, match=message):
        build(Outer, {**GOOD, **values}, "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 3),
        ("steps", 3.0),
        ("steps", True),
        ("steps", 10**30),
        ("is_on", 1),
        ("groups", "a"),
        ("weights", 1.0),
        ("maybe", False),
        ("inner", 3),
        ("free", [1]),
    ],
)
def test_a_value_of_a_wrong_type_is_an_error(key, value):
    with pytest.raises(UserError) as told:
        build(Outer, {**GOOD, key: value}, "")
    assert f"config key {key}: got {value!r} ({type(value).__name__}); expected a value of type" in str(told.value)


def test_an_error_names_the_index_of_an_element():
    with pytest.raises(UserError, match=r"config key weights\[1\]: got 'b' \(str\); expected a value of type float"):
        build(Outer, {**GOOD, "weights": [1.0, "b"]}, "")


def test_choice():
    assert choice("b", ("a", "b"), "model.activation") == "b"
    with pytest.raises(UserError, match=r"config key model\.activation: got 'c'; expected one of a, b"):
        choice("c", ("a", "b"), "model.activation")
    with pytest.raises(UserError, match=r"one of '', a\. Fix"):
        choice("c", ("", "a"), "match_reference")
    with pytest.raises(UserError, match=r"^--mode: got 'c'"):
        choice("c", ("a", "b"), "--mode")
    with pytest.raises(UserError, match=r"expected one of gelu, relu\. Did you mean 'gelu'\?$"):
        choice("gleu", ("gelu", "relu"), "model.activation")


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "free some space"),
        *((code, "change its permissions") for code in (errno.EROFS, errno.EACCES)),
        (errno.ENOENT, "create the folder first"),
        *((code, "choose another path, because a file has the") for code in (errno.ENOTDIR, errno.EEXIST)),
    ],
)
def test_an_error_of_the_operating_system_names_the_path_and_a_fix(code, fix):
    told = str(as_user_error(OSError(code, os.strerror(code), "/a/file"), "/a/run"))
    assert told.startswith(f"/a/file: got {os.strerror(code)}; expected a readable and writable path")
    assert f" Fix: {fix}" in told
    assert str(as_user_error(OSError(code, os.strerror(code)), "/a/run")).startswith("/a/run: ")


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, Exception])
def test_a_full_disk_is_recognized_in_the_errors_of_any_library(kind):
    error = kind("Failed writing:\n /x/y\n No space left on device [os_error_code='28']\n more")
    told = "/a/run: got No space left on device; expected a readable and writable path"
    assert str(as_user_error(error, "/a/run")).startswith(told)


@given(st.sampled_from([KeyError, ValueError, RuntimeError, TypeError, AssertionError, OSError]), st.text(max_size=20))
def test_other_exceptions_are_not_user_errors(kind, text):
    assert as_user_error(kind(text), "/a/run") is None


@dataclasses.dataclass(frozen=True)
class Layers(Constrained, prefix="model"):
    num_layers: Annotated[int, at_least(1)]
    rate: Annotated[float, above(0, at_most=1)]
    scale: Annotated[float, at_least(0, below=math.inf)]
    norm: Annotated[str, one_of("post", "pre")] = "post"
    metrics: Annotated[tuple[str, ...], each(one_of("f1", ""))] = ()
    label: str = ""


@dataclasses.dataclass(frozen=True)
class MoreLayers(Layers):
    dropout: Annotated[float, at_least(0, below=1)] = 0.0

    def __post_init__(self):
        super().__post_init__()
        self.check(self.dropout == 0 or self.num_layers > 1, "dropout", "0 with model.num_layers=1")


@dataclasses.dataclass(frozen=True)
class Rows(Constrained, prefix="data"):
    length: Size
    header: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition(Composed, prefix="data"):
    rows: Flat[Rows]
    layers: Flat[MoreLayers]
    packing: bool


def test_flat_parts_read_their_keys_from_the_subtree_of_the_whole():
    values = {"length": 8, "packing": True, "num_layers": 1, "rate": 0.5, "scale": 1.0}
    made = build(Composition, values, "data")
    assert made.rows == Rows(8, True) and made.layers.num_layers == 1
    assert (made.length, made.num_layers, made.packing) == (8, 1, True)
    with pytest.raises(AttributeError, match="Composition has no key other"):
        _ = made.other
    with pytest.raises(UserError, match=r"data\.length: got 0; expected at least 1"):
        build(Composition, {**values, "length": 0}, "data")
    for key in ("rows", "lenght"):
        with pytest.raises(UserError, match=rf"data\.{key}: got an unknown key"):
            build(Composition, {**values, key: 1}, "data")
    del values["length"]
    with pytest.raises(UserError, match=r"data\.length: got no value"):
        build(Composition, values, "data")


def test_a_new_run_has_defaults_or_types():
    @dataclasses.dataclass(frozen=True)
    class Unset:
        inner: Inner
        header: bool | None = None
        seed: int | None = None

    of_layers = {"num_layers": int, "rate": float, "scale": float, "norm": "post", "metrics": (), "label": ""}
    expected = {"packing": bool, "length": int, "header": True, **of_layers, "dropout": 0.0}
    assert defaults(Composition) == expected
    assert defaults(Composition, Unset) == {**expected, "seed": int, "inner": {"size": int, "rate": float}}


@pytest.mark.parametrize("cls", [Layers, MoreLayers])
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_layers", 0, "0; expected at least 1"),
        ("rate", 0.0, "0.0; expected above 0 and at most 1"),
        ("rate", 1.5, "1.5; expected above 0 and at most 1"),
        ("rate", math.nan, "nan; expected above 0 and at most 1"),
        ("scale", math.inf, "inf; expected at least 0 and finite"),
        ("norm", "none", "'none'; expected one of post, pre"),
        ("metrics", ("f1", "bleu"), "('f1', 'bleu'); expected each one of f1, ''"),
    ],
)
def test_the_constructor_and_build_check_constraints(cls, key, value, expected):
    good = {"num_layers": 1, "rate": 1.0, "scale": 0.0}
    assert cls(**good, metrics=("f1", "")).norm == "post"
    for make in (lambda values: cls(**values), lambda values: build(cls, values, "model")):
        with pytest.raises(UserError) as told:
            make({**good, key: value})
        assert str(told.value) == f"config key model.{key}: got {expected}. Fix: change --config.model.{key}."


def test_constraints_of_a_base_are_checked_before_those_across_fields():
    with pytest.raises(UserError, match=r"model\.dropout: got 1\.0; expected at least 0 and below 1"):
        MoreLayers(1, 1.0, 0.0, dropout=1.0)
    with pytest.raises(UserError, match=r"model\.dropout: got 0\.5; expected 0 with model\.num_layers=1"):
        MoreLayers(1, 1.0, 0.0, dropout=0.5)


def subclasses(cls):
    for subclass in cls.__subclasses__():
        yield from (subclass, *subclasses(subclass))


def refused(constraint):
    """A value that a constraint does not allow."""
    for value in (math.nan, (math.nan,), ("?",), (), ((),)):
        with contextlib.suppress(TypeError):
            if not constraint.allows(value):
                return value
    raise AssertionError(constraint)


def test_every_config_checks_every_constraint():
    """Which ones there are is in docs/reference/keys.md; `tests/docs/test_keys.py` compares it with the code."""
    assert all(map(experiments.find, experiments.names()))  # imports all configs
    configs = [cls for cls in {*subclasses(Constrained)} if cls.__module__.startswith("bertjax")]
    assert len(configs) > 50
    for cls in configs:
        for key, constraint in constraints(cls).items():
            made = object.__new__(cls)
            vars(made).update(dict.fromkeys(constraints(cls)) | {key: refused(constraint)})
            with pytest.raises(UserError, match=rf"config key {cls._prefix}{key}: .*{re.escape(constraint.expected)}"):
                made.__post_init__()


class Trains(contract.TrainingTask):
    """Only its bases count."""


NAMES = dict.fromkeys(("Config", "Data", "FREE_AFTER_TRAINING", "resolve", "open_vocabulary"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"build_task": None, "Config": None}, r"got build_task, of an .*; expected Task\(config, vocabulary\)\. Fix"),
        ({**NAMES, "Task": Trains}, r"got no example_config; .* that a TrainingTask needs: .*\. Fix: define example"),
        (NAMES, r"got no Task; expected the names that a PredictionTask needs: "),
    ],
)
def test_an_experiment_that_lacks_a_name(names, message):
    module = types.ModuleType("bertjax.experiments.mine")
    vars(module).update(names)
    with pytest.raises(UserError, match=rf"^experiments/mine\.py: {message}"):
        experiments.check(module)


def write_package(folder, name, entries, group="bertjax.experiments"):
    """Writes the metadata of an installed package that registers entries in a group."""
    metadata = folder / f"{name}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entries}\n")


def test_installed_packages_register_experiments(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    entries = "mine = bertjax.experiments.features\nlacking = json\ntagging = json\nunwritten = no_package.mine"
    write_package(tmp_path, "one", entries)
    assert experiments.find("mine") is experiments.find("features")
    assert experiments.find("tagging").__name__ == "bertjax.experiments.tagging"
    assert {"mine", "tagging"} <= set(experiments.names())
    with pytest.raises(UserError, match=r"^json: got no Config; "):
        experiments.find("lacking")
    with pytest.raises(UserError, match=r"^entry point unwritten of .*: got no module no_package; expected .*\.mine"):
        experiments.find("unwritten")
    with pytest.raises(UserError, match=r"experiment: got 'json'; expected one of .*, lacking, mine, "):
        experiments.find("json")
    with pytest.raises(UserError, match=r"^experiment mine: got no config file; .* Fix: register it"):
        loading._config("mine", {})
    write_package(tmp_path, "two", "mine = json")
    with pytest.raises(UserError, match=r"^entry point mine of bertjax\.experiments: got .* and .*; .* Fix: uninstall"):
        experiments.find("mine")


@pytest.mark.parametrize("kind", [launch._CONFIGS, launch._SWEEPS])
def test_config_and_sweep_files_have_names(tmp_path, monkeypatch, kind):
    folder, function, group = kind
    monkeypatch.syspath_prepend(tmp_path)
    write_package(tmp_path, "one", f"my-file = my_{function}\nunwritten = unwritten_{function}", group)
    with pytest.raises(UserError, match=f"^entry point unwritten of {group}: got no module unwritten_{function}"):
        launch._path_of("unwritten", *kind)
    (tmp_path / f"my_{function}.py").touch()
    assert launch._path_of("my-file", *kind) == str(tmp_path / f"my_{function}.py")
    monkeypatch.chdir(tmp_path)
    name = launch._files(*kind)[0]
    assert launch._path_of(name, *kind).endswith(f"bertjax/{folder}/{name}.py")


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("def get_config():\n    return 1 / 0", r"ZeroDivisionError: .* \(line 2\)"),
        ("def get_config(", "SyntaxError: .*line 1"),
        ("import bertjax.nowhere", r"ModuleNotFoundError: .* \(line 1\)"),
        ('{"attention_bias": false}', "NameError: .*'false'"),  # a config.json
        ("def get_config():\n    return {}", "TypeError: get_config returns dict, not a ConfigDict"),
    ],
)
def test_exceptions_of_a_config_file_are_user_errors(tmp_path, source, got):
    path = tmp_path / f"{tmp_path.name}.py"  # ml_collections keeps modules by name
    path.write_text(source)
    flag = flags.FLAGS["config"]
    launch._add_evaluations(flag, [])
    with pytest.raises(UserError, match=rf"^{path}: got {got}.*; expected a Python file"):
        flag.parser.parse(str(path))
