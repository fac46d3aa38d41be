"""Our modern encoder compared with transformers' ModernBERT: padded and packed rows, gradients, and folders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.config import build
from bertjax.interop import bert_tensors, huggingface
from bertjax.interop.families import modernbert
from bertjax.interop.published import open_weights
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from tests import tiny
from tests.parity.test_bert import distance
from tests.random_params import random_params

pytestmark = pytest.mark.slow

VOCAB, CLASSES = 61, 5
# Of all configurations. Special tokens are within the vocabulary; 0 is the padding.
COMMON = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
}
# All windows are smaller than the texts, and no two sizes are equal.
CONFIGS = {
    # Like the published models, with an odd width.
    "published": {
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 4,
        "intermediate_size": 20,
        "local_attention": 5,
        "global_attn_every_n_layers": 3,
    },
    "biases": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "intermediate_size": 18,
        "local_attention": 6,
        "global_attn_every_n_layers": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
        "hidden_activation": "gelu_new",
        "classifier_activation": "gelu_new",
        "classifier_pooling": "mean",
        "tie_word_embeddings": False,
        "norm_eps": 1e-3,
        **dict.fromkeys(("attention_bias", "mlp_bias", "classifier_bias", "norm_bias"), True),
    },
    "local": {
        "hidden_size": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 26,
        "local_attention": 4,
        "layer_types": ["sliding_attention"] * 3,
        "hidden_activation": "silu",
        "classifier_activation": "silu",
        "classifier_pooling": "mean",
    },
}
CLASSES_OF = {
    "model": "BertModel",
    "words": "BertForMaskedLM",
    "classes": "BertForSequenceClassification",
    "tokens": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
}
# Opened from their folders, and written to ours.
THEIRS = [("published", "words"), *(("biases", head) for head in ("classes", "spans")), ("local", "tokens")]
OURS = [*(("published", head) for head in CLASSES_OF), ("biases", "words"), ("local", "classes")]

# Keys of config.json that describe the classes or the file.
NOT_OF_THE_ENCODER = {"_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type"}

# Instances in two packed rows, by length. The rest of a row is padding.
LENGTHS, LENGTH = ((11, 7), (13, 9, 4)), 27
TEXTS = [np.random.default_rng(7).integers(5, VOCAB, n) for row in LENGTHS for n in row]


def padded():
    """Each text in its own row: ids, and which tokens are no padding."""
    ids = np.zeros((len(TEXTS), LENGTH), np.int32)
    for row, text in zip(ids, TEXTS, strict=True):
        row[: len(text)] = text
    return ids, (ids != 0).astype(np.int32)


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
    return BertInputs(*map(jnp.asarray, (ids, np.zeros_like(ids), segments, positions, starts)))


def unpacked(rows, is_per_text):
    """The results of `packed`, one for each text."""
    found = []
    for row, lengths in zip(np.asarray(rows), LENGTHS, strict=True):
        for number, length in enumerate(lengths):
            start = sum(lengths[:number])
            found.append(row[number] if is_per_text else row[start : start + length])
    return found


# transformers.


def their_config(name, head, **changes):
    import transformers

    labels = {"classes": CLASSES, "tokens": CLASSES}.get(head, 2)
    values = {**COMMON, **CONFIGS[name], "num_labels": labels, **changes}
    return transformers.ModernBertConfig(**values, attn_implementation="eager")


def their_model(name, head, **changes):
    """A model in which no bias is 0, no norm is 1 and no attention is uniform."""
    import torch
    import transformers

    model = getattr(transformers, f"Modern{CLASSES_OF[head]}")(their_config(name, head, **changes)).eval()
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.from_numpy(rng.standard_normal(parameter.shape, np.float32))
            parameter.copy_(0.2 * noise + (1.0 if key.endswith("norm.weight") else 0.0))
    return model


def their_outputs(model, ids, mask=None):
    """A result of shape [rows, ..., size]: hidden vectors or logits."""
    import torch

    mask = None if mask is None else torch.tensor(mask).long()
    output = model(input_ids=torch.tensor(ids).long(), attention_mask=mask)
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output[0]


def weights(shape, mask):
    """Random weights of the outputs in the loss, 0 at padding."""
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    return values * mask[..., None] if len(shape) == 3 else values


# bertjax.


def our_config(folder):
    return build(HeadConfig, {**open_weights(folder).fields, "scan_layers": True}, "model")


def our_model(head, config):
    return {
        "model": lambda: Bert(config),
        "words": lambda: BertForPreTraining(config, predicts_next=False),
        "classes": lambda: BertForSequenceClassification(config, CLASSES, 0.1, 0),
        "tokens": lambda: BertForTokenClassification(config, CLASSES, 0.1, 0),
        "spans": lambda: BertForQuestionAnswering(config, 0),
    }[head]()


def call(head, config, method, first, inputs):
    """Calls `init` or `apply` of our model; returns the result with the shape of `their_outputs`."""
    places = jnp.broadcast_to(jnp.arange(LENGTH), inputs.input_ids.shape)
    arguments = (places,) if head == "words" else ()
    options = {"return_attention": False} if head in ("model", "words") else {}
    output = getattr(our_model(head, config), method)(first, inputs, *arguments, deterministic=True, **options)
    if method == "init":
        return output["params"]
    return {
        "model": lambda: output.hidden,
        "words": lambda: output.masked_lm_logits,
        "spans": lambda: jnp.stack(output, -1),
    }.get(head, lambda: output)()


@functools.partial(jax.jit, static_argnums=(0, 1))
def our_results(head, config, params, of_outputs):
    """Outputs of padded rows and of packed rows, and the gradient of a weighted sum of the first."""
    ids, mask = map(jnp.asarray, padded())

    def loss(params):
        output = call(head, config, "apply", {"params": params}, BertInputs(ids, jnp.zeros_like(ids), mask))
        return jnp.sum(output * of_outputs), output

    gradient, output = jax.grad(loss, has_aux=True)(params)
    return output, call(head, config, "apply", {"params": params}, packed()), gradient


@functools.cache
def shapes(head, config):
    ids = jnp.zeros((1, LENGTH), jnp.int32)
    inputs = BertInputs(ids, ids, ids)
    return jax.eval_shape(lambda: call(head, config, "init", jax.random.key(0), inputs))


def load(folder, head):
    config = our_config(folder)
    params, report = huggingface.load(folder, shapes(head, config), f"Modern{CLASSES_OF[head]}", family="modernbert")
    assert report == ((), ())
    return config, params


def check(head, config, params, model):
    """Compares outputs and gradients."""
    ids, mask = padded()
    theirs = their_outputs(model, ids, mask)
    of_outputs = weights(theirs.shape, mask)
    rows, in_packed, ours = our_results(head, config, params, of_outputs)
    theirs.backward(type(theirs)(of_outputs))
    real = mask.astype(bool) if theirs.ndim == 3 else slice(None)
    difference = np.abs(np.asarray(rows) - theirs.detach().numpy())[real].max()
    print(f"padded: max abs difference {difference:.1e} of {theirs.detach().abs().max():.1f}")
    assert difference <= 2e-5
    alone = [their_outputs(model, text[None]).detach().numpy()[0] for text in TEXTS]
    pairs = zip(unpacked(in_packed, head == "classes"), alone, strict=True)
    difference = max(np.abs(one - other).max() for one, other in pairs)
    print(f"packed: max abs difference {difference:.1e}")
    assert difference <= 2e-5
    tensors = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    named = modernbert.to_canonical(tensors, params, type(model).__name__, "gradient")
    expected, report = bert_tensors.assemble(bert_tensors.canonical(named, "gradient"), params, "gradient")
    assert report == ((), ())
    # transformers has no norm before the first attention, and ours is not used.
    expected.get("bert", expected)["encoder"]["layers"]["attention_norm"]["scale"][0] = 0.0
    error = distance(ours, expected)
    print(f"gradient: relative difference {error:.1e}")
    assert error <= 1e-5


@pytest.mark.parametrize(("name", "head"), THEIRS)
def test_outputs_and_gradient(name, head, tmp_path):
    model = their_model(name, head)
    model.save_pretrained(tmp_path)
    config, params = load(tmp_path, head)
    assert config.local_attention // 2 < min(map(len, TEXTS))
    check(head, config, params, model)


@pytest.mark.parametrize(("name", "head"), OURS)
def test_our_folders_in_transformers(name, head, tmp_path):
    """transformers opens our folders without missing or unexpected keys, with equal outputs."""
    import transformers

    their_config(name, head).save_pretrained(tmp_path / "theirs")
    config = our_config(tmp_path / "theirs")
    params = random_params(lambda _: shapes(head, config), seed=4, scale=0.2)
    norm = params.get("bert", params)["encoder"]["layers"]["attention_norm"]  # not used in the first layer
    norm["scale"][0], norm.get("bias", np.zeros(1))[0] = 1.0, 0.0
    labels = [f"name {i}" for i in range(CLASSES)] if head in ("classes", "tokens") else None
    special = {"pad": 0, "cls": 1, "sep": 2}
    huggingface.save(tmp_path / "ours", params, config, CLASSES_OF[head], labels, special=special, family="modernbert")
    autos = {
        "model": "AutoModel",
        "words": "AutoModelForMaskedLM",
        "classes": "AutoModelForSequenceClassification",
        "tokens": "AutoModelForTokenClassification",
        "spans": "AutoModelForQuestionAnswering",
    }
    auto = getattr(transformers, autos[head])
    model, info = auto.from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
    assert type(model).__name__ == f"Modern{CLASSES_OF[head]}"
    assert not any(info.values()), info
    check(head, config, params, model.eval())
    written, again = model.config.to_dict(), load(tmp_path / "ours", head)
    model.save_pretrained(tmp_path / "again")
    assert again[0] == config == our_config(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, again[1], params)
    same = their_config(name, head).to_dict().keys() - NOT_OF_THE_ENCODER
    assert {key: written[key] for key in same} == {key: their_config(name, head).to_dict()[key] for key in same}
    if labels:
        assert model.config.id2label == dict(enumerate(labels))


MASKED = ["The [MASK] sees two dogs.", "It didn't rain; [MASK] slept in Köln, 12 km away."]
PLAIN = [text.replace("[MASK]", "bird") for text in MASKED]


def write_tokenizer(folder):
    """Writes a small byte-level BPE in the form of ModernBERT's tokenizer, and returns transformers' tokenizer."""
    import tokenizers
    import transformers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(PLAIN * 3, trainer)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    tokens = [tokenizers.AddedToken(each, special=True, lstrip=each == "[MASK]") for each in special.values()]
    tokenizer.add_special_tokens(tokens)
    pairs = [(each, tokenizer.token_to_id(each)) for each in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=pairs
    )
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=40, **special)
    theirs.model_input_names = ["input_ids", "attention_mask"]
    theirs.save_pretrained(folder)
    return theirs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns a function that writes a folder; it returns transformers' model and tokenizer, and ours of the folder."""
    folder = tmp_path_factory.mktemp("whole")

    def write(head):
        tokenizer = write_tokenizer(folder / head)
        changes = {
            "vocab_size": len(tokenizer),
            **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")},
        }
        model = their_model("published", head, **changes)
        model.save_pretrained(folder / head)
        with tiny.few_devices(1):
            return model, tokenizer, bertjax.load(folder / head)

    return write


def test_a_whole_folder_fills_masks_as_the_pipeline(whole):
    import transformers

    model, tokenizer, ours = whole("words")
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)
    for record, expected in zip(ours.predict(MASKED), fill(MASKED), strict=True):
        (mask,) = record["masks"]
        assert mask["tokens"] == ours.tokenizer.names([each["token"] for each in expected])
        np.testing.assert_allclose(mask["probabilities"], [each["score"] for each in expected], atol=2e-6)
