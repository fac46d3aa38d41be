"""Shardings over a mesh of eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bertjax.errors import UserError
from bertjax.models.transformer import TENSOR_RULES
from bertjax.modes.stages import fit_to_devices
from bertjax.training import update_rules
from bertjax.training.sharding import MeshConfig, local_rows, make_mesh, put_batch, tree_shardings


def mesh(data, fsdp, tensor):
    return make_mesh(MeshConfig(data, fsdp, tensor), jax.devices())


def test_minus_1_takes_the_remaining_devices():
    assert dict(mesh(-1, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert dict(mesh(-1, 1, 1).shape) == {"data": 8, "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize("sizes", [(3, 1, 1), (-1, 3, 1), (-1, -1, 1), (4, 1, 1), (0, 1, 1), (16, 1, 1)])
def test_a_mesh_must_use_all_devices(sizes):
    with pytest.raises(UserError, match=r"mesh.*8 device.*--config.mesh.data=8"):
        mesh(*sizes)


def test_a_batch_size_that_is_not_divisible_is_an_error():
    np.testing.assert_array_equal(local_rows(mesh(4, 2, 1), 16), np.arange(16))
    with pytest.raises(UserError, match=r"got 20; expected a multiple of 8.* Fix: make batch_size"):
        local_rows(mesh(4, 2, 1), 20)


@pytest.mark.parametrize(
    ("trained", "used", "rows"),
    [
        ((2, 2, 2), (2, 2, 2), 24),
        ((-1, 1, 2), (-1, 1, 2), 24),
        ((4, 1, 1), (-1, 1, 1), 32),
        ((2, 1, -1), (-1, 1, 1), 32),
    ],
)
def test_config_of_a_run_on_other_devices(trained, used, rows):
    axes = ("data", "fsdp", "tensor")
    config = {"mesh": dict(zip(axes, trained, strict=True)), "model": {"num_heads": 2}, "batch_size": 20}
    config |= {"accumulation_steps": 2, "seed": 3}
    mesh = dict(zip(axes, used, strict=True))
    assert fit_to_devices(config) == {**config, "mesh": mesh, "batch_size": rows}


def test_put_batch_keeps_all_rows_in_order():
    batch = {"x": np.arange(48).reshape(16, 3)}
    placed = put_batch(batch, mesh(2, 2, 2))["x"]
    np.testing.assert_array_equal(placed, batch["x"])
    assert placed.sharding.shard_shape(placed.shape) == (4, 3)


def test_parameters_are_split_by_rule_then_by_their_largest_dimension():
    tree = {
        "layers": {
            "attention": {"query": {"kernel": np.zeros((4, 128, 128)), "bias": np.zeros((4, 128))}},
            "output": {"kernel": np.zeros((4, 512, 128))},
        },
        "embeddings": {"word_embeddings": np.zeros((1001, 128))},
        "pooler": {"bias": np.zeros(128)},
    }
    specs = jax.tree.map(lambda s: s.spec, tree_shardings(tree, mesh(2, 2, 2), TENSOR_RULES))
    assert specs["layers"]["attention"]["query"]["kernel"] == P(None, "fsdp", "tensor")
    assert specs["layers"]["attention"]["query"]["bias"] == P(None, "tensor")
    assert specs["layers"]["output"]["kernel"] == P(None, "tensor", "fsdp")
    assert specs["embeddings"]["word_embeddings"] == P(None, "fsdp")  # 1001 is not divisible
    assert specs["pooler"]["bias"] == P(None)  # too small to split


def test_optimizer_state_follows_the_paths_of_its_parameters():
    tree = {"layers": {"attention": {"query": {"kernel": np.zeros((4, 128, 128), np.float32)}}}}
    state = jax.eval_shape(update_rules.scale_by_adam(0.9, 0.999, 1e-8, True).init, tree)
    shardings = tree_shardings(state, mesh(2, 2, 2), TENSOR_RULES)
    assert shardings.mu["layers"]["attention"]["query"]["kernel"].spec == P(None, "fsdp", "tensor")


def test_local_rows_may_not_be_contiguous(monkeypatch):
    # On a pod the mesh follows the network, so a process's devices may not be adjacent in it.
    whole = mesh(8, 1, 1)
    spans = {device: (slice(2 * i, 2 * i + 2),) for i, device in enumerate(jax.devices()) if i in (1, 4, 5)}
    monkeypatch.setattr(
        jax.sharding.NamedSharding, "addressable_devices_indices_map", lambda self, shape: dict(reversed(spans.items()))
    )
    np.testing.assert_array_equal(local_rows(whole, 16), [2, 3, 8, 9, 10, 11])


@pytest.mark.slow
def test_activations_stay_split_by_rows_under_fsdp():
    """Without the constraint each device computes all rows, which shows in the temporary memory."""
    from bertjax.models.bert import BertForPreTraining, BertInputs, HeadConfig

    values = {"vocab_size": 64, "hidden_size": 128, "num_layers": 2, "num_heads": 2, "intermediate_size": 512}
    values |= {"max_positions": 64, "dropout": 0.0, "attention_dropout": 0.0, "activation": "gelu", "norm_eps": 1e-12}
    config = HeadConfig(**values, scan_layers=True)
    model = BertForPreTraining(config)
    ids = jax.ShapeDtypeStruct((64, 64), np.int32)
    call = {"deterministic": True, "return_attention": False}

    def loss(params, ids):
        output = model.apply({"params": params}, BertInputs(ids, ids, ids), ids[:, :4], **call)
        return output.masked_lm_logits.sum() + output.next_sentence_logits.sum()

    def memory(mesh):
        row = jnp.zeros((1, 8), jnp.int32)
        init = jax.eval_shape(lambda: model.init(jax.random.key(0), BertInputs(row, row, row), row, **call))["params"]
        shardings = (tree_shardings(init, mesh, TENSOR_RULES), jax.sharding.NamedSharding(mesh, P(("data", "fsdp"))))
        with jax.set_mesh(mesh):
            compiled = jax.jit(jax.grad(loss), in_shardings=shardings).lower(init, ids).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(mesh(1, 8, 1)) <= 1.2 * memory(mesh(8, 1, 1))
