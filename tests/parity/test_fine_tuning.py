"""Our BERT classes compared with those of transformers: outputs, losses, gradients, and files in both directions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build
from bertjax.interop import bert_tensors, huggingface
from bertjax.interop.published import open_weights
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from bertjax.models.losses import cross_entropy, span_cross_entropy, squared_error
from tests.parity.test_bert import distance

pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 50,
    "max_position_embeddings": 17,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu_new",  # not the default of either side
}
LENGTHS = np.array([[13], [9], [5]])
LENGTH = 13
# Class of transformers, and the number of labels if it can be chosen.
CASES = {
    "model": ("BertModel", None),
    "pretraining": ("BertForPreTraining", None),
    "masked_lm": ("BertForMaskedLM", None),
    "classes": ("BertForSequenceClassification", 5),
    "regression": ("BertForSequenceClassification", 1),
    "tokens": ("BertForTokenClassification", 5),
    "spans": ("BertForQuestionAnswering", None),
}
# Fields of transformers' outputs, in the order of ours.
OUTPUTS = {
    "BertModel": ("last_hidden_state", "pooler_output"),
    "BertForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "BertForMaskedLM": ("logits",),
    "BertForSequenceClassification": ("logits",),
    "BertForTokenClassification": ("logits",),
    "BertForQuestionAnswering": ("start_logits", "end_logits"),
}


def make_batch(case, seed=0):
    """Two-segment rows of decreasing length, and their labels with transformers' names."""
    rng, position = np.random.default_rng(seed), np.arange(LENGTH)
    real = position < LENGTHS
    words = np.where(real & (rng.random(real.shape) < 0.5), rng.integers(5, 61, real.shape), -100)
    words[:, 1] = 7  # at least one of each row
    labels = {
        "model": {},
        "pretraining": {"labels": words, "next_sentence_label": rng.integers(0, 2, 3)},
        "masked_lm": {"labels": words},
        "classes": {"labels": rng.integers(0, 5, 3)},
        "regression": {"labels": rng.standard_normal(3).astype(np.float32)},
        "tokens": {"labels": np.where(words >= 0, words % 5, -100)},
        "spans": {"start_positions": np.array([1, 2, 3]), "end_positions": np.array([12, 2, 4])},
    }[case]
    return {
        "input_ids": np.where(real, rng.integers(5, 61, real.shape), 0),
        "token_type_ids": ((position >= LENGTHS // 2) & real).astype(np.int64),
        "attention_mask": real.astype(np.int64),
    }, labels


# transformers.


def their_model(case, seed=0):
    """A model in which no bias is 0, no norm is 1 and no attention is uniform."""
    import torch
    import transformers

    architecture, num_labels = CASES[case]
    choice = {} if num_labels is None else {"num_labels": num_labels}
    config = transformers.BertConfig(**SIZES, **choice, attn_implementation="eager")
    model, rng = getattr(transformers, architecture)(config).eval(), np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.from_numpy(rng.standard_normal(parameter.shape, np.float32))
            parameter.copy_(0.2 * noise + (1.0 if name.endswith("LayerNorm.weight") else 0.0))
    return model


def their_results(model, case, with_gradient=False):
    """Returns outputs; with `with_gradient` also the loss and its gradient by tensor."""
    import torch

    inputs, labels = make_batch(case)
    output = model(**{name: torch.tensor(value) for name, value in {**inputs, **labels}.items()})
    outputs = [output[name] for name in OUTPUTS[type(model).__name__]]
    result = [value.detach().float().numpy() for value in outputs]
    if not with_gradient:
        return result
    loss = output.loss if labels else sum((value.abs() ** 3).sum() for value in outputs)
    loss.backward()
    gradient = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    return result, loss.item(), gradient


# bertjax.


def read_config(folder):
    choices = {"dtype": "float32", "attention_backend": "xla", "initializer": "truncated_normal"}
    choices |= {"scan_layers": True, "remat": "none"}
    choices |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    return build(HeadConfig, {**open_weights(folder).fields, **choices}, "model")


def our_model(case, config):
    architecture, num_labels = CASES[case]
    return {
        "BertModel": lambda: Bert(config, pooler_activation="tanh"),
        "BertForPreTraining": lambda: BertForPreTraining(config),
        "BertForMaskedLM": lambda: BertForPreTraining(config, predicts_next=False),
        "BertForSequenceClassification": lambda: BertForSequenceClassification(config, num_labels, 0.1, 0),
        "BertForTokenClassification": lambda: BertForTokenClassification(config, num_labels, 0.1, 0),
        "BertForQuestionAnswering": lambda: BertForQuestionAnswering(config, 0),
    }[architecture]()


def call(case, config, method, *args):
    """Calls our `init` or `apply` on the batch of a case."""
    inputs, _ = make_batch(case)
    names = ("input_ids", "token_type_ids", "attention_mask")
    arrays = [BertInputs(*(jnp.asarray(inputs[name], jnp.int32) for name in names))]
    options = {"deterministic": True}
    if case in ("model", "pretraining", "masked_lm"):
        options["return_attention"] = False
    if case in ("pretraining", "masked_lm"):
        arrays.append(jnp.broadcast_to(jnp.arange(LENGTH), (3, LENGTH)))
    return getattr(our_model(case, config), method)(*args, *arrays, **options)


def our_outputs(case, config, params):
    """Returns the arrays that `OUTPUTS` names."""
    output = call(case, config, "apply", {"params": params})
    return {
        "model": lambda: [output.hidden, output.pooled[:, 0]],
        "pretraining": lambda: [output.masked_lm_logits, output.next_sentence_logits[:, 0]],
        "masked_lm": lambda: [output.masked_lm_logits],
        "spans": lambda: list(output),
    }.get(case, lambda: [output])()


def our_loss(case, outputs):
    _, labels = make_batch(case)
    labels = {name: jnp.asarray(value) for name, value in labels.items()}

    def of_words(logits):
        counted = labels["labels"] >= 0
        return jnp.sum(cross_entropy(logits, jnp.maximum(labels["labels"], 0)) * counted) / jnp.sum(counted)

    return {
        "model": lambda: sum(jnp.sum(jnp.abs(value) ** 3) for value in outputs),
        "pretraining": lambda: (
            of_words(outputs[0]) + jnp.mean(cross_entropy(outputs[1], labels["next_sentence_label"]))
        ),
        "masked_lm": lambda: of_words(outputs[0]),
        "classes": lambda: jnp.mean(cross_entropy(outputs[0], labels["labels"])),
        "regression": lambda: jnp.mean(squared_error(outputs[0][:, 0], labels["labels"])),
        "tokens": lambda: of_words(outputs[0]),
        "spans": lambda: jnp.mean(span_cross_entropy(*outputs, *labels.values())),
    }[case]()


@functools.partial(jax.jit, static_argnums=(0, 1))
def our_results(case, config, params):
    """Returns outputs, loss and gradient."""

    def loss(params):
        outputs = our_outputs(case, config, params)
        return our_loss(case, outputs), outputs

    (value, outputs), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    return outputs, value, gradient


@functools.cache
def shapes(case, config):
    return jax.eval_shape(lambda: call(case, config, "init", jax.random.key(0)))["params"]


def load(folder, case):
    config = read_config(folder)
    params, report = huggingface.load(folder, shapes(case, config))
    assert report == ((), ())
    return config, params


def check_outputs(outputs, expected):
    for ours, theirs in zip(outputs, expected, strict=True):
        difference = np.abs(ours - theirs).max()
        print(f"max abs difference {difference:.1e} of {np.abs(theirs).max():.1f}")
        assert difference <= 2e-5


@pytest.mark.parametrize("case", CASES)
def test_outputs_loss_and_gradient(case, tmp_path):
    model = their_model(case)
    model.save_pretrained(tmp_path)
    config, params = load(tmp_path, case)
    expected, expected_loss, gradient = their_results(model, case, with_gradient=True)
    outputs, loss, ours = our_results(case, config, params)
    check_outputs(outputs, expected)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    theirs, report = bert_tensors.assemble(bert_tensors.canonical(gradient, "gradient"), params, "gradient")
    assert report == ((), ())
    # torch never updates the row of [PAD]; google-research/bert does, if padding counts as in spans.
    for tree in (ours, theirs):
        tree.get("bert", tree)["embeddings"]["word_embeddings"] *= 1 - np.eye(1, 61).T
    error = distance(ours, theirs)
    print(f"gradient: relative difference {error:.1e}")
    assert error <= 1e-5


def save_half(model, folder, dtype):
    import torch

    model.to(getattr(torch, dtype)).save_pretrained(folder)


def save_sharded(model, folder):
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def save_pickled(model, folder):
    """Saves pickled weights like versions before 4.35; current versions cannot."""
    import torch

    pytest.importorskip("bertjax.interop.formats.torch_pickle")
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


FORMATS = {
    "float16": functools.partial(save_half, dtype="float16"),
    "bfloat16": functools.partial(save_half, dtype="bfloat16"),
    "sharded": save_sharded,
    "pickled": save_pickled,
}


@pytest.mark.parametrize("form", FORMATS)
def test_files_of_transformers(form, tmp_path):
    import torch

    case = "pretraining"
    model = their_model(case, seed=1)
    FORMATS[form](model, tmp_path)
    config, params = load(tmp_path, case)
    outputs, *_ = our_results(case, config, params)
    check_outputs(outputs, their_results(model.to(torch.float32), case))


@pytest.mark.parametrize("case", CASES)
def test_our_files_in_transformers(case, tmp_path):
    """transformers opens our files without missing or unexpected keys, and its outputs are equal."""
    import transformers

    architecture, num_labels = CASES[case]
    their_model(case).config.save_pretrained(tmp_path / "theirs")
    config = read_config(tmp_path / "theirs")
    assert config.activation == "gelu_tanh"
    leaves, tree = jax.tree.flatten(shapes(case, config))
    rng = np.random.default_rng(3)
    params = tree.unflatten([0.2 * rng.standard_normal(leaf.shape, np.float32) for leaf in leaves])
    labels = None if num_labels is None else [f"name {i}" for i in range(num_labels)]
    huggingface.save(tmp_path / "ours", params, config, architecture, labels)
    auto = {"model": "AutoModel", "masked_lm": "AutoModelForMaskedLM", "spans": "AutoModelForQuestionAnswering"}
    opener = getattr(transformers, auto.get(case, architecture))
    model, info = opener.from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
    assert type(model).__name__ == architecture
    assert not any(info.values()), info
    outputs, *_ = our_results(case, config, params)
    check_outputs(outputs, their_results(model.eval(), case))
    if labels:
        assert model.config.id2label == dict(enumerate(labels))
        assert open_weights(tmp_path / "ours").labels == tuple(labels)
        expected = {"classes": "single_label_classification", "regression": "regression", "tokens": None}
        assert model.config.problem_type == expected[case]
