"""Exports and their model cards."""

from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.modes.export import card_fields
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, SIZES, done, trained
from tests.tasks.test_prepared_rows import TASKS


@pytest.mark.parametrize("name", ["classification", "embeddings"])
def test_the_card_of_a_run(name, tmp_path):
    from huggingface_hub import ModelCard

    size, write, values = TASKS[name]
    folder = tmp_path / "자료"
    values = {**SIZES, **NO_DROPOUT, **write(folder), **values, "data.seq_len": 24, "data.valid_fraction": 0.2}
    source = Path(values["data.source"])
    text = source.read_text().replace("\tyes\n", "\t예: 맞음\n").replace("\tno\n", "\t아니요\n")
    values["data.source"] = folder / f"뉴스{source.suffix}"
    values["data.source"].write_text(text)
    run, _ = trained(f"{name}.py:{size}", folder, {**values, "num_steps": 2, "batch_size": 6})
    exported = tmp_path / "모델"
    export = ["--mode=export", f"--workdir={run}", f"--output={exported}"]
    outcome = tiny.run(*export, "--card=language=ko", "--card=license=mit", devices=4)
    assert outcome.status is None, outcome.status
    card = ModelCard.load(exported / "README.md")
    assert (card.data.language, card.data.license, card.data.model_name) == ("ko", "mit", "모델")
    assert {result.dataset_name for result in card.data.eval_results} == {f"뉴스{source.suffix}"}
    assert "batch_size: 6" in card.text  # prediction on four devices rounds it
    assert str(tmp_path) not in str(card)
    assert ("예: 맞음" in card.text) == (name == "classification")

    (exported / "README.md").write_text("mine")
    assert "README.md is kept" in done(*export).stderr
    assert (exported / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("assignment", "fix"),
    [("licence=mit", "Did you mean 'license'"), ("language", "write --card"), ("x=y", "write --card")],
)
def test_an_invalid_field_of_a_card(assignment, fix):
    with pytest.raises(UserError) as error:
        card_fields([assignment])
    tiny.check_message(f"error: {error.value}", "--card", assignment, "NAME=VALUE", fix)


def test_a_card_without_an_export(tmp_path):
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={tmp_path}", "--card=language=ko")
    tiny.check_message(outcome.error, "--card", "--mode=predict", "--mode=export", "omit it")
