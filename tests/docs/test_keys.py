"""The page of config keys matches the code and describes every key."""

from docs import build_keys


def test_the_page_is_up_to_date():
    assert build_keys.PAGE.read_text() == build_keys.page(), "run python -m docs.build_keys"


def test_every_key_has_a_meaning():
    assert [(name, key.name) for name in build_keys.CONFIGS for key in build_keys.keys(name) if not key.meaning] == []


def test_a_meaning_is_of_the_dataclass_that_reads_the_key():
    of = {(name, key.name): key.meaning for name in build_keys.CONFIGS for key in build_keys.keys(name)}
    assert of["translation", "model.attention"].startswith('"none", "additive"')
    assert of["features", "mesh.fsdp"] == of["tagging", "mesh.fsdp"] != ""


def test_the_allowed_values_are_those_that_construction_checks():
    of = {(name, key.name): key.allowed for name in build_keys.CONFIGS for key in build_keys.keys(name)}
    assert of["bert_pretraining", "model.dropout"] == "at least 0 and below 1"
    assert of["bert_pretraining", "seed"] == "at least 0 and below 4294967296"
    assert of["translation", "model.attention"] == "one of none, additive, dot, general"
    assert of["bert_pretraining", "data.vocab_size"] == ""


def test_published_values_stand_beside_the_defaults():
    of = {(name, key.name): key for name in build_keys.CONFIGS for key in build_keys.keys(name)}
    assert of["bert_pretraining", "masking.mode"][1:3] == ("dynamic", "static")
    assert of["classification", "optimizer.bias_correction"][1:3] == (True, False)
    assert of["classification", "model.hidden_size"][1:3] == (None, 768)
    assert of["translation", "log_every"].published is None


def test_published_values_are_of_keys_of_the_config():
    for name in build_keys._PUBLISHED:
        assert set(build_keys._published(name)) <= {key.name for key in build_keys.keys(name)}


def test_common_keys_are_described_once():
    page = build_keys.page()
    assert page.count("decoupled weight decay, multiplied by the learning rate.") == 1
    section = page.partition("## configs/multiple_choice.py")[2].partition("\n## ")[0]
    assert "| `batch_size` | `16` | `16` |" in section and "`optimizer.layer_decay`" not in section
