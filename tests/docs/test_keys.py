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


def test_a_meaning_is_of_the_dataclass_that_reads_the_key():
    assert OF["translation", "model.attention"].meaning.startswith('"none", "additive"')
    assert OF["features", "mesh.fsdp"].meaning == OF["tagging", "mesh.fsdp"].meaning != ""


def test_the_allowed_values_are_those_that_construction_checks():
    assert OF["bert_pretraining", "model.dropout"].allowed == "at least 0 and below 1"
    assert OF["bert_pretraining", "seed"].allowed == "at least 0 and below 4294967296"
    assert OF["translation", "model.attention"].allowed == "one of none, additive, dot, general"
    assert OF["bert_pretraining", "data.vocab_size"].allowed == ""


def test_a_field_without_a_line_in_the_config_file_is_a_key():
    config = classification.get_config().to_dict()
    del config["class_weights"], config["optimizer"]["clip_norm"]
    listed = {key.name: key.default for key in keys.of_config(config)}
    assert listed["class_weights"] == () and "optimizer.clip_norm" in listed


def entry(name):
    """The entry of a key on the page."""
    return build_keys.page().partition(f"**`{name}`**: ")[2].partition("\n\n")[0]


def test_an_entry_has_defaults_limits_meanings_and_published_values():
    assert entry("data.workers").startswith("`0`; *≥ 0*  \nthe number of processes")
    assert "**" not in entry("data.seq_len")
    assert "Published: `'static'` (bert_pretraining)." in entry("masking.mode")
    assert "Published: `768` (BERT); `512` (translation)." in entry("model.hidden_size")
    assert "`16` (multiple_choice, reranker)" in entry("batch_size") and "Published" not in entry("log_every")
    assert entry("model.norm").count("One of") == 0  # the meaning names the values
    assert entry("log_every").startswith("`50`; `100` (pretraining, translation); *≥ 1*  \n")
    assert entry("warmup_fraction").startswith("`0.1`; *≥ 0, ≤ 1*  \n")


def test_keys_of_the_same_experiments_have_a_heading_and_no_names():
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", build_keys.page(), re.MULTILINE | re.DOTALL))
    assert sections["budget"].startswith("### training\n\n<a") and "training:" not in sections["budget"]
    assert "###" not in sections["mesh"]  # of all experiments
    assert sections["data"].index("translation: ") < sections["data"].index("### training\n")


def test_published_values_are_of_keys_of_the_config():
    for name in build_keys._PUBLISHED:
        assert set(build_keys._published(name)) <= {key for config, key in OF if config == name}


def test_every_key_has_one_entry_and_every_meaning_stands_once():
    page = build_keys.page()
    assert all(page.count(f'<a id="{name}"></a>') == 1 for name in {key for _, key in OF})
    assert page.count("decoupled weight decay, multiplied by the learning rate.") == 1


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
