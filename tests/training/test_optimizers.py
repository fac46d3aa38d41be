"""Updates and schedules compared with the published algorithms in NumPy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.errors import UserError
from bertjax.training.optimizers import OptimizerConfig, make_optimizer, make_rates, make_schedule, timed
from bertjax.training.sharding import path_names
from tests.experiments.commands import settings_of
from tests.tiny import check_message

CHANGES = {"learning_rate": 1e-2, "schedule": "constant", "warmup_steps": 0, "bias_correction": False, "clip_norm": 0.0}
BERT = settings_of(OptimizerConfig, "bert_pretraining", "optimizer", **CHANGES)


def params():
    rng = np.random.default_rng(0)
    return {
        "layers": {"kernel": rng.normal(size=(3, 4, 5)).astype(np.float32), "bias": np.ones((3, 5), np.float32)},
        "norm": {"scale": np.ones(4, np.float32)},
        "head": {"kernel": rng.normal(size=(5, 2)).astype(np.float32)},
    }


def gradients(step, like=None):
    """Gradients that do not depend on the parameters."""
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params() if like is None else like)


def updated(config, steps=3, start=None):
    """The parameters after some updates, from `params` unless `start` is given."""
    tree = start = jax.tree.map(jnp.asarray, params() if start is None else start)
    optimizer, rates = make_optimizer(config, tree), make_rates(config)
    state = optimizer.init(tree)
    for step in range(steps):
        updates, state = optimizer.update(gradients(step, start), state, tree, rates=rates(step, 10))
        tree = optax.apply_updates(tree, updates)
    return jax.device_get(tree)


def adam_by_hand(start, grads, *, decay, corrected, trust=None, lr=1e-2):
    m, v, p = np.zeros_like(start), np.zeros_like(start), start.astype(np.float64)
    for t, g in enumerate(grads, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        m_hat, v_hat = (m / (1 - 0.9**t), v / (1 - 0.999**t)) if corrected else (m, v)
        update = m_hat / (np.sqrt(v_hat) + 1e-6) + decay * p
        p = p - lr * update * (trust(p, update) if trust else 1)
    return p


@pytest.mark.parametrize("corrected", [False, True])
def test_adamw_matches_bert_and_does_not_decay_biases_and_norms(corrected):
    got = updated(dataclasses.replace(BERT, bias_correction=corrected))
    for path, decay in ((("layers", "kernel"), 0.01), (("layers", "bias"), 0.0), (("norm", "scale"), 0.0)):
        grads = [gradients(step)[path[0]][path[1]] for step in range(3)]
        expected = adam_by_hand(params()[path[0]][path[1]], grads, decay=decay, corrected=corrected)
        np.testing.assert_allclose(got[path[0]][path[1]], expected, rtol=2e-5, atol=1e-6)


def test_lamb_scales_each_stacked_layer_by_its_own_norms_but_no_parameters_without_decay():
    got = updated(dataclasses.replace(BERT, name="lamb", bias_correction=True))
    grads = [gradients(step)["layers"]["kernel"] for step in range(3)]

    def ratio(p, update):
        return np.linalg.norm(p) / np.linalg.norm(update)

    for layer in range(3):
        start = params()["layers"]["kernel"][layer]
        expected = adam_by_hand(start, [g[layer] for g in grads], decay=0.01, corrected=True, trust=ratio)
        np.testing.assert_allclose(got["layers"]["kernel"][layer], expected, rtol=2e-5, atol=1e-6)
    # A bias initialized at zero has a trust ratio near zero, so scaling would keep it there.
    grads = [gradients(step)["layers"]["bias"] for step in range(3)]
    expected = adam_by_hand(params()["layers"]["bias"], grads, decay=0.0, corrected=True)
    np.testing.assert_allclose(got["layers"]["bias"], expected, rtol=2e-5, atol=1e-6)


def orthogonalized(matrix):
    """Newton-Schulz iteration with the coefficients of Jordan et al. 2024 in float64."""
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def muon_by_hand(start, grads, *, decay, beta=0.95, lr=1e-2):
    """Muon of Liu et al. 2025, algorithm 1 and equation 4, with the bias correction of optax."""
    momentum, p = np.zeros(start.shape), start.astype(np.float64)
    for t, g in enumerate(grads, start=1):
        momentum = beta * momentum + (1 - beta) * g
        nesterov = beta * momentum / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        p = p - lr * (0.2 * np.sqrt(max(p.shape)) * orthogonalized(nesterov) + decay * p)
    return p


MUON = dataclasses.replace(BERT, name="muon", weight_decay=0.1)


def test_muon_orthogonalizes_each_matrix_alone():
    tree = hidden_params()
    got, start = by_path(updated(MUON, 5, tree)), by_path(tree)
    of_step = [by_path(gradients(step, tree)) for step in range(5)]
    matrices = {"encoder/layers/gate/kernel", "encoder/layers/output/kernel", "pooler/kernel", "transform/kernel"}
    for name, before in start.items():
        stacked = name in matrices and before.ndim == 3
        for layer in range(len(before) if stacked else 1):
            index = layer if stacked else ...
            history = [gradient[name][index] for gradient in of_step]
            decay = 0.0 if name.endswith("bias") else 0.1
            if name in matrices:
                expected = muon_by_hand(before[index], history, decay=decay)
            else:
                expected = adam_by_hand(before[index], history, decay=decay, corrected=False)
            np.testing.assert_allclose(got[name][index], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def hidden_params():
    """Stacked and unstacked matrices, wide and tall, and parameters that Muon leaves to AdamW."""
    rng = np.random.default_rng(2)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    layers = {"gate": {"kernel": normal(3, 4, 7), "bias": normal(3, 7)}, "output": {"kernel": normal(3, 7, 4)}}
    return {
        "embeddings": {"word_embeddings": normal(9, 4)},
        "encoder": {"layers": layers},
        "pooler": {"kernel": normal(4, 4)},
        "transform": {"kernel": normal(6, 4), "bias": normal(4)},
        "classifier": {"kernel": normal(4, 2)},
    }


def test_muon_keeps_one_moment_of_its_matrices():
    tree = hidden_params()
    state = by_path(make_optimizer(MUON, tree).init(tree))
    moments = {name: sum(path.endswith("/" + name) for path in state) for name in by_path(tree)}
    names = ("encoder/layers/gate", "encoder/layers/output", "pooler", "transform")
    assert {name for name, count in moments.items() if count == 1} == {f"{name}/kernel" for name in names}
    assert set(moments.values()) == {1, 2}


def test_muon_in_a_group_and_a_group_without_muon():
    head = dataclasses.replace(MUON, groups=(("pooler", {"name": "adamw"}),))
    only = dataclasses.replace(BERT, weight_decay=0.1, groups=(("layers", {"name": "muon"}),))
    plain, muon, adamw = (by_path(change(config)) for config in (MUON, head, dataclasses.replace(MUON, name="adamw")))
    in_group = by_path(change(only))
    for name in plain:
        of = adamw if "pooler" in name else plain
        np.testing.assert_allclose(muon[name], of[name], rtol=1e-4, atol=1e-6, err_msg=name)
        of = plain if "layers" in name else adamw
        np.testing.assert_allclose(in_group[name], of[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert np.abs(plain["bert/pooler/kernel"] - adamw["bert/pooler/kernel"]).min() > 1e-5


@pytest.mark.parametrize(
    ("config", "params", "key"),
    [
        (MUON, {"encoder": {"input_kernel": np.zeros((2, 3))}}, "optimizer.name"),
        (dataclasses.replace(BERT, groups=(("word", {"name": "muon"}),)), None, r"optimizer\.groups\[0\]"),
    ],
    ids=["model", "group"],
)
def test_muon_without_matrices_is_an_error(config, params, key):
    embeddings = {"word_embeddings": np.zeros((5, 3)), "layers": {"output": {"kernel": np.zeros((1, 3, 3))}}}
    with pytest.raises(UserError) as error:
        make_optimizer(config, params or embeddings)
    got = "'muon', for parameters without matrices"
    check_message(f"error: {error.value}", f"config key {key}", got, "Transformer layers", "use adamw")


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_uses_the_global_norm(limit):
    # One step of uncorrected Adam with a large eps shows the scale of the gradient: 0.1 g / (sqrt(0.001) |g| + eps).
    config = dataclasses.replace(BERT, clip_norm=limit, weight_decay=0.0, eps=1.0, learning_rate=1e2)
    grad = np.asarray(gradients(0)["head"]["kernel"], np.float64) * min(1, limit / optax.tree.norm(gradients(0)))
    expected = params()["head"]["kernel"] - 1e2 * 0.1 * grad / (np.sqrt(0.001) * abs(grad) + 1.0)
    np.testing.assert_allclose(updated(config, steps=1)["head"]["kernel"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "got"),
    [
        ({"frozen": True, "lerning_rate": 1.0}, "frozen=True"),
        ({"frozen": 3}, "frozen=3"),
        ({"clip_norm": 1.0}, "clip_norm=1.0"),
        ({"learning_rate": "fast"}, "learning_rate='fast'"),
    ],
)
def test_invalid_overrides(overrides, got):
    with pytest.raises(UserError, match=rf"groups\[0\]: got {got}; expected frozen=True alone, or overrides of name"):
        make_optimizer(dataclasses.replace(BERT, groups=(("head", overrides),)), params())


def test_the_first_matching_group_overrides_or_freezes():
    config = dataclasses.replace(
        BERT, groups=(("head", {"frozen": True}), ("kernel", {"learning_rate": 0.0}), ("bias", {"learning_rate": 1.0}))
    )
    got, start, plain = updated(config), params(), updated(BERT)
    np.testing.assert_array_equal(got["head"]["kernel"], start["head"]["kernel"])
    np.testing.assert_array_equal(got["layers"]["kernel"], start["layers"]["kernel"])
    assert np.abs(got["layers"]["bias"] - start["layers"]["bias"]).min() > 0.1
    np.testing.assert_array_equal(got["norm"]["scale"], plain["norm"]["scale"])


def test_groups_can_have_their_own_warm_up():
    def warmed(steps, **changes):
        return updated(dataclasses.replace(BERT, schedule="inverse_sqrt", warmup_steps=steps, **changes), steps=6)

    got, short, long = warmed(2, groups=(("kernel", {"warmup_steps": 9}),)), warmed(2), warmed(9)
    for path in (("layers", "kernel"), ("head", "kernel"), ("layers", "bias"), ("norm", "scale")):
        of = long if path[1] == "kernel" else short
        np.testing.assert_array_equal(got[path[0]][path[1]], of[path[0]][path[1]])
        assert (short[path[0]][path[1]] != long[path[0]][path[1]]).any()


def test_a_group_without_parameters_is_an_error():
    with pytest.raises(UserError, match=r"groups\[1\].*'head/kernel'.*matches no parameter"):
        updated(dataclasses.replace(BERT, groups=(("head", {"frozen": True}), ("head/kernel", {"frozen": True}))))


@pytest.mark.parametrize(
    ("schedule", "warmup", "num_steps", "rates"),
    [
        ("linear", 10, 100, {0: 0, 9: 0.9, 10: 0.9, 99: 0.01, 100: 0}),  # as in Google's code
        ("sqrt_decay", 2_001, 7_038, {1_000: 1_000 / 2_001, 5_000: (1 - 5_000 / 7_038) ** 0.5, 7_038: 0}),
        ("cosine", 10, 110, {5: 0.5, 10: 1, 60: 0.5, 110: 0}),
        ("constant", 4, 10, {2: 0.5, 4: 1, 9: 1}),
        # The paper counts from 1.
        ("inverse_sqrt", 4_000, 9, {n - 1: min((n / 4_000) ** -0.5, n / 4_000) for n in (1, 2, 3_999, 4_001, 10_000)}),
    ],
)
def test_schedules(schedule, warmup, num_steps, rates):
    config = dataclasses.replace(BERT, schedule=schedule, learning_rate=2.0, warmup_steps=warmup)
    found = make_schedule(config, num_steps)
    np.testing.assert_allclose([found(step) / 2 for step in rates], [*rates.values()], rtol=1e-5, atol=1e-7)


def test_trapezoidal_schedule():
    config = dataclasses.replace(BERT, schedule="trapezoidal", learning_rate=2.0, warmup_steps=10, decay_fraction=0.25)
    schedule = make_schedule(config, 200)
    rates = [schedule(step) for step in (0, 5, 10, 100, 150, 175, 199, 200, 300)]
    np.testing.assert_allclose(rates, [0.0, 1.0, 2.0, 2.0, 2.0, 1.0, 0.04, 0.0, 0.0], atol=1e-6)
    longer = make_schedule(dataclasses.replace(config, schedule_steps=400), 200)
    np.testing.assert_allclose([longer(step) for step in (200, 300, 350, 400)], [2.0, 2.0, 1.0, 0.0], atol=1e-6)
    only_decay = make_schedule(dataclasses.replace(config, warmup_steps=0, decay_fraction=1.0), 100)
    np.testing.assert_allclose([only_decay(step) for step in (0, 50, 100)], [2.0, 1.0, 0.0], atol=1e-6)
    overlapping = make_schedule(dataclasses.replace(config, warmup_steps=60, decay_fraction=0.8), 100)
    np.testing.assert_allclose([overlapping(step) for step in (30, 60, 80, 100)], [1, 2, 1, 0], atol=1e-6)


def test_runs_that_differ_in_rates_share_a_program():
    """Schedules, their lengths, and the rates and weight decays of groups are arguments of the update."""
    groups = (("classifier", {"learning_rate": 0.5, "schedule": "cosine"}), ("pooler", {"frozen": True}))
    one = dataclasses.replace(MUON, schedule="linear", groups=groups)
    changes = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 3, "weight_decay": 0.01}
    other = dataclasses.replace(MUON, **changes, groups=(("classifier", {}), groups[1]))
    tree, programs = jax.tree.map(jnp.asarray, deep_params()), []
    for config, num_steps in ((one, 7), (other, math.inf)):
        optimizer, rates = make_optimizer(config, tree), make_rates(config)(2, num_steps)
        programs.append(jax.jit(optimizer.update).lower(tree, optimizer.init(tree), tree, rates=rates).as_text())
        assert jax.eval_shape(timed(optimizer).init, tree).num_steps.dtype == "float32"  # in checkpoints
    assert programs[0] == programs[1]


# Tests of layer_decay and frozen_layers.


def deep_params(num_layers=3):
    """Parameters named like those of a fine-tuned BERT, with stacked layers and a head."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "bert": {
            "embeddings": {"word_embeddings": normal(7, 4), "norm": {"scale": normal(4)}},
            "encoder": {"layers": {"attention": {"kernel": normal(num_layers, 4, 4), "bias": normal(num_layers, 4)}}},
            "relative_embeddings": {"relative_attention_bias": normal(8, 2)},
            "pooler": {"kernel": normal(4, 4)},
        },
        "classifier": {"kernel": normal(4, 2), "bias": normal(2)},
    }


