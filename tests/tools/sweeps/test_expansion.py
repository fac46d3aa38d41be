"""The list of a sweep's runs."""

import re
from pathlib import Path

import pytest

from bertjax.configs.sweeps import parts
from bertjax.errors import UserError
from bertjax.runs import run_folder
from bertjax.tools.sweeps import expansion, folder
from bertjax.tools.sweeps.expansion import Key, with_shared_rows
from tests.tiny import check_message as check
from tests.tools.sweeps import made


def expand(tmp_path, sets=(), seeds=(0, 1), **changed):
    sweep = made.sweep(**changed)
    recipes = expansion.recipes(sweep, sets, made.load)
    return expansion.runs(sweep, recipes, seeds, seeds[0], tmp_path, {})


def save(workdir, sweep, sets=(), load=made.load, seeds=(0,)):
    """Records a sweep in its folder. Returns its recipes and its runs."""
    recipes = expansion.recipes(sweep, sets, load)
    runs = expansion.runs(sweep, recipes, seeds, seeds[0], workdir, folder.names(workdir))
    folder.save(workdir, "sweep.py", recipes, runs, seeds[0])
    return recipes, runs


def named(runs):
    """Returns the runs by name, in which a digest is replaced by HASH."""
    return {re.sub(r"pretrain-[0-9a-f]{8}", "pretrain-HASH", run.name): run for run in runs}


def test_equal_stages_are_run_once(tmp_path):
    runs = named(expand(tmp_path))
    names = ("base-pretrain", "pretrain-HASH", "base-task", "no-a-task", "no-a-b-task")
    assert list(runs) == [f"{name}-seed{seed}" for name in names for seed in (0, 1)]
    assert runs["pretrain-HASH-seed1"].keys == (Key("No A", "pretrain", 1), Key("No A & B", "pretrain", 1))
    for row in ("no-a", "no-a-b"):
        assert runs[f"{row}-task-seed1"].needs == runs["pretrain-HASH-seed1"].folder
    assert runs["base-task-seed0"].needs == tmp_path / "runs" / "base-pretrain-seed0"
    assert runs["base-task-seed0"].metrics == ("valid/f1",)
    assert runs["base-pretrain-seed0"].metrics == ()


def test_the_command_makes_the_config(tmp_path):
    run = named(expand(tmp_path, sets=["task.data.source=a=b"]))["no-a-b-task-seed1"]
    assert run.arguments == (
        "--config=task.py",
        f"--config.data.valid={tmp_path}/x",
        "--config.data.source=a=b",
        "--config.size=3",
        f"--config.init_from={run.needs}",
        "--config.seed=1",
    )
    assert run.command[-1] == f"--workdir={run.folder}"
    assert made.load(run.arguments) == run.config


def test_a_row_may_have_another_config(tmp_path):
    rows = [parts.row("base"), parts.row("other", configs={"task": "other.py:big"})]
    runs = expand(tmp_path, rows=rows, seeds=(0,))
    assert [run.arguments[0] for run in runs] == ["--config=pretrain.py", "--config=task.py", "--config=other.py:big"]


def test_equal_rows_share_all_runs(tmp_path):
    runs = expand(tmp_path, rows=[parts.row("base"), parts.row("again", {"pretrain.size": 1})], seeds=(0,))
    assert [run.keys[-1].row for run in runs] == ["again", "again"]


def test_a_stage_with_one_seed_is_shared_by_all_seeds(tmp_path):
    stages = [parts.stage("pretrain", "p.py", one_seed=True), parts.stage("task", "t.py", {}, "pretrain")]
    runs = named(expand(tmp_path, stages=stages, seeds=(3, 1), rows=[parts.row("base")]))
    assert list(runs) == ["base-pretrain-seed3", "base-task-seed3", "base-task-seed1"]
    assert {runs[f"base-task-seed{seed}"].needs for seed in (3, 1)} == {tmp_path / "runs" / "base-pretrain-seed3"}
    assert expansion.run_of(tuple(runs.values()), "base", "pretrain", 1).name == "base-pretrain-seed3"


