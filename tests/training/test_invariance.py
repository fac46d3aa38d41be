"""Without dropout, updates of each task do not depend on the devices and processes."""

import functools
import json
import pickle

import pytest

from tests import processes, tiny
from tests.experiments.commands import tree_of
from tests.random_params import random_params
from tests.training import invariance
from tests.trees import distance


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def data(folder):
    """The config keys of each task's data."""
    return {task: invariance.write_data(task, folder / task) for task in invariance.TASKS}


@pytest.fixture(scope="module")
def alone(data, folder):
    """Returns a function from a task to its result on one device."""
    return functools.cache(lambda task: invariance.train(task, data[task], folder / task, (1, 1, 1), 1))


@pytest.fixture(scope="module")
def of_two_processes(data, folder):
    """The results of all tasks in each of two processes of four devices."""
    own = [[f"--output={folder / str(i)}"] for i in range(2)]
    in_slices = {**data, "embeddings": {**data["embeddings"], "accumulation_steps": 2}}
    shared = ["2x2x2", json.dumps(in_slices), str(folder)]
    processes.train(shared, 2, 4, entry=("-m", "tests.training.invariance"), own=own)
    return [pickle.loads((folder / str(i)).read_bytes()) for i in range(2)]


def check(name, result, expected):
    losses = max(abs(a - b) / b for a, b in zip(result.losses, expected.losses, strict=True))
    first, last = distance(result.first, expected.first), distance(result.last, expected.last)
    held = max(result.bytes_per_device)
    print(f"{name}: losses {losses:.1e}, parameters {first:.1e}, after all updates {last:.1e}, {held} bytes per device")
    assert len(expected.losses) == invariance.STEPS and expected.losses[-1] < expected.losses[0]
    assert losses <= 1e-5
    assert first <= 1e-5
    assert last <= 1e-3
    assert set(result.bytes_per_device) == {result.expected_bytes}


@pytest.mark.slow
@pytest.mark.parametrize("task", invariance.TASKS)
def test_updates_do_not_depend_on_the_number_of_processes(alone, of_two_processes, task):
    expected = alone(task)
    for i, results in enumerate(of_two_processes):
        result = invariance.Result(*results[task])
        assert len(result.bytes_per_device) == 4
        check(f"{task}, process {i}", result, expected)
        assert result.expected_bytes / expected.expected_bytes < 0.5


MODERN = {
    "batch_size": 8,
    "model.num_layers": 3,
    "model.num_heads": 4,
    "model.num_key_value_heads": 2,
    "model.max_positions": 256,
    "model.positions": "rotary",
    "model.local_attention": 16,
    "model.gated": True,
    "model.biases": False,
    "model.norm": "pre",
    "model.norm_type": "rms",
    "model.qk_norm": True,
    "model.first_attention_norm": False,
    "model.tie_output": False,
    "model.type_vocab_size": 0,
    "model.scan_layers": True,
    "data.seq_len": 256,
    "data.packing": True,
    "data.next_sentence": False,
    "optimizer.name": "muon",
}


NOISE = {
    "data.next_sentence": False,
    "masking.mask_fraction": 1.0,
    "masking.random_fraction": 0.0,
    "masking.keep_fraction": 0.0,
    "masking.distribution": "uniform",
    "masking.loss_weight": "inverse_rate",
    "masking.causal_share": 0.25,
}
DISTILLED = {
    "data.next_sentence": False,
    "model.hidden_size": 48,
    "model.num_heads": 2,
    **{f"distillation.{term}": 1.0 for term in ("logits", "hidden", "embeddings", "attention", "relations", "cosine")},
    "distillation.logits_at": "all",
    "distillation.relation_heads": 4,
}
REPLACED = {"generator.width": 0.5, "generator.embeddings": "disentangled"}
DENOISING = {"model.num_decoder_layers": 1, "decoding.max_length": 48}
SPANS = {**DENOISING, "objective": "span_corruption", "noise.permute_sentences": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("bert_pretraining", MODERN),
        ("bert_pretraining", NOISE),
        ("replaced_tokens", REPLACED),
        ("denoising", DENOISING),
        ("denoising", SPANS),
    ],
)
def test_updates_of_pretraining_do_not_depend_on_the_mesh(data, folder, task, own):
    """With all axes, micro-batches and rematerialization, against one device; of a modern encoder also with Muon."""
    values = {**data["bert_pretraining"], **own}
    expected = invariance.train(task, values, folder / f"{task} on meshes", (1, 1, 1), 1)
    divided = {**values, "accumulation_steps": min(4, values.get("batch_size", 32) // 4), "model.remat": "full"}
    result = invariance.train(task, divided, folder / f"{task} on meshes", (2, 2, 2), 8)
    check(task, result, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "devices", "steps"), [((1, 1, 1), 1, 2), ((8, 1, 1), 8, 1), ((2, 2, 2), 8, 2)])
def test_updates_of_students_do_not_depend_on_the_mesh(data, folder, distilled, mesh, devices, steps):
    values, expected = distilled
    result = invariance.train(
        "bert_pretraining", {**values, "accumulation_steps": steps}, folder / "run", mesh, devices
    )
    check("student", result, expected)


@pytest.fixture(scope="module")
def distilled(data, folder):
    """The values of a student, and its result on one device."""
    values = data["bert_pretraining"]
    tree = {**invariance._SMALL, **invariance._OF_TASKS["bert_pretraining"], **values}
    ready = tiny.ready(tree_of("bert_pretraining", "tiny", tree), folder / "teacher data")
    ready.task.export(random_params(ready.task.init), folder / "teacher")
    values = {**values, **DISTILLED, "teacher": str(folder / "teacher"), "data.vocab_file": str(folder / "teacher")}
    return values, invariance.train("bert_pretraining", values, folder / "student", (1, 1, 1), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("slices", "mesh", "devices"), [(4, (1, 1, 1), 1), (1, (8, 1, 1), 8)])
def test_updates_of_coupled_rows_do_not_depend_on_slices(alone, data, folder, slices, mesh, devices, task="embeddings"):
    values = {**data[task], "accumulation_steps": slices}
    check(task, invariance.train(task, values, folder / task, mesh, devices), alone(task))