def change(config, steps=3):
    """The change of each of `deep_params`."""
    start = deep_params()
    return jax.tree.map(lambda end, begin: np.float64(end) - begin, updated(config, steps, start), start)


# No weight decay, since it depends on the parameters. Clipping applies to the gradients before scaling.
DEEP = dataclasses.replace(BERT, weight_decay=0.0, clip_norm=1.0)


def by_path(tree):
    return dict(zip(jax.tree.leaves(path_names(tree)), jax.tree.leaves(tree), strict=True))


def check_factors(config, plain, *, embeddings, layers, head, steps=3):
    """Checks that each parameter changes by the given factor times its change in `plain`."""
    got, expected = by_path(change(config, steps)), by_path(change(plain, steps))
    for name, far in expected.items():
        factor = head
        if "embeddings/" in name:
            factor = embeddings
        elif "layers/" in name:
            factor = np.reshape(layers, (-1, *[1] * (far.ndim - 1)))
        assert np.abs(far).max() > 1e-3
        np.testing.assert_allclose(got[name], far * factor, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("name", "steps"), [("adamw", 3), ("lamb", 1), ("muon", 3)])
def test_layer_decay_counts_the_layers_above(name, steps):
    # LAMB's ratio uses the update before scaling; after the first step the parameters differ.
    plain = dataclasses.replace(DEEP, name=name)
    decayed = dataclasses.replace(plain, layer_decay=0.5)
    check_factors(decayed, plain, embeddings=0.0625, layers=(0.125, 0.25, 0.5), head=1.0, steps=steps)


