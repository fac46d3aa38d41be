"""Three hundred AdamW updates of the tiny model, beside transformers' BertForPreTraining on PyTorch."""

import json

import jax
import numpy as np
import pytest

from bertjax.training import step as steps
from bertjax.training.optimizers import make_optimizer, make_schedule
from configs import bert_pretraining
from experiments import bert_pretraining as experiment
from tests import tiny

STEPS = 300


def shipped_tiny(prepared):
    """The shipped config, dropout off, with the bias correction of PyTorch's AdamW, on fewer rows."""
    config = bert_pretraining.get_config("tiny")
    config.batch_size = 16
    config.model.dropout = config.model.attention_dropout = 0.0
    config.optimizer.bias_correction = True
    config.num_steps = STEPS
    config.optimizer.warmup_steps = 30
    config.data.prepared_dir = str(prepared)
    return experiment.resolve(json.loads(config.to_json()))


def losses_of_ours(task, settings, params, batches):
    optimizer = make_optimizer(settings.optimizer, params, STEPS)
    state = steps.TrainState(jax.numpy.zeros((), "int32"), params, optimizer.init(params))
    step = jax.jit(steps.make_step(task, optimizer, settings))
    losses = []
    for index, batch in enumerate(batches):
        state, report = step(state, batch, index)
        losses.append(float(report.metrics["loss"][0]))
    return losses


def losses_of_theirs(folder, settings, batches):
    import torch
    from transformers import BertForPreTraining

    model = BertForPreTraining.from_pretrained(folder).eval()
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    config = settings.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )
    schedule = make_schedule(config, STEPS)
    losses = []
    for index, batch in enumerate(batches):
        tensors = {name: torch.tensor(np.asarray(value)) for name, value in batch.items()}
        labels = torch.full_like(tensors["input_ids"], -100).long()
        rows, columns = torch.nonzero(tensors["masked_weights"], as_tuple=True)
        labels[rows, tensors["masked_positions"][rows, columns].long()] = tensors["masked_labels"][rows, columns].long()
        output = model(
            input_ids=tensors["input_ids"].long(),
            token_type_ids=tensors["token_type_ids"].long(),
            attention_mask=tensors["segment_ids"],
            labels=labels,
            next_sentence_label=tensors["next_sentence_labels"].long(),
        )
        for group in optimizer.param_groups:
            group["lr"] = float(schedule(index))
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        losses.append(float(output.loss.detach()))
    return losses


@pytest.mark.slow
def test_losses_are_those_of_transformers_at_every_step(tmp_path):
    task, settings = tiny.task_and_settings(shipped_tiny(tmp_path))
    params = jax.jit(task.init)(jax.random.key(0))
    task.export(params, tmp_path / "exported")
    batches = [batch for _, batch in zip(range(STEPS), task.batches("train", 0, np.arange(16)), strict=False)]
    ours = losses_of_ours(task, settings, params, batches)
    theirs = losses_of_theirs(tmp_path / "exported", settings, batches)
    difference = np.abs(np.array(ours) - np.array(theirs))
    print(
        f"loss {ours[0]:.3f} to {ours[-1]:.3f}, largest difference {difference.max():.1e} at step {difference.argmax()}"
    )
    assert ours[-1] < ours[0] - 1
    assert difference.max() <= 1e-3