def test_folders_keep_their_names_when_rows_are_added(tmp_path):
    rows = made.values()["rows"]
    sweep, more = made.sweep(rows=rows[:2]), made.sweep()
    _, runs = save(tmp_path, sweep)
    others = expansion.recipes(more, (), made.load)
    folder.check(tmp_path, others)
    again = expansion.runs(more, others, (0, 1), 0, tmp_path, folder.names(tmp_path))
    assert {run.folder for run in runs} <= {run.folder for run in again}
    assert [run.name for run in again if run.keys[0] == Key("No A", "pretrain", 0)] == ["no-a-pretrain-seed0"]


def test_a_sweep_resumes_after_a_new_key_that_is_off(tmp_path):
    sweep = made.sweep()
    save(tmp_path, sweep)
    later = {"packing": False, "prefix": "", "few": 0}
    folder.check(tmp_path, expansion.recipes(sweep, (), lambda arguments: {**made.load(arguments), **later}))
    with pytest.raises(UserError, match="packing: None before, True now"):
        recipes = expansion.recipes(sweep, (), lambda arguments: {**made.load(arguments), "packing": True})
        folder.check(tmp_path, recipes)


def test_the_shared_seed_stays_when_seeds_are_added(tmp_path):
    stages = [parts.stage("pretrain", "p.py", one_seed=True), parts.stage("task", "t.py", {}, "pretrain")]
    sweep = made.sweep(stages=stages, rows=[parts.row("base")])
    assert folder.first_seed(tmp_path, (3, 1)) == 3
    recipes, _ = save(tmp_path, sweep, seeds=(3, 1))
    assert folder.first_seed(tmp_path, (1, 2)) == 3
    again = expansion.runs(sweep, recipes, (1, 2), 3, tmp_path, folder.names(tmp_path))
    assert [run.name for run in again] == ["base-pretrain-seed3", "base-task-seed1", "base-task-seed2"]
    assert {run.needs for run in again[1:]} == {again[0].folder}


@pytest.mark.parametrize("sets", [("task.size=7",), ("pretrain.data.source=other",)])
def test_a_folder_of_a_different_sweep_is_refused(tmp_path, sets):
    sweep = made.sweep(rows=made.values()["rows"][:1])
    save(tmp_path, sweep)
    with pytest.raises(UserError) as error:
        folder.check(tmp_path, expansion.recipes(sweep, sets, made.load))
    key, now = ("size: 1 before", "7 now") if "size" in sets[0] else ("data.source: 'text' before", "'other' now")
    check(f"error: {error.value}", "--workdir=", f"row 'base', stage .*{key}, {now}", "same", "--w")


def test_missing_rows_and_changed_checkpoint_settings_are_refused(tmp_path):
    sweep = made.sweep()
    save(tmp_path, sweep)
    fewer = made.sweep(rows=made.values()["rows"][:2])
    with pytest.raises(UserError, match=r"row 'No A & B', stage pretrain: recorded, but not in this sweep"):
        folder.check(tmp_path, expansion.recipes(fewer, (), made.load))
    with pytest.raises(UserError, match=r"checkpoint.final: 'latest' before, 'best' now .* it starts from another run"):
        folder.check(tmp_path, expansion.recipes(sweep, ["pretrain.checkpoint.final=best"], made.load))


def test_an_unreadable_record_of_the_sweep(tmp_path):
    (tmp_path / "sweep.json").write_text('{"rows": ')
    with pytest.raises(UserError, match=r"sweep.json: got an unreadable file .*Fix: delete it"):
        folder.names(tmp_path)


def test_keys_that_may_change_keep_the_digest():
    def load(arguments):
        return {**made.load(arguments), "log_every": 2, "mesh": {"data": 2}}

    found = expansion.recipes(made.sweep(), (), load)["base", "task"].digest
    assert found == expansion.recipes(made.sweep(), (), made.load)["base", "task"].digest


