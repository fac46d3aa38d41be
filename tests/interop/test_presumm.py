"""PreSumm and BertSum checkpoints: golden ones written by their own code, and ones that are made by hand from these."""

import functools
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.config import build_part, part
from bertjax.errors import UserError
from bertjax.experiments.bertsum_abs import ModelConfig
from bertjax.interop import huggingface
from bertjax.interop.families import presumm
from bertjax.interop.formats import torch_pickle
from bertjax.interop.published import MODEL_DEFAULTS, open_weights
from bertjax.models.bert import Bert, BertInputs, HeadConfig
from bertjax.models.bertsum_abs import BertSumAbs, BertSumAbsConfig
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import Seq2SeqInputs
from bertjax.tasks import completion, pretrained
from tests.interop.formats.test_torch_pickle import name, plain, storage, tensor, text, write_zip
from tests.parity.test_presumm import ABSENT, CHOICES, GOLDEN, SCORERS, model_of, read, shapes
from tests.random_params import random_params
from tests.trees import assert_equal

FIXED = {
    "vocab_size": 37,
    "hidden_size": 12,
    "max_positions": 40,
    "type_vocab_size": 2,
    "intermediate_size": 14,
    "norm_eps": 1e-12,
    "activation": "gelu",
    "norm": "post",
    "direction": "both",
}
KNOWN = {**MODEL_DEFAULTS, **FIXED}  # in the description of a folder
DESCRIBED = {
    "transformer": {"num_layers": 2, "scorer_layers": 2, "scorer_heads": 4, "scorer_intermediate": 10},
    "classifier": {"num_layers": 1},
    "rnn": {"num_layers": 1, "rnn_compat": True},
}
PLACES = "ext_layer.pos_emb.pe"


@functools.cache
def tensors(scorer):
    """The tensors of a golden model."""
    return torch_pickle.read(GOLDEN / f"{scorer}.pt", presumm._INERT)["model"]


def options(**values):
    """The opcodes of an argparse.Namespace."""
    return name("argparse.Namespace") + b")\x81" + plain(values) + b"b"