@pytest.mark.parametrize(("name", "frozen"), [("adamw", 1), ("adamw", 2), ("adamw", 3), ("muon", 1)])
def test_frozen_layers_and_embeddings_do_not_change(name, frozen):
    config = dataclasses.replace(BERT, name=name, weight_decay=0.1)
    far = by_path(change(dataclasses.replace(config, frozen_layers=frozen)))
    for name, moved in far.items():
        if "embeddings/" in name:
            assert not moved.any(), name
        elif "layers/" in name:
            assert not moved[:frozen].any(), name
            assert all(layer.all() for layer in moved[frozen:]), name
        else:
            assert moved.all(), name
    # The other layers change as they do without frozen layers.
    plain = by_path(change(config))
    np.testing.assert_array_equal(far["classifier/kernel"], plain["classifier/kernel"])


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({"frozen_layers": 1}, lambda bert: {"pooler": bert["pooler"], "layers": layers_from(bert, 1)}),
        ({"frozen_layers": 3, "layer_decay": 0.5}, lambda bert: bert["pooler"]),
        ({"groups": (("embeddings|pooler", {"frozen": True}),)}, lambda bert: bert["encoder"]),
        ({"layer_decay": 0.5, "groups": (("embeddings|pooler", {"learning_rate": 0.0}),)}, lambda bert: bert),
    ],
)
def test_the_clipped_norm_excludes_frozen_parameters(changes, trained):
    config = dataclasses.replace(DEEP, clip_norm=0.5, eps=1.0, **changes)  # a large eps shows the gradient's scale
    optimizer, grads = make_optimizer(config, deep_params()), deep_params()
    rates = make_rates(config)(0, 10)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(deep_params()), deep_params(), rates=rates)
    clipped = grads["classifier"]["bias"] * 0.5 / optax.tree.norm((trained(grads["bert"]), grads["classifier"]))
    expected = -1e-2 * 0.1 * clipped / (np.sqrt(0.001) * abs(clipped) + 1.0)
    np.testing.assert_allclose(updates["classifier"]["bias"], expected, rtol=1e-5)


