"""Our encoder-decoder compared with torch.nn.Transformer with the same weights (slow)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Seq2SeqInputs
from bertjax.models.losses import smoothed_cross_entropy
from tests.trees import distance

SIZE, HEADS, INNER, SOURCE_WORDS, TARGET_WORDS = 24, 3, 40, 17, 19
SOURCE_SEGMENTS = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], np.int32)
TARGET_SEGMENTS = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)


def make_config(norm, num_layers, activation):
    return EncoderDecoderConfig(
        hidden_size=SIZE,
        num_layers=num_layers,
        num_heads=HEADS,
        intermediate_size=INNER,
        dropout=0.0,
        attention_dropout=0.0,
        activation=activation,
        norm=norm,
        norm_eps=1e-5,
        initializer="xavier_uniform",
        initializer_range=0.3,
        scan_layers=True,
        num_decoder_layers=num_layers,
        source_vocab_size=SOURCE_WORDS,
        target_vocab_size=TARGET_WORDS,
        share_embeddings=False,
        tie_output=False,
        logits_bias=True,
        max_positions=8,
        scale_embeddings=True,
    )


def torch_transformer(config):
    """A Transformer without parameters at 0 or 1. torch has a norm after the last layer even with post-norm."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Transformer(
        SIZE,
        HEADS,
        config.num_layers,
        config.num_decoder_layers,
        INNER,
        dropout=0.0,
        activation=config.activation,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm == "pre",
    )
    if config.norm == "post":
        model.encoder.norm = model.decoder.norm = None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def run_torch(model, source, target):
    import torch

    source_padding, target_padding = torch.tensor(SOURCE_SEGMENTS == 0), torch.tensor(TARGET_SEGMENTS == 0)
    future = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
    return model(
        source,
        target,
        tgt_mask=future,
        src_key_padding_mask=source_padding,
        tgt_key_padding_mask=target_padding,
        memory_key_padding_mask=source_padding,
    )


def stacks(named, config):
    """Converts torch's weights, or their gradients, to our trees of encoder and decoder."""

    def dense(weight, bias):
        return {"kernel": weight.T, "bias": bias}

    def attention(prefix):
        weights, biases = (np.split(named[f"{prefix}.in_proj_{kind}"], 3) for kind in ("weight", "bias"))
        parts = {name: dense(w, b) for name, w, b in zip(("query", "key", "value"), weights, biases, strict=True)}
        return {**parts, "output": linear(f"{prefix}.out_proj")}

    def linear(prefix):
        return dense(named[f"{prefix}.weight"], named[f"{prefix}.bias"])

    def norm(prefix):
        return {"scale": named[f"{prefix}.weight"], "bias": named[f"{prefix}.bias"]}

    def layer(prefix, cross):
        own = {
            "attention": attention(f"{prefix}.self_attn"),
            "attention_norm": norm(f"{prefix}.norm1"),
            "intermediate": linear(f"{prefix}.linear1"),
            "output": linear(f"{prefix}.linear2"),
            "output_norm": norm(f"{prefix}.norm{3 if cross else 2}"),
        }
        if cross:
            own["cross_attention"] = attention(f"{prefix}.multihead_attn")
            own["cross_attention_norm"] = norm(f"{prefix}.norm2")
        return own

    def stack(name):
        layers = [layer(f"{name}.layers.{i}", name == "decoder") for i in range(config.num_layers)]
        tree = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}
        return {**tree, "final_norm": norm(f"{name}.norm")} if config.norm == "pre" else tree

    return {"encoder": stack("encoder"), "decoder": stack("decoder")}


def arrays(model, gradient):
    return {
        name: (parameter.grad if gradient else parameter).detach().numpy()
        for name, parameter in model.named_parameters()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "activation"), [("post", "gelu"), ("pre", "relu")])
def test_whole_model_with_smoothed_labels(norm, activation):
    """From words to the loss: embeddings scaled by sqrt(H), sinusoids, both stacks, logits, torch's label smoothing."""
    import torch

    config = make_config(norm, 2, activation)
    transformer = torch_transformer(config)
    source_words, target_words = (torch.nn.Embedding(size, SIZE) for size in (SOURCE_WORDS, TARGET_WORDS))
    output = torch.nn.Linear(SIZE, TARGET_WORDS)
    positions = torch.tensor(sinusoids(8, SIZE, "interleaved"))
    rng = np.random.default_rng(2)
    source, target, labels = (
        rng.integers(1, size, segments.shape) * segments
        for size, segments in (
            (SOURCE_WORDS, SOURCE_SEGMENTS),
            (TARGET_WORDS, TARGET_SEGMENTS),
            (TARGET_WORDS, TARGET_SEGMENTS),
        )
    )

    def embed(words, ids):
        return words(torch.tensor(ids)) * SIZE**0.5 + positions[: ids.shape[1]]

    expected = output(run_torch(transformer, embed(source_words, source), embed(target_words, target)))
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0, reduction="sum")
    loss(expected.reshape(-1, TARGET_WORDS), torch.tensor(labels).reshape(-1)).backward()

    def tree(gradient):
        own = [arrays(module, gradient) for module in (source_words, target_words, output)]
        tables = {"source_embeddings": own[0]["weight"], "target_embeddings": own[1]["weight"]}
        head = {"output": own[2]["weight"].T, "bias": own[2]["bias"]}
        return {**stacks(arrays(transformer, gradient), config), **tables, **head}

    @functools.partial(jax.grad, has_aux=True)
    def ours(params):
        inputs = Seq2SeqInputs(*map(jnp.asarray, (source, SOURCE_SEGMENTS, target, TARGET_SEGMENTS)))
        call = {"deterministic": True, "return_attention": False}
        logits = EncoderDecoder(config).apply({"params": params}, inputs, **call).logits
        values = smoothed_cross_entropy(logits, jnp.asarray(labels), 0.1, "V")
        return jnp.sum(values * (TARGET_SEGMENTS != 0)), logits

    gradient, logits = jax.jit(ours)(tree(gradient=False))
    real = TARGET_SEGMENTS[..., None] != 0
    np.testing.assert_allclose(logits * real, expected.detach().numpy() * real, atol=2e-5)
    assert distance(gradient, tree(gradient=True)) < 1e-5
