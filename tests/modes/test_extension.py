"""A run that goes on for longer is the longer run, bit for bit, where the learning rate does not tell them apart."""

import itertools
import json

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.experiments import bert_pretraining, classification
from bertjax.modes import extension
from bertjax.modes.stages import Resolved, of_config
from tests import tiny
from tests.experiments.commands import done, flags, lines_of, tree_of

CONSTANT = {"schedule": "constant", "schedule_steps": None}
LINEAR = {"schedule": "linear", "schedule_steps": None}


def write_run(folder, **optimizer):
    """As much of a run of 4 updates as is looked at."""
    config = tiny.config(folder / "text.txt", num_steps=4)
    config["optimizer"] |= optimizer
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text('{"step": 2, "train/loss": 1.0}\n')
    return config


@pytest.mark.parametrize("optimizer", [CONSTANT, {**LINEAR, "schedule_steps": 9}, {"schedule": "inverse_sqrt"}])
def test_a_schedule_that_does_not_end_with_the_run(tmp_path, optimizer):
    config = write_run(tmp_path, **optimizer)
    free = {"num_steps", "optimizer.schedule_steps", "budget.tokens", "budget.flops"}
    assert extension.free_keys(tmp_path, config | {"num_steps": 6}) == free
    assert extension.free_keys(tmp_path, config | {"num_steps": None}) >= free  # compared once rows tell it
    for steps in (3, 4):
        assert not extension.free_keys(tmp_path, config | {"num_steps": steps})
    assert not extension.free_keys(tmp_path / "elsewhere", config | {"num_steps": 6})


def test_a_schedule_that_ends_with_the_run(tmp_path):
    config = write_run(tmp_path, **LINEAR)
    message = (
        "num_steps: got 6, in a run of 4 with .* over 4 updates; expected the schedule .* Fix: .*schedule_steps=4, "
    )
    with pytest.raises(UserError, match=message):
        extension.free_keys(tmp_path, config | {"num_steps": 6})
    stated = config | {"num_steps": 6, "optimizer": {**config["optimizer"], "schedule_steps": 4}}
    assert extension.free_keys(tmp_path, stated)
    in_a_group = {**CONSTANT, "groups": [["bias", {"schedule": "cosine"}]]}
    other = write_run(tmp_path, **in_a_group)
    with pytest.raises(UserError, match="config key num_steps"):
        extension.free_keys(tmp_path, other | {"num_steps": 6})


def test_a_schedule_that_has_not_decayed_yet(tmp_path):
    begun = {"schedule": "trapezoidal", "schedule_steps": 100, "decay_fraction": 0.2}
    config = write_run(tmp_path, **begun)
    longer = changed(config, 10, schedule_steps=None, decay_fraction=0.6)  # decays from update 4
    for made, allowed in ((0, False), (4, True), (5, False)):
        (tmp_path / "checkpoints" / str(made)).mkdir(parents=True)
        if allowed:
            assert extension.free_keys(tmp_path, longer) >= {"num_steps", "optimizer.decay_fraction"}
            Resolved(bert_pretraining, longer).check_folder(tmp_path)
        else:
            with pytest.raises(UserError, match=r"got 10, in a run of 4 with a schedule over 100 updates"):
                extension.free_keys(tmp_path, longer)
    same_length = changed(config, 10, decay_fraction=0.97)
    with pytest.raises(UserError, match=r"another config: optimizer\.decay_fraction: 0\.2 before, 0\.97 now; expected"):
        Resolved(bert_pretraining, same_length).check_folder(tmp_path)


def test_batches_that_depend_on_the_number_of_updates(tmp_path):
    config = write_run(tmp_path, **CONSTANT)
    config["masking"] |= {"final_rate": 0.1}
    message = r"num_steps: got 6, in a run of 4 updates with masking\.final_rate=0\.1; expected 4, .* Fix: .*init_from="
    with pytest.raises(UserError, match=message):
        extension.free_keys(tmp_path, config | {"num_steps": 6})


def changed(config, num_steps=6, **optimizer):
    return {**config, "num_steps": num_steps, "optimizer": config["optimizer"] | optimizer}


def test_a_change_of_the_schedule_is_named(tmp_path):
    for before, now in ((LINEAR, CONSTANT), (CONSTANT, LINEAR)):
        config = write_run(tmp_path, **before)
        with pytest.raises(UserError, match=r"another config: optimizer\.schedule: '\w+' before, '\w+' now; expected"):
            Resolved(bert_pretraining, changed(config, **now)).check_folder(tmp_path)