def layers_from(bert, first):
    return jax.tree.map(lambda stacked: stacked[first:], bert["encoder"]["layers"])


def test_frozen_layers_and_layer_decay_together():
    plain = dataclasses.replace(DEEP, clip_norm=0.0)
    config = dataclasses.replace(plain, frozen_layers=1, layer_decay=0.5)
    check_factors(config, plain, embeddings=0.0, layers=(0.0, 0.25, 0.5), head=1.0)


def test_layer_decay_applies_in_groups():
    groups = (("classifier", {"learning_rate": 2e-2}), ("attention/bias", {"frozen": True}))
    whole = dataclasses.replace(DEEP, clip_norm=0.0)
    config = dataclasses.replace(whole, layer_decay=0.5, groups=groups)
    far, plain = by_path(change(config)), by_path(change(whole))
    np.testing.assert_allclose(far["classifier/kernel"], 2 * plain["classifier/kernel"], rtol=1e-3, atol=1e-6)
    assert not far["bert/encoder/layers/attention/bias"].any()
    kernel = "bert/encoder/layers/attention/kernel"
    np.testing.assert_allclose(far[kernel][1], plain[kernel][1] / 4, rtol=1e-3, atol=1e-6)


def test_source_embeddings_count_as_the_lowest_layer():
    layers = {"kernel": jnp.ones((2, 4))}
    tables = dict.fromkeys(("embeddings", "source_embeddings", "source_positions"), jnp.ones(3))
    above = dict.fromkeys(("target_embeddings", "target_positions", "output"), jnp.ones(3))
    tree = {"encoder": {"layers": layers}, "decoder": {"layers": layers}, **tables, **above}
    config = dataclasses.replace(DEEP, clip_norm=0.0, weight_decay=0.0, frozen_layers=1)
    optimizer = make_optimizer(config, tree)
    updates, _ = optimizer.update(tree, optimizer.init(tree), tree, rates=make_rates(config)(0, 10))
    assert not updates["encoder"]["layers"]["kernel"][0].any() and updates["encoder"]["layers"]["kernel"][1].all()
    expected = {**dict.fromkeys(tables, False), **dict.fromkeys(above, True)}
    assert {name: bool(updates[name].any()) for name in expected} == expected
    assert updates["decoder"]["layers"]["kernel"].all()


@pytest.mark.parametrize(("changes", "number"), [({"frozen_layers": 4}, 3), ({"frozen_layers": 1}, 0)])
def test_more_frozen_layers_than_layers(changes, number):
    tree = deep_params() if number else {"classifier": deep_params()["classifier"]}
    with pytest.raises(UserError) as error:
        make_optimizer(dataclasses.replace(BERT, **changes), tree)
    got, expected = str(changes["frozen_layers"]), f"at most {number}, the number of the model's layers"
    check_message(f"error: {error.value}", "optimizer.frozen_layers", got, expected, "lower it")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("schedule_steps", 0, "at least 1, or None"),
        ("no_decay", "(", "regular expression"),
        ("groups", ("kernel",), "a pair"),
        ("groups", (("(", {}),), "regular expression"),
    ],
)
def test_invalid_values_are_user_errors(key, value, expected):
    with pytest.raises(UserError, match=rf"config key optimizer\.{key}.*: got .*; expected .*{expected}"):
        dataclasses.replace(BERT, **{key: value})
