"""Our encoder-decoder compared with transformers' MarianMTModel, live (slow)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from bertjax.config import build
from bertjax.interop.families import marian
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Seq2SeqInputs
from tests.interop.test_marian import CHOICES, load, read_config, shapes
from tests.trees import distance

# Whether embeddings are shared, whether the output is tied, and the activation.
CASES = [(True, True, "swish"), (False, True, "gelu"), (False, False, "relu"), (True, False, "gelu_new")]
PAD, END = 22, 0


def make_model(share, tie, activation):
    """A model with random parameters, including bias and norms."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "decoder_vocab_size": 23 if share else 29, "d_model": 24, "max_position_embeddings": 16}
    for side, layers in (("encoder", 3), ("decoder", 2)):
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": 3, f"{side}_ffn_dim": 40}
    ids = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END, "forced_eos_token_id": END}
    shared = {"share_encoder_decoder_embeddings": share, "tie_word_embeddings": tie}
    config = transformers.MarianConfig(
        **sizes, **ids, **shared, scale_embedding=True, activation_function=activation, attn_implementation="eager"
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.2 * torch.randn_like(parameter)
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # otherwise the decoder's start token has no gradient in torch
    return model


def make_batch(model):
    """Pairs of several lengths. The decoder starts with the padding token, as in Marian."""
    random = np.random.default_rng(1)

    def side(lengths, size):
        ids = random.integers(1, size - 8, (3, max(lengths)))
        segments = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
        return np.where(segments, ids, PAD).astype(np.int32), segments

    source_ids, source_segments = side((7, 12, 3), model.config.vocab_size)
    target_ids, target_segments = side((9, 5, 10), model.config.decoder_vocab_size)
    labels, target_ids = target_ids, np.roll(target_ids, 1, axis=1)
    target_ids[:, 0] = PAD
    return {
        "input_ids": source_ids,
        "segment_ids": source_segments,
        "target_ids": target_ids,
        "target_segment_ids": target_segments,
    }, labels


def run_theirs(model, batch, labels):
    """Returns outputs of transformers with our names, and gradients by tensor."""
    import torch

    tensors = {name: torch.tensor(array).long() for name, array in batch.items()}
    model.final_logits_bias.requires_grad_()
    output = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["segment_ids"],
        decoder_input_ids=tensors["target_ids"],
        decoder_attention_mask=tensors["target_segment_ids"],
        output_attentions=True,
    )
    chosen = tensors["target_segment_ids"] == 1
    torch.nn.functional.cross_entropy(output.logits[chosen], torch.tensor(labels).long()[chosen]).backward()
    found = {
        "logits": output.logits,
        "encoder_attention": torch.stack(output.encoder_attentions),
        "decoder_attention": torch.stack(output.decoder_attentions),
        "cross_attention": torch.stack(output.cross_attentions),
    }
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    gradients["final_logits_bias"] = model.final_logits_bias.grad.numpy()
    return {name: tensor.detach().numpy() for name, tensor in found.items()}, gradients


@functools.partial(jax.jit, static_argnums=0)
def run_ours(config, params, batch, labels):
    def loss(params):
        call = {"deterministic": True, "return_attention": True}
        output = EncoderDecoder(config).apply({"params": params}, Seq2SeqInputs(**batch), **call)
        chosen = batch["target_segment_ids"] == 1
        log_probability = jnp.take_along_axis(jax.nn.log_softmax(output.logits), labels[..., None], axis=-1)
        return -jnp.sum(log_probability[..., 0] * chosen) / jnp.sum(chosen), output

    gradient, output = jax.grad(loss, has_aux=True)(params)
    return output._asdict(), gradient


def read(folder):
    config = build(EncoderDecoderConfig, {**read_config(folder), **CHOICES, "dropout": 0.0}, "model")
    return config, load(folder, shapes(config))


def check(output, expected, batch):
    """Compares outputs and gradients at tokens. At padding they differ without consequences."""
    source, target = batch["segment_ids"] == 1, batch["target_segment_ids"] == 1
    queries = {"encoder_attention": source, "decoder_attention": target, "cross_attention": target}
    for name, value in expected.items():
        rows = target if name == "logits" else queries[name]
        ours, theirs = (
            np.moveaxis(x, -2, 1) if x.ndim == 3 else np.moveaxis(x, (1, 3), (0, 1)) for x in (output[name], value)
        )
        difference = np.abs(ours[rows] - theirs[rows]).max()
        print(f"{name}: max abs difference {difference:.1e}")
        assert theirs[rows].std() > 1e-2, name  # not trivially constant
        assert difference <= 2e-5, name


@pytest.mark.slow
@pytest.mark.parametrize(("share", "tie", "activation"), CASES)
def test_live(tmp_path, share, tie, activation):
    model = make_model(share, tie, activation)
    model.save_pretrained(tmp_path)
    config, params = read(tmp_path)
    batch, labels = make_batch(model)
    expected, gradients = run_theirs(model, batch, labels)
    output, gradient = run_ours(config, params, batch, labels)
    check(output, expected, batch)
    (tmp_path / "gradient").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "gradient" / "config.json")
    save_file(gradients, tmp_path / "gradient" / "model.safetensors")
    theirs = load(tmp_path / "gradient", shapes(config))
    print(f"gradient: relative distance {distance(gradient, theirs):.1e}")
    assert jax.tree.structure(gradient) == jax.tree.structure(theirs)
    assert distance(gradient, theirs) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("share", "tie", "activation"), CASES[:2])
def test_live_export(tmp_path, share, tie, activation):
    """transformers opens our export without missing or unexpected keys, and its outputs are equal."""
    import torch
    import transformers

    model = make_model(share, tie, activation)
    model.save_pretrained(tmp_path)
    config, _ = read(tmp_path)
    config = dataclasses.replace(config, share_embeddings=share)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), shapes(config))
    special = marian.SpecialIds(pad_id=PAD, bos_id=PAD, eos_id=END)
    marian.save(tmp_path / "new", params, config, special, {})
    opened, info = transformers.MarianMTModel.from_pretrained(
        tmp_path / "new", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert opened.generation_config.bad_words_ids == [[PAD]]
    batch, labels = make_batch(opened)
    expected, _ = run_theirs(opened.eval(), batch, labels)
    check(run_ours(config, params, batch, labels)[0], expected, batch)
    with torch.no_grad():
        words = opened.generate(torch.tensor(batch["input_ids"][:1, :5]).long(), max_new_tokens=6, num_beams=2)
    assert words[0, 0] == PAD and words.shape[1] <= 7
