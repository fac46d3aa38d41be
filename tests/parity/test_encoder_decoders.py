"""Our encoder-decoder compared with models of transformers, live (slow)."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import bertjax
from bertjax.config import build
from bertjax.interop import encoder_decoders
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Seq2SeqInputs
from bertjax.tasks import seq2seq
from tests.interop import test_seq2seq_tokenizers
from tests.interop.test_marian import CHOICES, load, read_config, shapes
from tests.interop.test_seq2seq_tokenizers import transformers as transformers
from tests.trees import distance

VOCAB_SIZE = 29
BART = {"vocab_size": VOCAB_SIZE, "d_model": 24, "max_position_embeddings": 16}
BART |= {"encoder_layers": 3, "encoder_attention_heads": 3, "encoder_ffn_dim": 40}
BART |= {"decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 40}
OF_MARIAN = {"pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 0, "forced_eos_token_id": 0}
MARIAN = {**BART, **OF_MARIAN, "scale_embedding": True}
SEPARATE = {"vocab_size": 23, "decoder_vocab_size": VOCAB_SIZE, "share_encoder_decoder_embeddings": False}
T5 = {"vocab_size": VOCAB_SIZE, "d_model": 20, "d_kv": 6, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 2}
T5 |= {"d_ff": 40, "decoder_start_token_id": 0}
ODD_T5 = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 7, "layer_norm_epsilon": 1e-5}
# The name of the classes of transformers, the config, and whether the output has a table of its own.
CASES = {
    "marian": ("Marian", {**MARIAN, "activation_function": "swish"}, False),
    "marian_separate": ("Marian", {**MARIAN, **SEPARATE, "activation_function": "gelu"}, False),
    "marian_three_tables": ("Marian", {**MARIAN, **SEPARATE, "activation_function": "relu"}, True),
    "marian_untied": ("Marian", {**MARIAN, "activation_function": "gelu_new"}, True),
    "bart": ("Bart", BART, False),
    "bart_scaled": ("Bart", {**BART, "scale_embedding": True, "activation_function": "relu"}, True),
    "mbart": ("MBart", {**BART, "scale_embedding": True, "decoder_start_token_id": 2}, False),
    "mbart_untied": ("MBart", {**BART, "activation_function": "relu", "decoder_start_token_id": 2}, True),
    "pegasus": ("Pegasus", {**BART, "scale_embedding": True, "activation_function": "relu"}, False),
    "pegasus_unscaled": ("Pegasus", {**BART, "activation_function": "gelu_new"}, True),
    "t5": ("T5", T5, False),
    "t5_untied": ("T5", {**T5, **ODD_T5, "feed_forward_proj": "gated-silu"}, True),
    "t5_1.1": ("T5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, True),
    "mt5": ("MT5", {**T5, **ODD_T5}, True),
    "mt5_tied": ("MT5", {**T5, "num_decoder_layers": None}, False),
}
CLASSES = {"Marian": "MarianMTModel"}


def make_model(name, values, is_untied):
    """A model with random parameters, including bias and norms."""
    import torch
    import transformers

    torch.manual_seed(0)
    is_marian = name == "Marian" and is_untied
    config = getattr(transformers, f"{name}Config")(
        **values, attn_implementation="eager", **({"tie_word_embeddings": False} if is_marian else {})
    )
    model = getattr(transformers, CLASSES.get(name, f"{name}ForConditionalGeneration"))(config).eval()
    if is_untied:
        model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(model.lm_head.weight))
    scale = 0.05 if "T5" in name else 0.2  # T5's logits are larger
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            is_sinusoid = "embed_positions" in path and name in ("Marian", "Pegasus")
            is_t5_table = "shared" in path and "T5" in name
            if not is_sinusoid:
                parameter += -0.7 * parameter if is_t5_table else scale * torch.randn_like(parameter)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # otherwise the decoder's start token has no gradient in torch
    return model


def make_batch(model):
    """Pairs of several lengths. The decoder starts with the token of the family, perhaps the padding."""
    random = np.random.default_rng(1)
    pad = model.config.pad_token_id
    start = model.config.decoder_start_token_id

    def side(lengths, size):
        ids = random.integers(3, size - 8, (3, max(lengths)))
        segments = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
        return np.where(segments, ids, pad).astype(np.int32), segments

    source_ids, source_segments = side((7, 12, 3), model.config.vocab_size)
    target_ids, target_segments = side((9, 5, 10), VOCAB_SIZE)
    labels, target_ids = target_ids, np.roll(target_ids, 1, axis=1)
    target_ids[:, 0] = start
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
    has_bias = hasattr(model, "final_logits_bias")
    if has_bias:
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
    if has_bias:
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


def check_loss(model, config, params, batch, labels, start, tolerance=1e-5):
    """The loss of padded labels, whose inputs are shifted by the rule of each family, equals that of transformers.

    mBART's decoder starts with the last label of a row, which is the end.
    """
    import torch

    segments = batch["target_segment_ids"]
    lengths = segments.sum(1)
    labels = labels.copy()
    labels[np.arange(len(labels)), lengths - 1] = model.config.eos_token_id
    output = model(
        input_ids=torch.tensor(batch["input_ids"]).long(),
        attention_mask=torch.tensor(batch["segment_ids"]),
        labels=torch.tensor(np.where(segments, labels, -100)).long(),
    )
    rows = {**batch, "labels": np.where(segments, labels, model.config.pad_token_id)}
    params, rows = jax.tree.map(jnp.asarray, (params, rows))
    logits = seq2seq.apply(EncoderDecoder(config), params, rows, start, None, return_attention=False).logits
    smoothing = seq2seq.SmoothingConfig(label_smoothing=0.0, smoothing_denominator="V")
    total, _ = seq2seq.loss(logits, rows, smoothing, model.config.pad_token_id)
    np.testing.assert_allclose(total / lengths.sum(), output.loss.item(), rtol=tolerance)


def of_one_table(gradients, config):
    """Adds up the gradients of the tables that transformers keeps apart and that are one table here."""
    tables = [name for name in gradients if name.endswith(("shared.weight", "embed_tokens.weight"))]
    if not config.share_embeddings or len(tables) == 1:
        return gradients
    rest = {name: array for name, array in gradients.items() if name not in tables}
    return {**rest, "model.shared.weight": sum(gradients[name] for name in tables)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_live(tmp_path, name):
    """Outputs and gradients equal; our export is opened without missing or unexpected tensors, with equal outputs."""
    import transformers

    model = make_model(*CASES[name])
    model.save_pretrained(tmp_path)
    config, params = read(tmp_path)
    batch, labels = make_batch(model)
    expected, gradients = run_theirs(model, batch, labels)
    output, gradient = run_ours(config, params, batch, labels)
    check(output, expected, batch)
    raw = json.loads((tmp_path / "config.json").read_text())
    special = encoder_decoders.read_special_ids(raw, tmp_path)
    check_loss(model, config, params, batch, labels, special.bos_id)
    in_bfloat16 = dataclasses.replace(config, dtype="bfloat16")
    check_loss(model, in_bfloat16, params, batch, labels, special.bos_id, tolerance=1e-2)
    encoder_decoders.save(tmp_path / "new", params, config, special, {})
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    opened, info = getattr(transformers, written["architectures"][0]).from_pretrained(
        tmp_path / "new", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert opened.generation_config.bad_words_ids == [[special.pad_id]]
    again, params_again = read(tmp_path / "new")
    assert distance(params_again, params) == 0 and again.scale_output == config.scale_output
    check(output, run_theirs(opened.eval(), batch, labels)[0], batch)
    (tmp_path / "gradient").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "gradient" / "config.json")
    save_file(of_one_table(gradients, config), tmp_path / "gradient" / "model.safetensors")
    theirs = load(tmp_path / "gradient", shapes(config))
    print(f"gradient: relative distance {distance(gradient, theirs):.1e}")
    assert jax.tree.structure(gradient) == jax.tree.structure(theirs)
    assert distance(gradient, theirs) <= 1e-5


def write_folder(folder, transformers, kind):
    """A folder with a tokenizer, random weights, and settings of which each matters."""
    import torch

    family = test_seq2seq_tokenizers.write(folder, kind)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    name = {"bart": "Bart", "mbart": "MBart", "pegasus": "Pegasus", "t5": "T5"}[family]
    pad = tokenizer.pad_token_id
    end = tokenizer.eos_token_id
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": end if "b" in family else pad}
    ids |= {} if family == "t5" else {"forced_eos_token_id": end}
    sizes = T5 if family == "t5" else BART
    model = make_model(name, {**sizes, **ids, "vocab_size": len(tokenizer)}, False)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter *= 1.0 if "embed_positions" in path else 1.5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {"num_beams": 3, "max_length": 12, "min_length": 5, "no_repeat_ngram_size": 2, "length_penalty": 2.0}
    settings |= {"early_stopping": True, "bad_words_ids": [[pad]]}
    if family in ("bart", "mbart"):
        settings["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids("<s>" if family == "bart" else "ko_KR")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bart", "mbart", "pegasus", "t5"])
def test_texts_of_published_folders(tmp_path, transformers, kind):
    """Tokenizer, model and settings of a folder give the texts of transformers, and so does our export."""
    write_folder(tmp_path, transformers, kind)
    texts = ["the old dog", "a cat sees. old bird", "hello", "구름"]
    prefix = "en_XX " if kind == "mbart" else ""
    ours = bertjax.load(tmp_path)
    generated = [record["translation"].strip() for record in ours.predict([prefix + text for text in texts])]
    assert len(set(generated)) > 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    if kind == "mbart":
        tokenizer.src_lang = "en_XX"
    for text, expected in zip(texts, generated, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        assert tokenizer.decode(model.generate(ids)[0], skip_special_tokens=True).strip() == expected
    ours.export(tmp_path / "new")
    again = bertjax.load(tmp_path / "new").predict([prefix + text for text in texts])
    assert [record["translation"].strip() for record in again] == generated
