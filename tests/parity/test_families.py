"""Families of encoders compared with transformers: outputs of padded and packed rows, gradients, and folders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build
from bertjax.interop import families, huggingface
from bertjax.interop.published import open_weights
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from bertjax.models.replaced_tokens import BertForReplacedTokens
from tests.trees import distance

pytestmark = pytest.mark.slow

VOCAB, CLASSES = 61, 5
# Special tokens are within the vocabulary; 0 is the padding.
TOKENS = {**dict.fromkeys(("bos_token_id", "cls_token_id"), 1), **dict.fromkeys(("eos_token_id", "sep_token_id"), 2)}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
RELATIVE = {"relative_attention": True, "share_att_key": True}
WITH_BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "classifier_bias", "norm_bias"), True)


def sizes(hidden, heads, layers, intermediate, **others):
    """The sizes of an encoder and other values, by their names in config.json."""
    names = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")
    return {**dict(zip(names, (hidden, heads, layers, intermediate), strict=True)), **others}


def activation(name):
    return dict.fromkeys(("hidden_activation", "classifier_activation"), name)


def rotary(base):
    return {"rope_type": "default", "rope_theta": base}


# For each name, the family and its values. All windows are smaller than the texts.
CONFIGS = {
    "bert": ("bert", sizes(32, 4, 3, 50, hidden_act="gelu_new")),
    "distilbert": ("distilbert", {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 28, "activation": "gelu"}),
    # Like the published models, with an odd width.
    "modernbert": ("modernbert", sizes(24, 3, 4, 20, local_attention=5, global_attn_every_n_layers=3, **TOKENS)),
    "modernbert with biases": (
        "modernbert",
        {
            **sizes(32, 4, 3, 18, local_attention=6, global_attn_every_n_layers=2, norm_eps=1e-3),
            "rope_parameters": {"full_attention": rotary(300.0), "sliding_attention": rotary(20.0)},
            **{"classifier_pooling": "mean", "tie_word_embeddings": False},
            **{**activation("gelu_new"), **WITH_BIASES, **TOKENS},
        },
    ),
    "modernbert of local layers": (
        "modernbert",
        {
            **sizes(12, 2, 3, 26, local_attention=4, layer_types=["sliding_attention"] * 3, classifier_pooling="mean"),
            **{**activation("silu"), **TOKENS},
        },
    ),
    "roberta": ("roberta", sizes(24, 3, 2, 30, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=3, **ENDS)),
    "xlm-roberta of two token types": ("xlm-roberta", sizes(16, 2, 3, 22, layer_norm_eps=1e-3, **ENDS)),
    "albert": ("albert", sizes(24, 3, 3, 30, embedding_size=10, **ENDS)),
    "albert of two groups": (
        "albert",
        sizes(16, 2, 4, 22, embedding_size=20, num_hidden_groups=2, hidden_act="gelu", layer_norm_eps=1e-3, **ENDS),
    ),
    "camembert": ("camembert", sizes(12, 1, 1, 14, **ENDS)),
    "nomic": ("nomic_bert", sizes(24, 3, 2, 20)),
    "nomic with GELU": (
        "nomic_bert",
        sizes(12, 2, 3, 26, hidden_act="gelu", layer_norm_eps=1e-3, type_vocab_size=3, rope_parameters=rotary(50.0)),
    ),
    "gte": ("gte", sizes(24, 3, 2, 20)),
    "gte without token types": ("gte", sizes(12, 2, 3, 26, type_vocab_size=0, rope_parameters=rotary(50.0))),
    "jina": ("jina_embeddings_v3", sizes(24, 3, 2, 20, **ENDS)),
    "jina of two token types": (
        "jina_embeddings_v3",
        sizes(12, 2, 3, 26, type_vocab_size=2, rope_parameters=rotary(50.0), **ENDS),
    ),
    "eurobert": ("eurobert", sizes(24, 6, 2, 20, num_key_value_heads=2, mask_token_id=3, **ENDS)),
    "eurobert of means": (
        "eurobert",
        {
            **sizes(12, 3, 3, 26, hidden_act="gelu", rms_norm_eps=1e-3, classifier_pooling="mean"),
            **{"rope_parameters": rotary(50.0), "mask_token_id": 3, **ENDS},
        },
    ),
    "eurobert of first tokens": ("eurobert", sizes(12, 1, 1, 26, classifier_pooling="bos", mask_token_id=3, **ENDS)),
    "modernbert decoder": ("modernbert-decoder", sizes(24, 3, 4, 20, local_attention=7, **TOKENS)),
    "modernbert decoder with biases": (
        "modernbert-decoder",
        {
            **sizes(12, 2, 3, 26, local_attention=10, tie_word_embeddings=False),
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            **{**activation("silu"), **WITH_BIASES, **TOKENS},
        },
    ),
    "mpnet": ("mpnet", sizes(24, 3, 3, 30, pad_token_id=1, **ENDS)),
    "mpnet with one head": ("mpnet", sizes(12, 1, 2, 14, layer_norm_eps=1e-3, pad_token_id=1, **ENDS)),
    "electra": ("electra", sizes(24, 3, 3, 28, embedding_size=20)),
    "electra of one size": ("electra", sizes(12, 2, 2, 14, embedding_size=12, layer_norm_eps=1e-3, type_vocab_size=3)),
    # Like the published v3 models, with buckets of several distances.
    "deberta": (
        "deberta-v2",
        {
            **sizes(24, 3, 3, 30, position_buckets=6, norm_rel_ebd="layer_norm", pos_att_type="p2c|c2p"),
            **{"position_biased_input": False, **RELATIVE},
        },
    ),
    # Like the published v2 models, and texts have distances without a row of their own.
    "deberta with a convolution": (
        "deberta-v2",
        {
            **sizes(20, 2, 2, 26, max_relative_positions=9, pos_att_type=["p2c"], layer_norm_eps=1e-3, **RELATIVE),
            **{"conv_kernel_size": 5, "conv_act": "gelu", "pooler_hidden_act": "tanh"},
        },
    ),
}
CLASSES_OF = {
    "model": "BertModel",
    "words": "BertForMaskedLM",
    "classes": "BertForSequenceClassification",
    "tokens": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
    "choices": "BertForMultipleChoice",
}
CASES = [(name, head) for name in ("bert", "distilbert", "modernbert") for head in CLASSES_OF]
CASES.remove(("bert", "model"))  # whose pooler the model for classes has, too
CASES += [("modernbert with biases", head) for head in ("words", "classes", "spans")]
CASES += [("modernbert of local layers", head) for head in ("classes", "tokens")]
CASES += [("roberta", head) for head in CLASSES_OF if head != "model"]
CASES += [("xlm-roberta of two token types", head) for head in ("words", "classes")] + [("camembert", "words")]
CASES += [("mpnet", head) for head in CLASSES_OF if head != "model"]
CASES += [("mpnet with one head", head) for head in ("words", "classes")]
CASES += [("albert", head) for head in ("words", "classes", "tokens")] + [("albert of two groups", "words")]
CASES += [("electra", head) for head in CLASSES_OF] + [("electra of one size", "words")]
CLASSES_OF["replaced"] = "BertForPreTraining"  # of ELECTRA alone
CASES += [(name, "replaced") for name in ("electra", "electra of one size")]
CASES += [(name, head) for name in ("nomic", "eurobert") for head in ("model", "words", "classes", "tokens")]
CASES += [("gte", "words"), ("gte", "classes"), ("jina", "words"), ("jina", "classes"), ("jina", "spans")]
CASES += [("nomic with GELU", "words"), ("gte without token types", "words"), ("jina of two token types", "words")]
CASES += [("eurobert of means", "classes"), ("eurobert of first tokens", "classes"), ("modernbert decoder", "model")]
CASES += [(f"modernbert decoder{more}", head) for more in ("", " with biases") for head in ("words", "classes")]
CASES += [("deberta", head) for head in CLASSES_OF if head not in ("replaced", "causal")]
CASES += [("deberta with a convolution", head) for head in ("words", "classes")]
# Keys of config.json that describe the classes or the file.
NOT_OF_THE_ENCODER = {"_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type"}

# Instances in two packed rows, by length. The rest of a row is padding.
LENGTHS, LENGTH = ((11, 7), (13, 9, 4)), 27
TEXTS = [np.random.default_rng(7).integers(5, VOCAB, n) for row in LENGTHS for n in row]


def types_of(positions):
    """The token types of all rows, which only BERT reads."""
    return np.asarray(positions) // 4 % 2


def padded():
    """Each text in its own row."""
    ids = np.zeros((len(TEXTS), LENGTH), np.int32)
    for row, text in zip(ids, TEXTS, strict=True):
        row[: len(text)] = text
    return BertInputs(ids, np.broadcast_to(types_of(np.arange(LENGTH)), ids.shape), (ids != 0).astype(np.int32))


def packed():
    """The texts of each row of `LENGTHS` one after another."""
    segments, positions = np.zeros((2, len(LENGTHS), LENGTH), np.int32)
    ids, starts = np.zeros_like(segments), np.zeros((len(LENGTHS), 3), np.int32)
    texts = iter(TEXTS)
    for row, lengths in enumerate(LENGTHS):
        for number, length in enumerate(lengths):
            start = sum(lengths[:number])
            ids[row, start : start + length] = next(texts)
            segments[row, start : start + length] = number + 1
            positions[row, start : start + length] = np.arange(length)
            starts[row, number] = start
    return BertInputs(ids, types_of(positions), segments, positions, starts)


def unpacked(rows, is_per_text):
    """The results of `packed`, one for each text."""
    found = []
    for row, lengths in zip(np.asarray(rows), LENGTHS, strict=True):
        for number, length in enumerate(lengths):
            start = sum(lengths[:number])
            found.append(row[number] if is_per_text else row[start : start + length])
    return found


def their_model(name, head, **changes):
    """A model in which no bias is 0, no norm is 1 and no attention is uniform."""
    import torch
    import transformers

    family, values = CONFIGS[name]
    labels = {"num_labels": CLASSES} if head in ("classes", "tokens") else {}
    values = {"vocab_size": VOCAB, "max_position_embeddings": 40, "pad_token_id": 0, **values, **labels, **changes}
    config = transformers.AutoConfig.for_model(family, **values, attn_implementation="eager")
    model = getattr(transformers, families.find(family).class_name(CLASSES_OF[head]))(config).eval()
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.from_numpy(rng.standard_normal(parameter.shape, np.float32))
            is_scale = "norm" in key.lower() and key.endswith("weight")
            parameter.copy_(0.2 * noise + (1.0 if is_scale else 0.0))
            if key.endswith("position_embeddings.weight") and families.find(family).counts_from_padding:
                parameter[: values["pad_token_id"] + 1] = 0  # which no token has
    return model


def their_outputs(model, inputs):
    """A result of shape [rows, ..., size]: hidden vectors or logits."""
    import torch

    ids, types, mask = (torch.tensor(np.array(each)).long() for each in inputs[:3])
    more = {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 0) > 1 else {}
    inputs = {"input_ids": ids, "attention_mask": mask, **more}
    if type(model).__name__.endswith("ForMultipleChoice"):  # the texts are the choices of one question
        return model(**{name: each[None] for name, each in inputs.items()})[0][0, :, None]
    output = model(**inputs)
    spans = ("start_logits", "end_logits")
    if type(model).__name__ == "ElectraForPreTraining":
        return output[0][..., None]
    return torch.stack([output[key] for key in spans], -1) if spans[0] in output else output[0]


def our_model(head, config):
    return {
        "model": lambda: Bert(config),
        "words": lambda: BertForPreTraining(config, predicts_next=False),
        "classes": lambda: BertForSequenceClassification(config, CLASSES, 0.1, 0),
        "tokens": lambda: BertForTokenClassification(config, CLASSES, 0.1, 0),
        "spans": lambda: BertForQuestionAnswering(config, 0),
        "choices": lambda: BertForSequenceClassification(config, 1, 0.1, 0),
        "replaced": lambda: BertForReplacedTokens(config),
    }[head]()


def call(head, config, method, first, inputs):
    """Calls `init` or `apply` of our model; returns the parameters, or the result with the shape of theirs."""
    inputs = jax.tree.map(jnp.asarray, inputs)
    places = jnp.broadcast_to(jnp.arange(LENGTH), inputs.input_ids.shape)
    arguments = (inputs, places) if head == "words" else (inputs,)
    options = {"return_attention": False} if head in ("model", "words") else {}
    output = getattr(our_model(head, config), method)(first, *arguments, deterministic=True, **options)
    if method == "init":
        return output["params"]
    found = {"model": lambda: output.hidden, "words": lambda: output.masked_lm_logits}
    found["replaced"] = lambda: output[..., None]
    return {**found, "spans": lambda: jnp.stack(output, -1)}.get(head, lambda: output)()


@functools.partial(jax.jit, static_argnums=(0, 1))
def our_results(head, config, params, of_outputs):
    """Outputs of padded rows and of packed rows, and the gradient of a weighted sum of the first."""

    def loss(params):
        output = call(head, config, "apply", {"params": params}, padded())
        return jnp.sum(output * of_outputs), output

    gradient, output = jax.grad(loss, has_aux=True)(params)
    return output, call(head, config, "apply", {"params": params}, packed()), gradient


def check(head, config, params, model, folder):
    """Compares outputs and gradients."""
    theirs, mask = their_outputs(model, padded()), padded().segment_ids
    of_outputs = np.random.default_rng(5).standard_normal(theirs.shape).astype(np.float32)
    of_outputs = of_outputs * mask[..., None] if theirs.ndim == 3 else of_outputs
    rows, in_packed, ours = our_results(head, config, params, of_outputs)
    theirs.backward(type(theirs)(of_outputs))
    real = mask.astype(bool) if theirs.ndim == 3 else slice(None)
    np.testing.assert_allclose(np.asarray(rows)[real], theirs.detach().numpy()[real], atol=2e-5)
    for one, text in zip(unpacked(in_packed, head in ("classes", "choices")), TEXTS, strict=True):
        alone = BertInputs(text[None], types_of(np.arange(len(text)))[None], np.ones((1, len(text))))
        np.testing.assert_allclose(one, their_outputs(model, alone).detach().numpy()[0], atol=2e-5)
    huggingface.write_tensors(folder, {name: each.grad.numpy() for name, each in model.named_parameters()})
    family = model.config.model_type
    first = huggingface.first_position(model.config.to_dict(), folder)
    expected, report = huggingface.load(folder, params, type(model).__name__, family, first)
    assert report == ((), ())
    if family.startswith("modernbert"):  # transformers has no norm before the first attention, and ours is not used
        expected.get("bert", expected)["encoder"]["layers"]["attention_norm"]["scale"][0] = 0.0
    assert distance(ours, expected) <= 1e-5


@pytest.mark.parametrize(("name", "head"), CASES)
def test_a_folder_in_both_directions(name, head, tmp_path):
    """transformers opens ours without missing or unexpected keys, and writes an equal config."""
    import transformers

    model, family = their_model(name, head), CONFIGS[name][0]
    model.save_pretrained(tmp_path / "theirs")
    config = build(HeadConfig, {**open_weights(tmp_path / "theirs").fields, "scan_layers": True}, "model")
    shapes = jax.eval_shape(lambda: call(head, config, "init", jax.random.key(0), padded()))
    first = huggingface.first_position(model.config.to_dict(), tmp_path)
    params, report = huggingface.load(tmp_path / "theirs", shapes, type(model).__name__, family, first)
    assert report == ((), ())
    check(head, config, params, model, tmp_path / "gradient")
    labels = [f"name {i}" for i in range(CLASSES)] if head in ("classes", "tokens") else None
    special = {"pad": model.config.pad_token_id, "cls": 1, "sep": 2, "mask": 3}
    huggingface.save(tmp_path / "ours", params, config, CLASSES_OF[head], labels, special=special, family=family)
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
    assert type(transformers.AutoConfig.from_pretrained(tmp_path / "ours")) is type(model.config)
    assert not any(info.values()), info
    for (key, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        np.testing.assert_array_equal(one.detach(), other.detach(), err_msg=key)
    before, after = model.config.to_dict(), again.config.to_dict()
    same = before.keys() - NOT_OF_THE_ENCODER
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert not labels or again.config.id2label == dict(enumerate(labels))


MASKED = ["The [MASK] sees two dogs.", "It didn't rain; [MASK] slept in Köln, 12 km away."]
PLAIN = [text.replace("[MASK]", "bird") for text in MASKED]


def write_tokenizer(folder, texts=PLAIN):
    """Writes a small byte-level BPE in the form of ModernBERT's tokenizer, and returns transformers' tokenizer.

    Words of `texts` are single tokens. The id of padding is 1, which some families need.
    """
    import tokenizers
    import transformers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "pad", "sep", "unk", "mask")}
    tokens = [tokenizers.AddedToken(each, special=True, lstrip=each == "[MASK]") for each in special.values()]
    options = {"initial_alphabet": alphabet, "special_tokens": tokens, "show_progress": False}
    tokenizer.train_from_iterator([*texts] * 3, tokenizers.trainers.BpeTrainer(vocab_size=400, **options))
    pairs = [(each, tokenizer.token_to_id(each)) for each in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=pairs
    )
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=40, **special)
    theirs.model_input_names = ["input_ids", "attention_mask"]
    theirs.save_pretrained(folder)
    return theirs