def write(folder, model, opt=b"N", optim=b"N"):
    """Saves tensors like a PreSumm trainer; `opt` and `optim` are opcodes."""
    entries = {f"data/{i}": np.ascontiguousarray(array).tobytes() for i, array in enumerate(model.values())}
    pickled = b"\x80\x02}(" + text("model") + b"}("
    for i, (key, array) in enumerate(model.items()):
        kind = {"float32": "Float", "uint8": "Byte", "int64": "Long"}[array.dtype.name]
        stored = storage(str(i), f"torch.{kind}Storage", array.size)
        strides = tuple(stride // array.itemsize for stride in np.ascontiguousarray(array).strides)
        pickled += text(key) + tensor(0, array.shape, strides, stored)
    pickled += b"u" + text("opt") + opt + text("optim") + optim + b"u."
    return write_zip(folder, pickled, entries).rename(folder / "model_step_1.pt")


def like(scorer, **changes):
    """The shapes of the model of a golden file, with changes."""
    return shapes(model_of(GOLDEN / f"{scorer}.pt", **changes))


def load(path, like):
    return presumm.load(presumm.read(path), like)


@pytest.mark.parametrize("scorer", SCORERS)
def test_description_of_a_checkpoint(scorer):
    expected = {**FIXED, **DESCRIBED[scorer], "scorer": scorer, "sentence_pooling": "cls"}
    assert open_weights(GOLDEN / f"{scorer}.pt").fields == expected


@pytest.mark.parametrize(
    ("scorer", "opt", "expected"),
    [
        ("transformer", options(use_interval=True), {"words": "spaces", "interval_segments": True}),
        ("transformer", options(use_interval=False), {"words": "spaces", "interval_segments": False}),
        ("rnn", options(use_interval=1), {"words": "bert"}),
        ("classifier", b"N", {"words": "bert"}),
    ],
)
def test_row_settings_of_a_checkpoint(tmp_path, scorer, opt, expected):
    """PreSumm's code splits words at white space. BertSum's code, whose scorer is named `encoder`, splits like BERT."""
    assert open_weights(write(tmp_path, tensors(scorer), opt)).rows == expected


def test_row_settings_of_an_encoder_without_head(tmp_path):
    bert = {key: array for key, array in tensors("transformer").items() if key.startswith("bert.")}
    assert open_weights(write(tmp_path, bert)).rows == {}


@pytest.mark.parametrize("values", [{}, {"bertsum": []}, {"bertsum": {}}, {"bertsum": {"rows": "x"}}])
def test_folders_without_row_settings(values):
    assert presumm.read_rows(values) == {}


def test_unused_tensors_of_a_scorer_are_reported():
    _, report = load(GOLDEN / "transformer.pt", like("transformer"))
    assert report == ((), ("bert.pooler.dense.bias", "bert.pooler.dense.weight"))


@pytest.mark.parametrize(
    ("opt", "expected"),
    [
        (options(ext_heads=4), {"scorer_heads": 4}),
        (options(heads=2, encoder="transformer"), {"scorer_heads": 2}),
        (options(encoder="bert", task="ext"), {}),
        (options(encoder="baseline", task="ext", ext_heads=6), {"num_heads": 6, "scorer_heads": 6}),
        (options(encoder="baseline", task="abs"), {"num_heads": 8}),
        (b"N", {}),
        (plain({"heads": 3}), {}),
    ],
)
def test_options_that_determine_heads(tmp_path, opt, expected):
    found = open_weights(write(tmp_path, tensors("transformer"), opt)).fields
    assert {key: value for key, value in found.items() if key.endswith("heads")} == expected


@pytest.mark.parametrize(
    ("opt", "got"),
    [
        (plain("4"), "str"),
        (plain(True), "bool"),
        (tensor(stored=storage("0", size=6)), "ndarray"),
        (b"]" * 10_000 + b"a" * 9_999, "list"),  # deeper than the stack
    ],
)
def test_options_of_another_type(tmp_path, opt, got):
    model = {"first": np.zeros(6, np.float32), **tensors("transformer")}
    opt = name("argparse.Namespace") + b")\x81}(" + text("encoder") + opt + text("ext_heads") + opt + b"ub"
    with pytest.raises(UserError, match=rf"model_step_1.pt: opt.ext_heads: got {got}; expected an int"):
        _ = open_weights(write(tmp_path, model, opt)).fields


def test_heads_have_width_64_as_in_published_models(tmp_path):
    wide = {key: np.zeros((128, 128), np.float32) for key, array in tensors("rnn").items() if array.ndim == 2}
    assert open_weights(write(tmp_path, tensors("rnn") | wide)).fields["num_heads"] == 2


def test_a_mismatch_of_scorers():
    for scorer in SCORERS:
        wanted = "rnn" if scorer != "rnn" else "transformer"
        message = f"{scorer}.pt: scorer: got {scorer}; expected {wanted}, as in model.scorer. Fix: set --config"
        with pytest.raises(UserError, match=message):
            load(GOLDEN / f"{scorer}.pt", like(wanted, num_layers=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scorer_layers": 1}, "tensors: got 16 unknown: ext_layer.transformer_inter.1.feed_forward.layer_norm.bias, "),
        ({"scorer_layers": 3}, r"ext_layer.transformer_inter.2.self_attn.linear_\w+.\w+: got no such tensor"),
        ({"scorer_intermediate": 9}, r"ext_layer.*feed_forward.w_\d.\w+: got \(.*10.*\); expected shape \(.*9.*\)"),
        ({"num_layers": 1}, r"tensors: got 16 unknown: bert.encoder.layer.1"),
        ({"vocab_size": 38}, r"bert.*word_embeddings.weight: got \(37, 12\); expected shape \(38, 12\)"),
    ],
)
def test_a_model_of_other_sizes(changes, message):
    with pytest.raises(UserError, match=rf"transformer.pt: {message}"):
        load(GOLDEN / "transformer.pt", like("transformer", **changes))


def without(key):
    return {name: array for name, array in tensors("transformer").items() if name != key}


@pytest.mark.parametrize(
    ("key", "array", "message"),
    [
        ("ext_layer.wo.bias", None, "got no such tensor"),
        ("bert.model.embeddings.LayerNorm.bias", None, "got no such tensor"),
        ("ext_layer.wo.weight", np.zeros((1, 12), np.int64), "got int64; expected float32, float16 or bfloat16"),
        (PLACES, np.zeros((1, 16, 12), np.float32), "got numbers that differ by up to 1; expected sinusoids"),
        (PLACES, np.full((1, 16, 12), np.nan, np.float32), "got numbers that differ by up to nan"),
        (PLACES, np.zeros((16, 12), np.float32), r"got shape \(16, 12\); expected shape \(1, positions, hidden size\)"),
        (PLACES, np.zeros((1, 2**40, 0), np.float32), r"got shape \(1, 1099511627776, 0\)"),
        ("extra.weight", np.zeros(3, np.float32), "tensors: got 1 unknown: extra.weight"),
    ],
)
def test_damaged_tensors(tmp_path, key, array, message):
    model = without(key) if array is None else {**tensors("transformer"), key: array}
    what = "" if message.startswith("tensors") else f"{key.replace('model.', '')}: "
    with pytest.raises(UserError, match=f"pt: {what}{message}"):
        load(write(tmp_path, model), like("transformer"))


@pytest.mark.parametrize(
    "key", ["bert.model.embeddings.word_embeddings.weight", "bert.model.encoder.layer.0.intermediate.dense.weight"]
)
def test_a_checkpoint_without_bert_is_refused(tmp_path, key):
    message = rf"got no matrix {key.replace('model.', '')}; expected a checkpoint of PreSumm or BertSum"
    for model in (without(key), {**without(key), key: np.zeros(5, np.float32)}):
        with pytest.raises(UserError, match=message):
            _ = open_weights(write(tmp_path, model)).fields


@pytest.mark.parametrize(
    ("pickled", "got"),
    [
        (b"]" + tensor() + b"a.", "list"),
        (b"}" + text("state_dict") + tensor() + b"s.", "keys state_dict"),
        (b"}" + text("model") + tensor() + b"s.", "ndarray"),
        (b"}" + text("model") + plain({"a": 1}) + b"s.", "int"),
    ],
)
def test_other_files_of_torch(tmp_path, pickled, got):
    with pytest.raises(UserError, match=rf"weights.bin.*: got {got}; expected a"):
        presumm.read(write_zip(tmp_path, pickled))


def test_the_encoder_of_an_abstractive_model_is_loaded(tmp_path):
    decoder = {
        "decoder.embeddings.weight": np.zeros((37, 12), np.float32),
        "decoder.pos_emb.pe": sinusoids(20, 12, "interleaved")[None],
        "decoder.transformer_layers.0.mask": np.zeros((1, 50, 50), np.uint8),
        "generator.0.bias": np.zeros(37, np.float32),
    }
    encoder = {key: array for key, array in tensors("transformer").items() if key.startswith("bert.")}
    path = write(tmp_path, {**encoder, **decoder})
    assert "scorer" not in open_weights(path).fields
    params, report = load(path, like("transformer"))
    assert report.missing == ("scorer",)
    assert set(report.unused) >= {"decoder.embeddings.weight", "generator.0.bias"}
    assert not any("mask" in name or "pos_emb" in name for name in report.unused)
    assert_equal(params["bert"], load(GOLDEN / "transformer.pt", like("transformer"))[0]["bert"])


def abstractive(path):
    """A random model with one decoder layer, and the encoder of a golden file."""
    head = {"decoder_layers": 1, "decoder_heads": 2, "decoder_intermediate": 5, "decoder_dropout": 0.0}
    config = build_part(ModelConfig, {**open_weights(path).fields, **CHOICES, **head}, "model")
    model = BertSumAbs(part(HeadConfig, config), part(BertSumAbsConfig, config))
    init = functools.partial(model.init, deterministic=True, return_attention=False)
    return model, random_params(init, Seq2SeqInputs(*[np.zeros((1, 1), np.int32)] * 4))["params"]


def test_an_abstractive_model_starts_from_an_extractive_one(caplog):
    """BertSumExtAbs uses only the encoder."""
    _, params = abstractive(GOLDEN / "rnn.pt")
    started = pretrained.warm_start(params, open_weights(GOLDEN / "rnn.pt"))
    modules = [message.split(" ")[1] for message in caplog.messages]
    assert sorted(modules) == ["bias", "decoder", "target_embeddings"]
    assert_equal(started["bert"], load(GOLDEN / "rnn.pt", like("rnn"))[0]["bert"])
    assert_equal(started["decoder"], params["decoder"])


def test_a_decoder_of_another_size(tmp_path):
    model, params = abstractive(GOLDEN / "rnn.pt")
    presumm.save(tmp_path, params, model.config, model.head, {})
    found = huggingface.read_tensors(tmp_path)
    extra = {key.replace("layers.0", "layers.1"): array for key, array in found.items() if "decoder.trans" in key}
    path = write(tmp_path, {**found, **extra}, options(dec_heads=2))
    found = open_weights(path).fields
    assert {key: value for key, value in found.items() if key.startswith("decoder")} == {
        "decoder_layers": 2, "decoder_heads": 2, "decoder_intermediate": 5
    }  # fmt: skip
    with pytest.raises(UserError, match=r"got 26 unknown: decoder.transformer_layers.1.context_attn.final_linear.bias"):
        load(path, params)


def test_bert_is_loaded_from_a_summarizer():
    config = model_of(GOLDEN / "rnn.pt").config
    ids = np.zeros((1, 1), np.int32)
    init = functools.partial(Bert(config, pooler_activation="tanh").init, deterministic=True, return_attention=False)
    shapes = jax.eval_shape(init, jax.random.key(0), BertInputs(ids, ids, ids))["params"]
    params, report = load(GOLDEN / "rnn.pt", shapes)
    np.testing.assert_array_equal(params["pooler"]["kernel"], tensors("rnn")["bert.model.pooler.dense.weight"].T)
    assert "ext_layer.rnn.hidden0.0.weight_ih" in report.unused


@pytest.mark.parametrize(("scorer", "family"), [*((scorer, "bert") for scorer in SCORERS), ("rnn", "roberta")])
def test_round_trip(tmp_path, scorer, family):
    model, params = read(GOLDEN / f"{scorer}.pt")
    rows, of_encoder = {"words": "spaces", "interval_segments": False}, {"family": family, "special": {"pad": 1}}
    presumm.save(tmp_path, params, model.config, model.head, rows, **of_encoder)
    found = open_weights(tmp_path)
    assert (found.family, found.experiment, found.fields["max_positions"]) == (family, "bertsum_ext", 40)
    loaded, missing = found.load(shapes(model))
    assert not missing
    assert_equal(loaded, params)
    assert found.rows == {"words": "spaces", "interval_segments": False}
    head = {key: getattr(model.head, key) for key in ("scorer", *(key for key in ABSENT), "scorer_dropout")}
    assert presumm.read_head(found.config, tmp_path) == head
    del found.config["bertsum"]["sentence_pooling"]  # as in folders without this key
    assert presumm.read_head(found.config, tmp_path)["sentence_pooling"] == "cls"
    # Tensors have the names of PreSumm and transformers.
    renamed = {re.sub("^encoder", "ext_layer", key.replace("bert.model.", f"{family}.")) for key in tensors(scorer)}
    renamed -= {f"{family}.pooler.dense.weight", f"{family}.pooler.dense.bias", "ext_layer.pos_emb.pe"}
    assert set(huggingface.read_tensors(tmp_path)) == renamed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"config.json: bertsum: got \[\]; expected an object with options"),
        ({"scorer": "rnn"}, r"config.json: scorer_layers: got no value; expected a value of type int"),
    ],
)
def test_damaged_options_of_a_scorer(values, message):
    with pytest.raises(UserError, match=message):
        presumm.read_head({"bertsum": values}, Path("config.json"))


