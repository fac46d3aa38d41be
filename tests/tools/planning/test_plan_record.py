"""Plans for eight CPU devices of this machine, and for TPUs and GPUs if their compilers are installed."""

import dataclasses
import functools
import json
import os
import re
import signal
from unittest import mock

import jax
import pytest

from benchmarks.common import flops_per_token
from bertjax import progress
from bertjax.configs import bert_pretraining as config_file
from bertjax.configs import multiple_choice
from bertjax.errors import UserError
from bertjax.experiments import bert_pretraining
from bertjax.experiments import multiple_choice as choices
from bertjax.modes import stages
from bertjax.tools.planning import breakdown, plan_record, planner, search, targets
from bertjax.training import flops
from tests import tiny
from tests.tools.planning.plans import HIDDEN, LAYERS, LENGTH, PREDICTED, ROWS, VALUES, VOCAB, build, config, target_of

BANDWIDTH = 1e7
HERE = target_of(bandwidth=BANDWIDTH)
CHIP = HERE.chip


@pytest.fixture
def here(monkeypatch):
    """Replaces any target by this machine's devices."""
    monkeypatch.setattr(targets, "find_target", lambda topology: HERE)


@functools.cache
def planned(**values):
    """The plan of a config; compiled once per config."""
    with mock.patch.object(targets, "find_target", lambda topology: HERE):
        return planner.run("here", False, config(**values), build)


def size_of_model():
    """The numbers of parameters of the encoder with pooler, the masked-LM head and the next-sentence head."""
    norm, square = 2 * HIDDEN, HIDDEN**2 + HIDDEN  # a square kernel and its bias
    layer = 4 * square + (8 * HIDDEN**2 + 5 * HIDDEN) + 2 * norm
    bert = (VOCAB + 48 + 2) * HIDDEN + norm + LAYERS * layer + square
    return bert + (square + norm + VOCAB) + (2 * HIDDEN + 2)