def test_a_sweep_from_before_the_automatic_backend_keeps_its_digests(monkeypatch):
    def with_backend(name):
        def load(arguments):
            config = made.load(arguments)
            return {**config, "model": {**config.get("model", {}), "attention_backend": name}}

        return expansion.recipes(made.sweep(), (), load)["base", "task"].digest

    now = with_backend("auto")
    may_change = [key for key in run_folder._MAY_CHANGE if key != "model.attention_backend"]
    monkeypatch.setattr(run_folder, "_MAY_CHANGE", may_change)
    assert now == with_backend("xla")


def test_a_sweep_resumes_after_a_config_file_unsets_a_key(tmp_path):
    def begin(seq_len):
        def load(arguments):
            config = made.load(arguments)
            return {**config, "data": {**config["data"], "seq_len": seq_len}}

        recipes = expansion.recipes(made.sweep(), (), load, folder.recorded(tmp_path))
        folder.check(tmp_path, recipes)
        folder.save(tmp_path, "sweep.py", recipes, (), 0)
        return {key: recipe.digest for key, recipe in recipes.items()}

    before = begin(128)
    assert begin(None) == begin(None) == before
    with pytest.raises(UserError, match=r"stage task: data\.seq_len: 128 before, 64 now"):
        begin(64)


def of_epochs(num_epochs, num_steps=None):
    """Returns a loader of configs whose number of updates depends on rows unless it is set."""
    lengths = {"num_steps": num_steps, "num_epochs": num_epochs, "optimizer": {"warmup_steps": 0}}
    return lambda arguments: {**lengths, **made.load(arguments)}


def test_rows_with_different_epochs_have_separate_runs(tmp_path):
    rows = [parts.row("base"), parts.row("longer", {"task.num_epochs": 9})]
    sweep = made.sweep(rows=rows)
    for num_steps, count in ((None, 3), (4, 2)):  # epochs have no effect if the number of updates is set
        recipes = expansion.recipes(sweep, (), of_epochs(3, num_steps))
        assert len(expansion.runs(sweep, recipes, (0,), 0, tmp_path, {})) == count


def test_rows_with_different_patience_have_separate_runs(tmp_path):
    def with_patience(patience, evaluate_every):
        values = {"evaluate_patience": patience, "evaluate_every": evaluate_every}
        return expansion.recipes(made.sweep(), (), lambda arguments: {**made.load(arguments), **values})

    given = ((0, 1), (0, 2), (2, 1), (2, 2))
    each = [with_patience(*values)["base", "task"].digest for values in given]
    assert each[0] == each[1] == save(tmp_path, made.sweep())[0]["base", "task"].digest and len({*each}) == 3
    with pytest.raises(UserError, match=r"evaluate_patience: 0 before, 2 now"):
        folder.check(tmp_path, with_patience(2, 1))


def test_a_sweep_with_digests_without_epochs_resumes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(expansion, "_lengths", lambda config: {})
        old, _ = save(tmp_path, made.sweep(), load=of_epochs(3))
    now = expansion.recipes(made.sweep(), (), of_epochs(3), folder.recorded(tmp_path))
    assert {key: recipe.digest for key, recipe in now.items()} == {key: each.digest for key, each in old.items()}
    with pytest.raises(UserError, match="num_epochs: 3 before, 4 now"):
        folder.check(tmp_path, expansion.recipes(made.sweep(), (), of_epochs(4), folder.recorded(tmp_path)))