def resolved(path, model, vocab_file="vocab.txt", lowercase=True, **options):
    """Resolves a config that sets only the arguments."""
    data = {"vocab_file": vocab_file, "lowercase": lowercase}
    config = {"experiment": "bertsum_ext", "init_from": str(path), "model": model, "data": data}
    return completion.bert(config, open_weights(path), **options)


def sizes(**changes):
    return {**dict.fromkeys([*FIXED, "num_layers", "num_heads", "scorer", *ABSENT]), **changes}


def test_init_from_a_checkpoint():
    path, absent = GOLDEN / "transformer.pt", {"rnn_compat": False, "sentence_pooling": "cls"}
    found = resolved(path, sizes(num_heads=3, **absent))
    own = {**DESCRIBED["transformer"], **absent, "scorer": "transformer", "num_heads": 3, "family": "bert"}
    assert found["model"] == {**KNOWN, **own}
    assert found["data"]["vocab_file"] == "vocab.txt"
    with pytest.raises(UserError, match=r"model\.scorer: got classifier; expected transformer, as in init_from"):
        resolved(path, sizes(num_heads=3, scorer="classifier"))
    with pytest.raises(UserError, match=r"model\.num_heads is not set"):
        resolved(path, sizes(**absent))


def test_the_published_vocabulary_is_uncased(tmp_path):
    words = np.zeros((30522, 12), np.float32)
    model = {**tensors("rnn"), "bert.model.embeddings.word_embeddings.weight": words}
    assert open_weights(write(tmp_path, model)).lowercase is True
    assert open_weights(GOLDEN / "rnn.pt").lowercase is None