def test_the_plan_of_a_data_parallel_run():
    record = planned()
    assert record["fits"] and record["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1}
    count = size_of_model()
    sizes = record["bytes_per_device"]
    assert record["parameters"] == count
    assert sizes["parameters"] == 4 * count
    assert sizes["optimizer"] == 2 * 4 * count + 2 * 4  # Adam's moments and two counters
    assert sizes["batch"] == (3 * LENGTH + 3 * PREDICTED + 3) * 4 * ROWS // 8
    assert sizes["total"] == sum(size for part, size in sizes.items() if part != "total")
    # Gradients are summed once: those of the used positions, and of the word embeddings as input and as output. The
    # gradients of the keys' biases are 0.
    reduced = record["collectives"]["all-reduce"]["link"]
    summed = count - (48 - LENGTH) * HIDDEN + VOCAB * HIDDEN - LAYERS * HIDDEN
    assert 4 * summed <= reduced["bytes"] < 4 * summed + 2000
    assert reduced["sent_bytes"] == pytest.approx(reduced["bytes"] * 2 * 7 / 8)
    assert record["tokens_per_step"] == ROWS * LENGTH
    pooler = 6 * ROWS * (HIDDEN**2 + 2 * HIDDEN)
    # At the other positions, the last layer has only keys and values: 2 of 12 products with weights, and no attention.
    unread = ROWS * (LENGTH - 1 - PREDICTED) * (6 * 10 * HIDDEN**2 + 12 * LENGTH * HIDDEN)
    whole = ROWS * LENGTH * flops_per_token(LAYERS, HIDDEN, VOCAB, LENGTH, PREDICTED / LENGTH)
    formula = whole - unread + pooler
    assert record["flops_per_step"] == pytest.approx(formula, rel=1e-9)
    assert record["per_device"]["flops"] * 8 == pytest.approx(formula, rel=1e-6)


def test_a_run_with_stages_is_planned_at_its_last_length():
    whole, stages = planned(), planned(data__stages=((0.5, 8),))
    # The shorter rows have more elements: their number of predictions is rounded up.
    for name in ("flops_per_step", "tokens_per_step", "bytes_per_device", "step_seconds"):
        assert stages[name] == whole[name]


def test_times_follow_from_the_costs():
    record = planned()
    seconds = record["seconds"]
    assert record["step_seconds"] == max(seconds.values()) == seconds[record["bound"]]
    assert record["bound"] == "interconnect"
    overlapping, in_turn = max(seconds["compute"], seconds["memory"]), record["step_seconds_in_turn"]
    assert overlapping <= in_turn - seconds["interconnect"] <= seconds["compute"] + seconds["memory"]
    assert record["days"] == pytest.approx(1000 * record["step_seconds"] / 86400)
    assert record["device_hours"] == pytest.approx(record["days"] * 24 * 8)
    assert record["tokens_per_second"] == ROWS * LENGTH / record["step_seconds"]
    assert json.loads(json.dumps(record)) == record
    lines = "\n".join(plan_record.describe(record))
    assert "bound by interconnect" in lines and "all-reduce" in lines and "fits" in lines


def test_nearly_all_bytes_belong_to_a_part_of_the_model():
    record = planned()
    rows = record["breakdown"]
    assert sum(row["hbm_bytes"] for row in rows) == record["per_device"]["hbm_bytes"]
    assert sum(row["flops"] for row in rows) == record["per_device"]["flops"]
    parts = breakdown.totals(rows, "part")
    assert {"attention", "feed-forward", "layers", "embeddings", "heads", "optimizer"} <= parts.keys()
    assert parts["other"]["hbm_bytes"] < 0.05 * record["per_device"]["hbm_bytes"]
    assert {"matrix products", "norm", "random bits", "softmax", "optimizer"} <= breakdown.totals(rows, "kind").keys()
    assert "by part:" in plan_record.describe(record)


@pytest.mark.slow
def test_fsdp_splits_the_parameters():
    record = planned(mesh__data=2, mesh__fsdp=4)
    # Matrices of at least 128x128 and the word embeddings are split; vectors and small tables are not.
    split = 12 * LAYERS * HIDDEN**2 + 2 * HIDDEN**2 + VOCAB * HIDDEN
    rest = size_of_model() - split
    assert record["bytes_per_device"]["parameters"] == 4 * (split // 4 + rest)
    assert record["bytes_per_device"]["optimizer"] == 2 * 4 * (split // 4 + rest) + 8
    # Parameters are gathered from the other three of four devices, in the forward and the backward pass.
    assert record["collectives"]["all-gather"]["link"]["bytes"] >= 2 * 4 * 12 * LAYERS * HIDDEN**2


@pytest.mark.slow
def test_recomputation_is_counted_only_in_the_costs_of_the_device():
    plain, twice = planned(), planned(model__remat="full")
    forward = 2 * (12 * LAYERS * HIDDEN**2 + 2 * LAYERS * LENGTH * HIDDEN) * ROWS * LENGTH / 8
    assert twice["flops_per_step"] == plain["flops_per_step"]
    # A layer's last product is not recomputed, and the last of two layers has few queries.
    assert 0.4 * forward < twice["per_device"]["flops"] - plain["per_device"]["flops"] <= forward


def test_a_program_that_exceeds_the_memory(here, monkeypatch):
    def refuse(*args, **kwargs):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (25.50G) "
            "exceeds available HBM (15.75G)."
        )

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    record = planner.run("here", False, config(), build)
    assert (record["fits"], record["step_seconds"], record["days"]) == (False, None, None)
    assert record["bytes_per_device"]["temporary"] == int(25.5 * 2**30)
    assert json.loads(json.dumps(record)) == record
    assert any("does not fit" in line for line in plan_record.describe(record))


@pytest.mark.parametrize(
    ("message", "temporary"),
    [
        ("HLO temporaries (1.75T) exceeds available HBM (95.74G)", int(1.75 * 2**40)),
        ("Ran out of memory in memory space hbm. Used 17.5G of 15.75G hbm.", int(17.5 * 2**30) - 1000),
        ("something else", None),
    ],
)
def test_needed_memory_in_the_compilers_message(message, temporary):
    assert plan_record._temporary(message, argument_bytes=1000) == temporary


# Tests of the search.


def test_candidates_divide_everything():
    tree = config()
    found = list(search.candidates(tree, 8))
    assert len(set(found)) == len(found)
    for each in found:
        assert each.data * each.fsdp * each.tensor == 8
        assert ROWS % (each.data * each.fsdp * each.accumulation_steps) == 0
        assert tree["model"]["num_heads"] % each.tensor == 0
    assert search.Candidate(8, 1, 1, 2, "none") in found
    assert search.Candidate(2, 2, 2, 4, "norms") in found
    assert not [each for each in found if each.tensor > 2]  # the model has two heads


@pytest.mark.slow
def test_the_search_returns_the_fastest_candidate_that_fits(here, monkeypatch, caplog):
    monkeypatch.setattr(search, "NUM_COMPILED", 2)
    with caplog.at_level("INFO", "bertjax.tools.planning"):
        record = planner.run("here", True, config(), build)
    compiled = record["search"]["compiled"]
    assert record["fits"] and len(compiled) == 2 < record["search"]["candidates"]
    assert record["step_seconds"] == min(each["step_seconds"] for each in compiled)
    assert record["overrides"] in [each["overrides"] for each in compiled]
    assert record["batch_size"] == ROWS
    assert f"best: {record['overrides']}" in caplog.text and "at most 2 are compiled" in caplog.text
    values = dict(flag.removeprefix("--config.").split("=") for flag in record["overrides"].split())
    assert {axis: int(values[f"mesh.{axis}"]) for axis in record["mesh"]} == record["mesh"]
    assert int(values["accumulation_steps"]) == record["accumulation_steps"]


@pytest.mark.slow
def test_a_search_where_nothing_fits(monkeypatch):
    small = dataclasses.replace(HERE, chip=dataclasses.replace(CHIP, hbm_bytes=2**16))
    monkeypatch.setattr(targets, "find_target", lambda topology: small)
    outcome = tiny.run(*command("--topology=here", "--plan_search"))
    record = json.loads(outcome.stdout)
    assert outcome.status == 1
    assert not record["fits"] and len(record["search"]["compiled"]) == 1
    assert "none fits; the closest is: --config.mesh.data=" in outcome.stderr


def test_estimates_follow_the_mesh():
    sizes = search.Sizes(state_bytes=1200, parameter_bytes=400, row_bytes=10.0, flops=8e9, exchanged_bytes=2.0)
    memory, seconds = search.estimate(search.Candidate(8, 1, 1, 2, "none"), sizes, 16, HERE)
    assert memory == 1600 + 10.0
    communicating = 2 * 2 * 400 * 7 / 8 / BANDWIDTH
    assert seconds == pytest.approx(1.0 + 0.1 * communicating)
    split, _ = search.estimate(search.Candidate(2, 2, 2, 1, "none"), sizes, 16, HERE)
    assert split == 400 + 4 * 10.0 / 2


def test_rematerialization_stores_less():
    tree = config()
    plain, norms, full = (search.measure(tree, build, each, HERE) for each in ("none", "norms", "full"))
    assert full.row_bytes < norms.row_bytes < plain.row_bytes
    assert full.row_bytes < plain.row_bytes / 2
    assert plain.parameter_bytes == 4 * size_of_model()
    assert plain.flops < norms.flops < full.flops < plain.flops * 4 / 3


def test_batches_with_several_shapes():
    tree = multiple_choice.get_config("tiny")
    tree.update_from_flattened_dict({"data.source": "questions.csv", "data.seq_len": LENGTH, "model.vocab_size": 10})
    resolved = choices.resolve(json.loads(tree.to_json()), None)
    sizes = search.measure(resolved, build, None, HERE)
    assert sizes.exchanged_bytes == 4 * (4 * LENGTH) * tree.model.hidden_size * tree.model.num_layers * 4
    (spec,) = build(resolved)[0].batch_specs()[-1:]
    assert flops.count_positions(spec) == 16 * 4 * LENGTH


# Tests of user errors.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mesh__tensor": 4}, r"config key mesh.tensor: got 4 for model.num_heads=2; expected a divisor of 2"),
        ({"mesh__tensor": 2, "model__num_key_value_heads": 1}, r"mesh.tensor: got 2 for model.num_key_value_heads=1"),
        ({"accumulation_steps": 4}, r"config key batch_size \(divided by accumulation_steps\): got 4"),
        (
            {"model__attention_backend": "cudnn", "model__attention_dropout": 0.0, "model__dtype": "bfloat16"},
            r"attention_backend=cudnn: got a device of kind cpu; .*Fix: set --config.model.attention_backend=auto",
        ),
        ({"parallel": "pmap"}, r"config key parallel: got pmap.*--config.parallel=jit"),
    ],
)
def test_configs_that_do_not_fit_the_devices(values, message):
    with pytest.raises(UserError, match=message):
        planned(**values)


