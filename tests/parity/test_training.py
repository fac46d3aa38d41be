"""Losses of each update compared with transformers on PyTorch: pretraining of the tiny model, and fine-tuning."""

import itertools
import json

import jax
import numpy as np
import pytest

from bertjax.configs import bert_pretraining
from bertjax.configs import classification as classification_config
from bertjax.interop.published import open_weights
from bertjax.training import step as steps
from bertjax.training.optimizers import make_optimizer, make_schedule
from tests import tiny
from tests.random_params import random_params

STEPS = 20


def shipped_tiny(prepared):
    """The shipped config without dropout, with the bias correction of PyTorch's AdamW, on fewer rows."""
    config = bert_pretraining.get_config("tiny")
    config.batch_size = 8
    config.model.dropout = config.model.attention_dropout = 0.0
    config.optimizer.bias_correction = True
    config.num_steps = STEPS
    config.optimizer.warmup_steps = 4
    config.optimizer.schedule = "linear"
    config.data.stages = ()
    config.data.packing = False
    config.data.prepared_dir = str(prepared)
    return json.loads(config.to_json())


def losses_of_ours(task, settings, params, batches):
    optimizer = make_optimizer(settings.optimizer, params)
    state = steps.TrainState(jax.numpy.zeros((), "int32"), params, optimizer.init(params))
    step, numbers = jax.jit(steps.make_step(task, optimizer, settings)), steps.make_numbers(settings)
    losses = []
    for index, batch in enumerate(batches):
        state, report = step(state, batch, numbers(index, settings.num_steps))
        losses.append(float(report.metrics["loss"][0]))
    return losses


def losses_of_theirs(model, settings, batches, inputs_of):
    """Makes the same updates in PyTorch. `inputs_of` converts the tensors of a batch to a model's arguments."""
    import torch

    torch.set_num_threads(1)
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    config = settings.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )
    schedule = make_schedule(config, settings.num_steps)
    losses = []
    for index, batch in enumerate(batches):
        tensors = {name: torch.tensor(np.asarray(value)) for name, value in batch.items()}
        output = model(
            input_ids=tensors["input_ids"].long(),
            token_type_ids=tensors["token_type_ids"].long(),
            attention_mask=tensors["segment_ids"],
            **inputs_of(tensors),
        )
        for group in optimizer.param_groups:
            group["lr"] = schedule(index)
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        losses.append(float(output.loss.detach()))
    return losses


def pretraining_labels(tensors):
    import torch

    labels = torch.full_like(tensors["input_ids"], -100).long()
    rows, columns = torch.nonzero(tensors["masked_weights"], as_tuple=True)
    labels[rows, tensors["masked_positions"][rows, columns].long()] = tensors["masked_labels"][rows, columns].long()
    return {"labels": labels, "next_sentence_label": tensors["next_sentence_labels"].long()}


def largest_difference(ours, theirs):
    difference = np.abs(np.array(ours) - np.array(theirs))
    worst, step = difference.max(), difference.argmax()
    print(f"loss {ours[0]:.3f} to {ours[-1]:.3f}, largest difference {worst:.1e} at step {step}")
    return worst


@pytest.mark.slow
def test_losses_equal_those_of_transformers_at_every_step(tmp_path):
    from transformers import BertForPreTraining

    task, data, settings, _ = tiny.pretraining(shipped_tiny(tmp_path))
    params = jax.jit(task.init)(jax.random.key(0))
    task.export(params, tmp_path / "exported")
    batches = list(itertools.islice(data.batches("train", 0, np.arange(8)), STEPS))
    ours = losses_of_ours(task, settings, params, batches)
    model = BertForPreTraining.from_pretrained(tmp_path / "exported").eval()
    theirs = losses_of_theirs(model, settings, batches, pretraining_labels)
    assert ours[-1] < ours[0] - 0.5
    assert largest_difference(ours, theirs) <= 1e-4


@pytest.mark.slow
def test_fine_tuning_on_mrpc_equals_transformers(tmp_path, data_folder, minilm):
    """Makes six updates of a published encoder, on batches of one length."""
    from transformers import BertForSequenceClassification

    config = classification_config.get_config("mrpc,tsv")
    config.init_from = str(minilm)
    config.data.source = str(data_folder / "mrpc" / "train.tsv")
    config.data.valid_source = str(data_folder / "mrpc" / "dev.tsv")
    config.model.dropout = config.model.attention_dropout = config.model.classifier_dropout = 0.0
    config.batch_size, config.num_steps, rows = 8, 6, np.arange(8)
    task, data, settings, _ = tiny.ready(json.loads(config.to_json()), tmp_path)
    params = task.warm_start(random_params(task.init, scale=0.02), open_weights(minilm))
    task.export(params, tmp_path / "exported")
    by_length = {batch["input_ids"].shape[1]: batch for batch in itertools.islice(data.batches("train", 0, rows), 20)}
    batches = [by_length[min(by_length)]] * settings.num_steps
    ours = losses_of_ours(task, settings, params, batches)
    model = BertForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    theirs = losses_of_theirs(model, settings, batches, lambda tensors: {"labels": tensors["labels"].long()})
    assert ours[-1] < ours[0] - 0.02
    assert largest_difference(ours, theirs) <= 1e-5
