"""Budgets of tokens and FLOPs determine the number of updates exactly."""

import itertools
import json
import re
from unittest import mock

import jax
import numpy as np
import pytest

from bertjax.contract import Data, TrainingTask
from bertjax.data.rows.buckets import BucketedBatches, Rows, budget_sizes
from bertjax.data.rows.stored import fields_of
from bertjax.errors import UserError
from bertjax.experiments import bert_pretraining, classification
from bertjax.modes import budgets
from bertjax.modes.stages import Resolved, of_config
from bertjax.tools.reporting import runs, verdict
from bertjax.tools.sweeps import running
from bertjax.training.flops import training_flops
from tests import tiny
from tests.experiments.commands import done, tree_of

POSITIONS = 16 * 32  # of an update of the shrunk pretraining config


def pretraining(text, budget, **overrides):
    config = tiny.config(text, model__num_layers=1, **overrides) | {"num_steps": None, "budget": budget}
    return Resolved(bert_pretraining, config)


@pytest.mark.parametrize(
    ("tokens", "overrides", "updates"),
    [
        (4 * POSITIONS, {}, 4),
        (4 * POSITIONS - 1, {}, 3),
        (5 * POSITIONS - 1, {"accumulation_steps": 2}, 4),
        (1e9, {"data__packing": True}, 1e9 // POSITIONS),
        (4 * POSITIONS, {"batch_size": 32}, 2),
    ],
)
def test_tokens_are_positions_of_the_global_batch(text, tokens, overrides, updates):
    assert pretraining(text, {"tokens": tokens}, **overrides).example().settings.num_steps == updates


def test_flops_are_those_of_the_plan(text):
    task, data, _, _ = tiny.pretraining(tiny.config(text, model__num_layers=1))
    cost = training_flops(task, task.batch_specs()[0])
    for flops, updates in ((cost, 1), (2 * cost - 1, 1), (6.5 * cost, 6)):
        found = pretraining(text, {"flops": flops})
        for backend in ("auto", "xla"):
            found.config["model"]["attention_backend"] = backend
            assert found.complete(data).config["num_steps"] == updates


@pytest.fixture
def labeled(tmp_path):
    """Fine-tuning on rows of several lengths, prepared."""
    values = {**tiny.write_table(tmp_path), "batch_size": 4, "data.seq_len": 64, "data.row_lengths": ()}
    resolved = of_config(classification, tree_of("classification", "tiny", values))
    data = resolved.data(tmp_path)
    data.prepare()
    return resolved.config, data


def of_budget(config, data, **budget):
    return Resolved(classification, {**config, "budget": budget}).complete(data).config


def test_batches_of_several_lengths_count_each_with_its_length(labeled):
    config, data = labeled
    batches = itertools.islice(data.batches("train", 0, np.arange(4)), 40)
    totals = np.cumsum([batch["input_ids"].size for batch in batches])
    assert len(set(np.diff(totals))) > 1
    for updates in (1, 7, 30):
        for tokens in (totals[updates - 1], totals[updates] - 1):
            assert of_budget(config, data, tokens=float(tokens))["num_steps"] == updates
    meter = budgets.Meter(Resolved(classification, config).complete(data).task, data, 4)
    assert [meter.used("tokens", done, 40) for done in (1, 5, 5, 40)] == [totals[0], totals[4], totals[4], totals[39]]


def test_updates_without_prepared_rows_count_with_the_largest_length(labeled):
    config, _ = labeled
    largest = 4 * 64.0
    for tokens, updates in ((largest, 1), (3 * largest - 1, 2), (3 * largest, 3), (1000.5 * largest, 1000)):
        resolved = Resolved(classification, {**config, "budget": {"tokens": tokens}})
        assert resolved.example().settings.num_steps == updates


def test_batches_with_more_short_rows():
    rng, lengths = np.random.default_rng(0), (16, 48, 64)
    rows = Rows(fields_of({"input_ids": np.ones(length, np.int32)} for length in rng.integers(2, 65, 200)))
    batches = BucketedBatches(rows, lengths, budget_sizes(lengths, 8), seed=0)
    specs = [
        {
            "input_ids": jax.ShapeDtypeStruct((size, length), np.int32),
            "segment_ids": jax.ShapeDtypeStruct((size, length), np.int32),
            "weights": jax.ShapeDtypeStruct((size,), np.float32),
        }
        for size, length in zip(batches.sizes, lengths, strict=True)
    ]
    task, data = mock.create_autospec(TrainingTask, instance=True), mock.create_autospec(Data, instance=True)
    task.batch_specs.return_value = specs
    data.batches.side_effect = lambda split, start, chosen: batches.training(start, chosen)
    found = itertools.islice(budgets.shapes_of_updates(task, data, 8), 30)
    whole = itertools.islice(batches.training(0, np.arange(8)), 30)
    assert [specs[shape]["input_ids"].shape for shape in found] == [batch["input_ids"].shape for batch in whole]


def test_other_lengths_follow_from_the_budget(labeled):
    config, data = labeled
    epochs = of_budget({**config, "num_epochs": 2.0}, data)
    tokens = of_budget(config, data, tokens=1e5)
    assert tokens["num_steps"] > epochs["num_steps"]
    assert tokens["optimizer"]["warmup_steps"] == round(0.1 * tokens["num_steps"])
    assert tokens["evaluate_every"] == epochs["evaluate_every"]


def flags(text, workdir, **overrides):
    """The command line of a pretraining run without a number of updates, unless it is set."""
    given = tiny.arguments(text, workdir, model__num_layers=1, checkpoint__final="latest", **overrides)
    return [each for each in given if "num_steps" in overrides or not each.startswith("--config.num_steps")]


@pytest.mark.parametrize(
    ("overrides", "what", "got", "expected"),
    [
        ({"num_steps": 7, "budget__tokens": 1e6}, "budget.tokens", "num_steps=7", "either of them"),
        ({"budget__flops": 1e9, "budget__tokens": 1e9}, "budget.tokens", "also budget.flops", "at most one"),
        ({"budget__tokens": 1e300}, "budget.tokens", r"1e\+300", "updates"),
        ({"budget__tokens": POSITIONS - 1.0}, "budget.tokens", "511", "at least 512"),
    ],
)
def test_contradictory_or_invalid_budgets(text, tmp_path, overrides, what, got, expected):
    outcome = tiny.run_on_one(*flags(text, tmp_path / "run", **overrides))
    tiny.check_message(outcome.error, what=what, got=got, expected=expected, fix=".")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_with_a_budget_is_extended_and_reports_what_it_used(text, tmp_path):
    """Two starts, first with a smaller budget."""
    for tokens in (3 * POSITIONS, 6.5 * POSITIONS):
        done(*flags(text, tmp_path / "run", optimizer__schedule="constant", budget__tokens=tokens))
    run = runs.read_run(tmp_path / "run")
    assert run.series("train/used_tokens")[-1] == (6, 6 * POSITIONS)
    assert run.series("train/used_flops")[-1][1] == 3 * run.series("train/used_flops")[0][1] > 0
    assert 0 < run.series("train/used_hours")[-1][1] < 0.1
    facts = dict(verdict.of_run(run, {})["facts"])
    assert facts["Used"].startswith("3.07k tokens, ") and facts["Budget"] == "3.33k tokens"
    assert run.is_finished


def test_hours_need_a_warm_up_in_updates(labeled):
    config, data = labeled
    expected = r"expected a number of updates.* Fix: .*warmup_steps=100"
    with pytest.raises(UserError, match=rf"warmup_steps: got no value, with budget\.hours.*; {expected}"):
        of_budget(config, data, hours=1.0)
    stated = {**config, "optimizer": {**config["optimizer"], "warmup_steps": 3}}
    assert of_budget(stated, data, hours=1.0)["num_steps"] is None


@pytest.mark.parametrize(
    ("overrides", "key", "fix"),
    [
        ({"data__stages": ((0.5, 8),)}, "data.stages", "'()', or set budget.tokens or budget.flops"),
        ({"masking__final_rate": 0.3}, "masking.final_rate", "0.0"),
    ],
)
def test_hours_exclude_keys_that_depend_on_the_number_of_updates(text, overrides, key, fix):
    fix = re.escape(f"add --config.{key}={fix}")
    with pytest.raises(UserError, match=rf"config key {key}: got .*with budget\.hours.*; expected no value.*{fix}"):
        pretraining(text, {"hours": 1.0}, **overrides).example()


@pytest.mark.parametrize("flops_of", [7, 40])
def test_flops_of_stages(text, flops_of):
    """The stages depend on the number of updates, and this number on the FLOPs of the stages."""
    stages = {"data__stages": ((0.5, 8), (0.3, 16))}
    task, data, _, _ = tiny.pretraining(tiny.config(text, num_steps=flops_of, model__num_layers=1, **stages))
    costs = {spec["input_ids"].shape: training_flops(task, spec) for spec in task.batch_specs()}
    assert len(set(costs.values())) == 3
    batches = itertools.islice(data.batches("train", 0, np.arange(16)), flops_of)
    total = sum(costs[batch["input_ids"].shape] for batch in batches)
    for flops, updates in ((total, flops_of), (total - 1, flops_of - 1), (total + 1, flops_of)):
        found = pretraining(text, {"flops": float(flops)}, **stages).complete(data)
        assert found.settings.num_steps == updates
    tokens = pretraining(text, {"tokens": 9.5 * POSITIONS}, **stages).complete(data)
    assert tokens.settings.num_steps == 9


def test_the_masking_rate_changes_over_the_updates_of_a_budget(text):
    changing = {"masking__final_rate": 0.05, "masking__mode": "dynamic"}
    tree = tiny.config(text, **changing) | {"num_steps": None, "budget": {"tokens": 40 * POSITIONS}}
    budgeted, stated = tiny.pretraining(tree), tiny.pretraining(tiny.config(text, num_steps=40, **changing))
    for one, other in zip(*(each.data.batches("train", 20, np.arange(16)) for each in (budgeted, stated)), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
        break


@pytest.mark.slow
def test_a_run_of_a_time_ends_and_can_be_given_more_time(text, tmp_path):
    workdir, updates, seconds, hours = tmp_path / "run", [], [], 1e-9
    for more in (0.0, 0.0, 1.0):
        hours += (more and seconds[-1] + more) / 3600
        done(*flags(text, workdir, budget__hours=hours, optimizer__warmup_steps=0))
        updates.append(json.loads((workdir / "config.json").read_text())["num_steps"])
        seconds.append(runs.read_run(workdir).series("train/used_hours")[-1][1] * 3600)
        assert runs.read_run(workdir).is_finished and running.is_trained(workdir)
        assert seconds[-1] >= 3600 * hours
    assert 1 == updates[0] == updates[1] < updates[2] and seconds[0] == seconds[1]
    facts = dict(verdict.of_run(runs.read_run(workdir), {})["facts"])
    assert facts["Budget"] == f"{hours:.3g} hours" and "tokens" in facts["Used"]
    other = tiny.run_on_one(*flags(text, workdir, num_steps=updates[2] + 5, optimizer__warmup_steps=0))
    assert "config key num_steps: got" in other.error