def fresh(model):
    ids = np.zeros((1, 1), np.int32)
    inputs = BertInputs(ids, ids, ids, cls_positions=ids)
    return random_params(functools.partial(model.init, deterministic=True), inputs, ids)["params"]


@pytest.mark.parametrize("how", ["repeat_last", "tile"])
def test_more_positions(how):
    longer, weights = model_of(GOLDEN / "rnn.pt", max_positions=90), open_weights(GOLDEN / "rnn.pt")
    params = pretrained.warm_start(fresh(longer), weights, positions=how)
    _, published = read(GOLDEN / "rnn.pt")
    old = published["bert"]["embeddings"]["position_embeddings"]
    rows = np.minimum(np.arange(90), 39) if how == "repeat_last" else np.arange(90) % 40
    np.testing.assert_array_equal(params["bert"]["embeddings"]["position_embeddings"], old[rows])
    assert_equal(params["scorer"], published["scorer"])
    with pytest.raises(UserError, match=r"position_embeddings.weight: got \(40, 12\); expected shape \(90, 12\)"):
        pretrained.warm_start(fresh(longer), weights)


def test_more_positions_must_be_requested():
    given = sizes(**{**ABSENT, "num_heads": 3, "rnn_compat": True, "max_positions": 90})
    with pytest.raises(UserError, match=r"model\.max_positions: got 90; expected 40, as in init_from"):
        resolved(GOLDEN / "rnn.pt", given)
    for wanted, expected in ((90, 90), (None, 40)):
        found = resolved(GOLDEN / "rnn.pt", {**given, "max_positions": wanted}, extends_positions=True)
        assert found["model"]["max_positions"] == expected


def test_extending_positions():
    params = {"bert": {"embeddings": {"position_embeddings": np.arange(3.0)[:, None], "a": 1}, "b": 2}, "c": 3}
    longer = pretrained.extend_positions(params, 3, 5, "repeat_last")
    assert longer["bert"]["embeddings"].pop("position_embeddings")[:, 0].tolist() == [0, 1, 2, 2, 2]
    assert longer == {"bert": {"embeddings": {"a": 1}, "b": 2}, "c": 3}
    with pytest.raises(UserError, match=r"max_positions: got 2; expected at least 3, the positions of the pretrained"):
        pretrained.extend_positions(params, 3, 2, "tile")
