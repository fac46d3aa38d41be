"""`--mode=prepare` reports the rows, and refuses what training refuses."""

import json

import pytest

from bertjax.contract import Evaluation
from bertjax.errors import UserError
from bertjax.modes.prepare import check_rows
from tests import tiny
from tests.experiments.commands import SIZES, done, flags
from tests.tiny import check_message as check


def prepare(folder, name, **values):
    sizes = {**SIZES, "data.seq_len": 16, "data.valid_fraction": 0.2, **values}
    return ["--mode=prepare", f"--config=configs/{name}.py:tiny", f"--workdir={folder / 'run'}", *flags(sizes)]


def test_class_counts_are_logged_and_written_to_rows_json(tmp_path):
    command = prepare(tmp_path, "classification", **tiny.write_table(tmp_path))
    told = done(*command).stderr
    classes = json.loads((tmp_path / "run" / "rows.json").read_text())["classes"]
    assert {*classes} == {"train", "valid"} and {*classes["train"]} == {"no", "yes"}
    assert f"train split by class: no {classes['train']['no']}, yes {classes['train']['yes']}" in told
    assert "by class" not in done(*command).stderr  # nothing was prepared


def test_a_regression_logs_no_classes(tmp_path):
    values = {"objective": "regression", "metrics": "('pearson',)", "checkpoint.best_metric": "valid/pearson"}
    command = prepare(tmp_path, "classification", **tiny.write_table(tmp_path), **values)
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "a cat .\t1\na dog .\t2\n" * 9)
    assert "by class" not in done(*command).stderr


def test_damaged_rows_are_refused(tmp_path):
    command = prepare(tmp_path, "classification", **tiny.write_table(tmp_path))
    done(*command)
    for name in ("train/labels", "train/input_ids.lengths", "valid.jsonl"):
        (path,) = (tmp_path / "run" / "data").glob(f"*/{name}")
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 8 * 4])
        for mode in ("prepare", "train"):
            message = tiny.run_on_one(*command, f"--mode={mode}").error
            check(message, name, f"damaged file .* of {len(whole):,} bytes", "the whole file", "delete .*/data/")
        path.write_bytes(whole)


def test_the_first_row_of_an_evaluation_is_read():
    def examples():
        yield from ()
        raise UserError("a row", got="one", expected="another", fix="correct it")

    evaluation = Evaluation("mine", None, examples, dict, ())
    with pytest.raises(UserError, match="a row: got one"):
        check_rows([evaluation._replace(examples=lambda: iter(())), evaluation])
