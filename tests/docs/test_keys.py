"""The page of config keys matches the code and describes every key."""

import re

import pytest

from bertjax import keys
from bertjax.configs import classification
from bertjax.runs import run_folder
from docs import build_keys
from tests import tiny
from tests.docs.pages import ROOT

OF = {(name, key.name): key for name in build_keys.CONFIGS for key in keys.of_file(name)}


def test_the_page_is_up_to_date():
    assert build_keys.PAGE.read_text() == build_keys.page(), "run python -m docs.build_keys"


def test_every_key_has_a_meaning():
    assert [name for name, key in OF.items() if not key.meaning] == []


def test_a_meaning_does_not_depend_on_that_of_another_key():
    assert [n for n, key in OF.items() if re.match(r"(the same|its|see \"|which \w+ share it)\b", key.meaning)] == []


def test_a_field_without_a_line_in_the_config_file_is_a_key():
    config = classification.get_config().to_dict()
    del config["class_weights"], config["optimizer"]["clip_norm"]
    listed = {key.name: key.default for key in keys.of_config(config)}
    assert listed["class_weights"] == () and "optimizer.clip_norm" in listed


def test_published_values_are_of_keys_of_the_config():
    for name in build_keys._PUBLISHED:
        assert set(build_keys._published(name)) <= {key for config, key in OF if config == name}


def test_the_guide_of_runs_lists_the_keys_that_may_change_on_resumption():
    page = (ROOT / "docs/guides/runs.md").read_text()
    assert [key for key in run_folder._MAY_CHANGE if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--config=configs/classification.py:mrpc", "--keys=num_ep*"], "num_epochs = 3.0\n    epochs to train for,"),
        (["--keys=optimizer.learning_rate"], "optimizer.learning_rate = 0.0001 (bert_pretraining, denoising, "),
        (["--version"], "bertjax "),
    ],
)
def test_the_command_line_prints_keys_and_the_version(arguments, printed):
    assert tiny.run(*arguments).stdout.startswith(printed)


def test_an_unknown_key_of_the_list_suggests_a_known_one():
    message = tiny.run("--config=configs/classification.py:mrpc", "--keys=batchsize").error
    tiny.check_message(message, what="--keys=batchsize", got="no such key", expected="a part", fix="'batch_size'")