def test_a_longer_warm_up(tmp_path):
    config = write_run(tmp_path, **CONSTANT, warmup_steps=2)
    message = r"optimizer\.warmup_steps: got 3, in a run that had 2.*; expected the warm-up .* Fix: .*warmup_steps=2"
    with pytest.raises(UserError, match=message):
        extension.free_keys(tmp_path, changed(config, warmup_steps=3))
    assert extension.free_keys(tmp_path, changed(config, warmup_steps=None))


@pytest.mark.parametrize("missing", ["frozen_layers", "schedule_steps"])
def test_a_run_that_is_older_than_a_key(tmp_path, missing):
    config = write_run(tmp_path, **CONSTANT, frozen_layers=0)
    old = {**config, "optimizer": {key: value for key, value in config["optimizer"].items() if key != missing}}
    (tmp_path / "config.json").write_text(json.dumps(old))
    Resolved(bert_pretraining, changed(config)).check_folder(tmp_path)


def test_evaluations_may_be_added_changed_and_left_out(tmp_path):
    """One of an installed package too, which need not be installed any more."""
    config = write_run(tmp_path, **CONSTANT)
    configs = [config, *({**config, "evaluations": "mine", "mine": {"length": length}} for length in (3, 4))]
    for before, now in itertools.permutations(configs, 2):
        (tmp_path / "config.json").write_text(json.dumps(before))
        Resolved(bert_pretraining, now).check_folder(tmp_path)


@pytest.mark.parametrize("damage", [{"num_steps": "4"}, {"optimizer": None}, {"optimizer": {"groups": [["bias"]]}}])
def test_a_damaged_config(tmp_path, damage):
    config = write_run(tmp_path, **CONSTANT)
    (tmp_path / "config.json").write_text(json.dumps(config | damage))
    with pytest.raises(UserError, match=f"got a run with another config: .*{next(iter(damage))}.* before, "):
        Resolved(bert_pretraining, changed(config)).check_folder(tmp_path)


def test_the_advice_for_a_linear_schedule_works_where_rows_tell_the_number_of_updates(tmp_path):
    values = {**tiny.write_table(tmp_path), "optimizer.schedule": "linear"}
    config = of_config(classification, tree_of("classification", "tiny", values)).config
    assert config["num_steps"] is None
    begun = {**config, "num_steps": 4, "optimizer": {**config["optimizer"], "warmup_steps": 0}}
    (tmp_path / "config.json").write_text(json.dumps(begun))
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "train/loss": 1.0}\n')
    longer = {**config, "num_epochs": 9.0, "optimizer": {**config["optimizer"], "schedule_steps": 4}}
    Resolved(classification, longer).check_folder(tmp_path)


@pytest.mark.slow
def test_an_extended_run_is_the_longer_run(tmp_path):
    """From 2 epochs to 4; and the page shows what the longer run makes of its examples."""
    values = {
        **tiny.write_table(tmp_path),
        **{"batch_size": 8, "data.seq_len": 16, "data.valid_fraction": 0.2, "log_every": 3},
        **{"model.num_layers": 1, "model.hidden_size": 32, "model.num_heads": 2, "model.max_positions": 16},
        **{"warmup_fraction": 0.0, "checkpoint.final": "latest"},
        **{"optimizer.name": "muon", "optimizer.schedule": "trapezoidal"},
    }
    short = {**values, "num_epochs": 2.0, "optimizer.schedule_steps": 1000}
    long = {**values, "num_epochs": 4.0, "optimizer.decay_fraction": 0.4}
    saved, figures = {}, {}
    for name, starts in (("extended", (short, long)), ("whole", (long,))):
        workdir = tmp_path / name
        for start in starts:
            done("--report", "--config=configs/classification.py:tiny", f"--workdir={workdir}", *flags(start))
        config = json.loads((workdir / "config.json").read_text())
        saved[name] = tiny.params_of(Resolved(classification, config, workdir).to_predict().task, workdir)
        lines = lines_of(workdir / "metrics.jsonl")
        figures[name] = {(line["step"], key): line[key] for line in lines for key in line if "valid/" in key}
        shown = json.loads((workdir / "samples.jsonl").read_text().splitlines()[0])
        assert shown["checkpoint"] == str(config["num_steps"])
    jax.tree.map(np.testing.assert_array_equal, saved["extended"], saved["whole"])
    assert figures["extended"] == figures["whole"]