@pytest.mark.parametrize(
    ("sets", "what", "got"),
    [
        (["task.size"], "--set=task.size", "no value"),
        (["size=3"], "--set=size=3", "no stage or no key"),
        (["tusk.size=3"], "--set=tusk.size=3", "'tusk'"),
        (["none/task.size=3"], "--set=none/task.size=3", "'none'"),
        (["task.size=4"], "--set=task.size", "and one in row 'No A & B'"),
        (["task.seed=4"], "row 'base'", "the key seed of stage task"),
        (["task.init_from=x"], "row 'base'", "the key init_from of stage task"),
    ],
)
def test_values_that_cannot_be_set(tmp_path, sets, what, got):
    with pytest.raises(UserError) as error:
        expand(tmp_path, sets=sets)
    check(f"error: {error.value}", what, got, ".", ".")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"tusk.size": 1}, r"row 'wrong': tusk.size: got 'tusk'; expected one of pretrain, task"),
        ({"task.size": None}, r"row 'wrong': task.size: got None; expected a value that can be written as a flag"),
    ],
)
def test_invalid_overrides_of_a_row(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        expand(tmp_path, rows=[parts.row("base"), parts.row("wrong", overrides)])


def test_the_command_line_can_set_a_value_for_one_row(tmp_path):
    runs = named(expand(tmp_path, sets=["pretrain.data.source=a", "no-a/*.size=9", "*.data.valid=b"]))
    sizes = {name: run.config["size"] for name, run in runs.items() if "task" in name and "seed0" in name}
    assert sizes == {"base-task-seed0": 1, "no-a-task-seed0": 9, "no-a-b-task-seed0": 3}
    assert runs["base-task-seed0"].config["data"] == {"source": "text", "valid": "b"}
    assert runs["base-pretrain-seed0"].config["data"] == {"source": "a", "valid": "b"}


def test_missing_data_is_listed(tmp_path):
    stages = [parts.stage("task", "task.py")]
    rows = [parts.row("base"), parts.row("own", {"task.data.valid": ""})]
    some = {"stages": stages, "rows": rows, "needs": {"task.data.valid": "held-out rows"}}
    with pytest.raises(UserError) as error:
        expand(tmp_path, **some)
    got, fix = "no task.data.valid, own/task.data.valid$", "--set=task.data.valid=PATH --set=own/task.data.valid=PATH"
    check(f"error: {error.value}", "data", got, "held-out rows", fix)
    with pytest.raises(UserError, match=r"got no own/task.data.valid; expected .* held-out rows of row 'own'"):
        expand(tmp_path, sets=["task.data.valid=x"], **some)
    with pytest.raises(UserError, match=r"got no task.data.valid; expected"):
        expand(tmp_path, sets=["own/task.data.valid=x"], **some)
    runs = expand(tmp_path, sets=["task.data.valid=x", "own/task.data.valid=y"], **some)
    assert [run.config["data"]["valid"] for run in runs] == ["x", "x", "y", "y"]


def test_an_error_in_a_config_names_the_row():
    def load(arguments):
        raise UserError("flags", got="that", expected="this", fix="do so")

    with pytest.raises(UserError, match=r"^row 'base', stage pretrain: flags: got that; expected this. Fix: do so.$"):
        expansion.recipes(made.sweep(), (), load)


def test_runs_share_prepared_rows_unless_they_have_their_own(tmp_path):
    config = {"data": {"prepared_dir": "", "source": "a"}}
    shared = with_shared_rows(config, tmp_path, tmp_path / "runs" / "one")
    assert shared == {"data": {"prepared_dir": str(tmp_path / "prepared"), "source": "a"}}
    assert with_shared_rows(shared, Path("elsewhere"), tmp_path / "runs" / "one") == shared
    (tmp_path / "runs" / "two" / "data" / "1f").mkdir(parents=True)
    assert with_shared_rows(config, tmp_path, tmp_path / "runs" / "two") == shared
    (tmp_path / "runs" / "two" / "data" / "1f" / "manifest.json").touch()
    assert with_shared_rows(config, tmp_path, tmp_path / "runs" / "two") == config
    assert with_shared_rows({"seed": 1}, tmp_path, tmp_path / "runs" / "one") == {"seed": 1}