def test_a_plan_restores_the_settings_of_the_process():
    before = dict(jax.config.values), dict(os.environ)
    with pytest.raises(UserError, match="--topology"):
        planner.run("nowhere:1", False, config(), build)
    assert (dict(jax.config.values), dict(os.environ)) == before


def test_a_batch_that_no_mesh_divides(here):
    with pytest.raises(
        UserError, match=r"config key batch_size: got 1; expected a multiple of 8, the number of devices"
    ):
        planner.run("here", True, config(batch_size=1, model__num_heads=1), build)


# Tests of the command.


def command(*extra):
    flags = {**VALUES, "batch_size": 16}
    values = [f"--config.{key}={value}" for key, value in flags.items()]
    return ["--mode=plan", "--config=configs/bert_pretraining.py:tiny", *values, *extra]


def test_the_command(monkeypatch, tmp_path):
    """It shows that it is alive, and signals end it."""
    default = signal.getsignal(signal.SIGTERM)
    handlers = []
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_SIGNS", 0.1)
    monkeypatch.setattr(
        targets, "find_target", lambda topology: handlers.append(signal.getsignal(signal.SIGTERM)) or HERE
    )
    outcome = tiny.run(*command("--topology=here", f"--output={tmp_path}/plan.json", f"--plot={tmp_path}/plan.svg"))
    assert outcome.status is None
    record = json.loads((tmp_path / "plan.json").read_text())
    assert record["fits"] and record["devices"] == 8
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    assert "a step takes at least" in outcome.stderr and outcome.stdout == ""
    assert re.search(r"compiling for 8 devices, mesh \{.*\}: \d s", outcome.stderr)
    assert handlers != [default] and signal.getsignal(signal.SIGTERM) == default


def test_values_that_are_not_set_yet():
    tree = config_file.get_config("tiny,phase2")
    tree.update_from_flattened_dict({**VALUES, "data.seq_len": 48, "masking.max_predictions": 8})
    resolved = bert_pretraining.resolve(json.loads(tree.to_json()), None)
    assert (resolved["init_from"], resolved["model"]["vocab_size"]) == (None, None)
    completed = stages._for_plan(resolved)
    assert (completed["init_from"], completed["model"]["vocab_size"]) == ("", VOCAB)
    (spec,) = build(completed)[0].batch_specs()
    assert spec["input_ids"].shape == (ROWS, 48)
    given = stages._for_plan({**resolved, "model": {**resolved["model"], "vocab_size": 7}})
    assert given["model"]["vocab_size"] == 7
