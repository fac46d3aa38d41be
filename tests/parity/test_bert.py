"""Our BERT compared with transformers, from golden files and live (slow)."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.interop import huggingface
from bertjax.interop.published import open_weights
from bertjax.models.bert import BertForPreTraining, BertInputs, HeadConfig
from tests.trees import distance

GOLDEN = Path(__file__).with_name("golden")
CASES = ("erf", "tanh", "deep")


def read(folder, **changes):
    options = {"scan_layers": True, "dropout": 0.0, "attention_dropout": 0.0}
    config = HeadConfig(**{**open_weights(folder).fields, **options, **changes})
    params, report = huggingface.load(folder, shapes(config))
    assert report == ((), ())
    return config, params


@functools.cache
def shapes(config):
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(BertForPreTraining(config).init, deterministic=True, return_attention=False)
    return jax.eval_shape(init, jax.random.key(0), BertInputs(ids, ids, ids), ids)["params"]


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, batch):
    """Returns outputs at every position with the loss at the masked positions, and its gradient."""
    num_masked = batch["masked_positions"].shape[1]

    def loss(params):
        output = apply(config, params, batch)
        masked, everywhere = jnp.split(output.masked_lm_logits, [num_masked], axis=1)
        value = cross_entropy(masked, batch["masked_labels"])
        value += cross_entropy(output.next_sentence_logits, batch["next_sentence_labels"])
        return value, output._replace(masked_lm_logits=everywhere)

    (value, output), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    return {**output._asdict(), "loss": value}, gradient


def apply(config, params, batch):
    """Returns outputs with logits at the masked positions, and outputs with logits at all positions."""
    everywhere = jnp.broadcast_to(jnp.arange(batch["input_ids"].shape[1]), batch["input_ids"].shape)
    output = BertForPreTraining(config).apply(
        {"params": params},
        BertInputs(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]),
        jnp.concatenate([batch["masked_positions"], everywhere], axis=1),
        deterministic=True,
        return_attention=True,
    )
    # One instance per row: the reference has no axis for several instances.
    return output._replace(next_sentence_logits=output.next_sentence_logits[:, 0], pooled=output.pooled[:, 0])


def int32(batch):
    return {name: np.asarray(value, np.int32) for name, value in batch.items()}


def cross_entropy(logits, labels):
    log_probability = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(log_probability)


def check(config, params, batch, expected, gradient, tolerance=2e-5):
    output, our_gradient = run(config, params, int32(batch))
    for name, value in expected.items():
        assert value.std() > 1e-2 or value.ndim == 0, name  # nothing is trivially constant
        difference = np.abs(output[name] - value).max()
        print(f"{name}: max abs difference {difference:.1e}")
        assert difference <= tolerance, name
    print(f"gradient: relative distance {distance(our_gradient, gradient):.1e}")
    assert jax.tree.structure(our_gradient) == jax.tree.structure(gradient)
    assert distance(our_gradient, gradient) <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    folder = GOLDEN / f"bert_{case}"
    config, params = read(folder)
    gradient, _ = huggingface.load(folder / "gradient", shapes(config))
    check(config, params, np.load(folder / "batch.npz"), np.load(folder / "expected.npz"), gradient)
