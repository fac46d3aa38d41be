import functools
import io
import json
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.interop import encoder_decoders, marian_tokenizers
from bertjax.interop.published import open_weights
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Seq2SeqInputs
from tests.trees import assert_equal

CHOICES = {"scan_layers": True}
# The config of an OPUS-MT model, including keys that have no effect here.
RAW = {
    "model_type": "marian",
    "architectures": ["MarianMTModel"],
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "attention_dropout": 0.0,
    "bad_words_ids": [[12]],
    "d_model": 8,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 10,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 3,
    "decoder_start_token_id": 12,
    "dropout": 0.1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 10,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 2,
    "eos_token_id": 0,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_position_embeddings": 9,
    "normalize_before": False,
    "pad_token_id": 12,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "vocab_size": 13,
}
SPECIAL = encoder_decoders.SpecialIds(pad_id=12, bos_id=12, eos_id=0)
# Whether embeddings are shared, and whether the output is tied.
LAYOUTS = [(True, True), (True, False), (False, True), (False, False)]


def write_config(folder, remove=(), **changes):
    values = {key: value for key, value in {**RAW, **changes}.items() if key not in remove}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def make_config(share=True, tie=True, **changes):
    return EncoderDecoderConfig(
        **{
            **CHOICES,
            **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.1),
            **{"hidden_size": 8, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 2, "intermediate_size": 10},
            **{"activation": "silu", "norm": "post", "norm_eps": 1e-5, "initializer_range": 0.02, "logits_bias": True},
            **{"positions": "sinusoidal", "sinusoid_layout": "deinterleaved", "max_positions": 9},
            **{"source_vocab_size": 13, "target_vocab_size": 13 if share else 15, "scale_embeddings": True},
            **{"share_embeddings": share, "tie_output": tie},
            **changes,
        }
    )


@functools.cache
def shapes(config):
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(EncoderDecoder(config).init, deterministic=True, return_attention=False)
    return jax.eval_shape(init, jax.random.key(0), Seq2SeqInputs(ids, ids, ids, ids))["params"]


@functools.cache
def random_params(config):
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes(config))


@pytest.fixture
def folder(tmp_path):
    """The folder of a small model with shared embeddings."""
    encoder_decoders.save(tmp_path, random_params(make_config()), make_config(), SPECIAL, {}, seq_len=16)
    return tmp_path


def read_config(folder):
    return encoder_decoders.read_config(open_weights(folder).config, folder)


def read_special_ids(folder):
    return encoder_decoders.read_special_ids(open_weights(folder).config, folder)


def load(folder, like):
    return open_weights(folder).load(like)[0]


def rewrite(folder, change):
    """Changes the tensors of a folder. `change` maps tensors by name to new ones."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")
    return folder


def test_read_config(folder):
    values = {**read_config(write_config(folder)), **CHOICES}
    assert build(EncoderDecoderConfig, values, "model") == make_config(attention_dropout=0.0, activation_dropout=0.0)


def test_ties_follow_the_tensors(folder):
    """transformers 5 writes `tie_word_embeddings: true` for T5 whose output has a table of its own."""

    def separate(tensors):
        table = tensors.pop("model.shared.weight")
        return {
            **tensors,
            "model.encoder.embed_tokens.weight": table,
            "model.decoder.embed_tokens.weight": table + 1,
            "lm_head.weight": table + 2,
        }

    rewrite(folder, separate)
    values = read_config(write_config(folder, share_encoder_decoder_embeddings=True, tie_word_embeddings=True))
    assert not values["share_embeddings"] and not values["tie_output"]
    params = load(folder, shapes(make_config(share_embeddings=False, tie_output=False, target_vocab_size=13)))
    np.testing.assert_allclose(params["output"].T, params["source_embeddings"] + 2)
    np.testing.assert_allclose(params["target_embeddings"], params["source_embeddings"] + 1)


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (["model.shared.weight"], {}, "tensors: got no such tensor; expected model.shared.weight, or model.encoder"),
        ([], {"tie_word_embeddings": False}, "tensors: got no such tensor; expected lm_head.weight. Fix: download"),
    ],
)
def test_a_missing_table_is_no_tie(folder, names, changes, message):
    rewrite(folder, lambda tensors: {name: array for name, array in tensors.items() if name not in names})
    with pytest.raises(UserError, match=message):
        read_config(write_config(folder, **changes))


def test_special_ids(tmp_path):
    assert read_special_ids(write_config(tmp_path)) == SPECIAL
    with pytest.raises(UserError, match=r"pad_token_id: got None; expected a value of type int. Fix: correct the key"):
        read_special_ids(write_config(tmp_path, pad_token_id=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"remove": ("model_type",)}, "model_type: got no value"),
        ({"activation_function": "tanh"}, "activation_function: got tanh; expected one of gelu, "),
        ({"normalize_before": True}, "normalize_before: got True; expected False"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads: got 4; expected 2, as in encoder_attention_heads"),
        ({"remove": ("d_model",)}, "d_model: got no value; expected a value of type int"),
        ({"architectures": ["MarianForCausalLM"]}, "architectures: got MarianForCausalLM; expected MarianMTModel"),
        ({"scale_embedding": 1}, "scale_embedding: got 1; expected a value of type bool"),
    ],
)
def test_other_models_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        read_config(write_config(tmp_path, **changes))


def test_another_family_is_named_before_its_vocabulary_is_read(tmp_path):
    write_config(tmp_path, model_type="umt5")
    with pytest.raises(UserError, match=r"config.json: model_type: got umt5; expected .*, t5"):
        open_weights(tmp_path)


@pytest.mark.parametrize(("share", "tie"), LAYOUTS)
def test_saved_parameters_are_loaded_unchanged(tmp_path, share, tie):
    config = make_config(share, tie)
    params = random_params(config)
    encoder_decoders.save(tmp_path, params, config, SPECIAL, {})
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"config.json", "generation_config.json", "model.safetensors"}
    values = read_config(tmp_path)
    again = build(EncoderDecoderConfig, {**values, **CHOICES}, "model")
    assert read_special_ids(tmp_path) == SPECIAL
    assert again == config
    assert_equal(load(tmp_path, shapes(again)), params)


def test_the_source_table_contains_the_padding_id_of_the_target(tmp_path):
    config = make_config(share=False)
    special = SPECIAL._replace(pad_id=14)
    params = random_params(config)
    encoder_decoders.save(tmp_path, params, config, special, {})
    read = read_config(tmp_path)
    assert (read["source_vocab_size"], read["target_vocab_size"]) == (15, 15)
    table = load_file(tmp_path / "model.safetensors")["model.encoder.embed_tokens.weight"]
    np.testing.assert_array_equal(table[:13], params["source_embeddings"])
    assert not table[13:].any()


def test_without_bias_zeros_are_written_and_read(tmp_path):
    config = make_config(logits_bias=False)
    encoder_decoders.save(tmp_path, random_params(config), config, SPECIAL, {})
    assert not load_file(tmp_path / "model.safetensors")["final_logits_bias"].any()
    rewrite(tmp_path, lambda tensors: {name: t for name, t in tensors.items() if name != "final_logits_bias"})
    loaded = load(tmp_path, shapes(make_config()))
    assert loaded["bias"].shape == (13,) and not loaded["bias"].any()


def test_repeated_tables_and_positions_are_accepted(folder):
    def old(tensors):
        table = tensors["model.shared.weight"]
        names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        positions = sinusoids(9, 8, "deinterleaved").astype(np.float16)
        return {
            **tensors,
            **{name: table.copy() for name in names},
            **{f"model.{side}.embed_positions.weight": positions.copy() for side in ("encoder", "decoder")},
        }

    loaded = load(rewrite(folder, old), shapes(make_config()))
    assert_equal(loaded, random_params(make_config()))


def test_one_table_under_another_name(folder):
    def renamed(tensors):
        return {name.replace("model.shared", "model.encoder.embed_tokens"): t for name, t in tensors.items()}

    assert_equal(load(rewrite(folder, renamed), shapes(make_config())), random_params(make_config()))


FC1 = "model.encoder.layers.1.fc1.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != FC1}, f"{FC1}: got no such tensor; expected shape (10, 8)."),
        (lambda t: {**t, FC1: t[FC1].T.copy()}, f"{FC1}: got (8, 10); expected shape (10, 8). Fix: use a complete"),
        (lambda t: {**t, "a.b": t[FC1]}, "tensors: got 1 unknown: a.b; expected only tensors of a MarianMTModel. Fix:"),
        (lambda t: {**t, FC1: t[FC1].astype(int)}, f"{FC1}: got int64; expected float32, float16 or bfloat16"),
        (
            lambda t: {**t, "model.encoder.embed_positions.weight": np.ones((9, 8), np.float32)},
            "expected sinusoids, all sines before all cosines. Fix: use a model",
        ),
        (
            lambda t: {**t, "model.decoder.embed_positions.weight": np.ones((8, 8), np.float32)},
            "embed_positions.weight: got shape (8, 8); expected shape (9, 8), as in config.json",
        ),
    ],
)
def test_wrong_tensors_are_named(folder, change, message):
    with pytest.raises(UserError) as error:
        load(rewrite(folder, change), shapes(make_config()))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("norm_eps", 1e-6, "1e-05"),
        ("key_size", 2, "0"),
        ("num_key_value_heads", 1, "0"),
        ("gated", True, "False"),
        ("sinusoid_layout", "interleaved", "deinterleaved"),
    ],
)
def test_options_that_marian_lacks_are_not_written(tmp_path, key, value, expected):
    config = make_config(**{key: value})
    with pytest.raises(UserError, match=f"model.{key}: got {value}; expected {expected}, the only value of Marian"):
        encoder_decoders.save(tmp_path / "new", random_params(config), config, SPECIAL, {})
    assert not (tmp_path / "new").exists()


def test_separate_tables_are_not_written_for_a_family_with_one(tmp_path):
    """Pre-norm with sinusoids is PEGASUS, in which transformers would tie the output to a table that is missing."""
    config = make_config(share=False, norm="pre")
    with pytest.raises(UserError, match=r"model\.share_embeddings: got False; expected True, .* of PEGASUS"):
        encoder_decoders.save(tmp_path / "new", random_params(config), config, SPECIAL, {})
    assert not (tmp_path / "new").exists()


TEXTS = ["A dog runs over the grass.", "Two men sit at a table.", "Ein Hund läuft.", "Zwei Männer sitzen am Tisch."]


@functools.cache
def train_sentencepiece(size):
    model = io.BytesIO()
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20), model_writer=model, vocab_size=size, minloglevel=2, num_threads=1
    )
    return model.getvalue()


def write_vocabularies(folder, separate=False):
    """Writes vocabularies like OPUS: ids differ from SentencePiece's; the end is first and the padding last."""
    import sentencepiece

    models = {"source.spm": train_sentencepiece(36), "target.spm": train_sentencepiece(37)}
    for name, model in models.items():
        (folder / name).write_bytes(model)
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models.values()]
    both = [[each.id_to_piece(i) for i in range(3, each.get_piece_size())] for each in processors]
    joint = sorted({*both[0], *both[1]})
    sides = {"vocab.json": both[0], "target_vocab.json": both[1]} if separate else {"vocab.json": joint}
    for name, pieces in sides.items():
        tokens = ["</s>", "<unk>", *pieces, ">>deu<<", "<pad>"]
        (folder / name).write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return folder


@pytest.mark.parametrize("separate", [False, True])
def test_tokenizers(tmp_path, separate):
    import sentencepiece

    source, target = marian_tokenizers.read_tokenizers(write_vocabularies(tmp_path, separate))
    assert (source.sep_id, source.unk_id) == (0, 1)
    assert source.pad_id == source.cls_id == source.vocab_size - 1
    assert (source.vocab_size == target.vocab_size) != separate
    for side in (source, target):
        encoded = side.encode_batch(TEXTS)
        assert all(max(ids) < side.vocab_size for ids in encoded)
        assert [side.decode(ids) for ids in encoded] == TEXTS
    ids = json.loads((tmp_path / "vocab.json").read_text())
    processor = sentencepiece.SentencePieceProcessor(model_proto=train_sentencepiece(36))
    pieces = processor.encode(TEXTS[0], out_type=str)
    assert source.encode_batch(TEXTS[:1]) == [[ids[piece] for piece in pieces]]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return marian_tokenizers.read_tokenizers(write_vocabularies(tmp_path_factory.mktemp("vocabularies")))[0]


def test_names_of_special_tokens_in_a_text_are_text(source):
    (ids,) = source.encode_batch(["a </s> dog <pad>"])
    assert not {source.sep_id, source.pad_id} & set(ids)
    assert source.decode([source.pad_id, source.unk_id, source.sep_id]) == "\u2047"


def test_the_target_language_token(source):
    plain, marked, unknown, late = source.encode_batch(["A dog", ">>deu<< A dog", ">>xyz<< A dog", "A >>deu<<"])
    assert marked == [source.vocab_size - 2, *plain]
    assert unknown == [source.unk_id, *plain]
    assert source.vocab_size - 2 not in late


@settings(max_examples=30)
@given(st.lists(st.text(max_size=20), max_size=4))
def test_any_text_has_ids(source, texts):
    encoded = source.encode_batch(texts)
    assert len(encoded) == len(texts)
    for ids in encoded:
        assert all(0 <= i < source.vocab_size for i in ids)
        source.decode(ids)


@pytest.mark.parametrize("separate", [False, True])
def test_tokenizers_are_saved_and_pickled(tmp_path, separate):
    sides = marian_tokenizers.read_tokenizers(write_vocabularies(tmp_path, separate))
    for side in sides:
        side.save(tmp_path / "new")
    config = json.loads((tmp_path / "new" / "tokenizer_config.json").read_text())
    own = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, "split_special_tokens": True}
    assert config == own
    again = marian_tokenizers.read_tokenizers(tmp_path / "new")
    assert [side.fingerprint for side in again] == [side.fingerprint for side in sides]
    assert sides[0].fingerprint != sides[1].fingerprint
    copy = pickle.loads(pickle.dumps(sides[1]))
    assert copy.encode_batch(TEXTS) == sides[1].encode_batch(TEXTS)


def broken(name, content):
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "source.spm").unlink(), r"source\.spm: got No such file.*Fix: download the folder"),
        (lambda folder: (folder / "vocab.json").unlink(), r"vocab\.json: got .*expected a readable JSON file"),
        (broken("target.spm", b"nonsense"), r"target\.spm: got an invalid SentencePiece model .*Fix: copy"),
        (broken("vocab.json", b"[]"), r"vocab\.json: got list; expected a JSON object"),
        (broken("vocab.json", b'{"a": 1, "b": 1}'), r"vocab\.json: got 1 for 'b'; expected a different number"),
        (broken("vocab.json", b'{"a": -1}'), "got -1 for 'a'; expected a different number of 0 or more for each piece"),
        (broken("vocab.json", b'{"a": true}'), "got True for 'a'"),
        (broken("vocab.json", b'{"</s>": 0, "<unk>": 1}'), "got no <pad>; expected <pad>, </s> and <unk> among"),
    ],
)
def test_damaged_vocabularies_are_reported(tmp_path, damage, message):
    damage(write_vocabularies(tmp_path))
    with pytest.raises(UserError, match=message):
        marian_tokenizers.read_tokenizers(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unk_token": "a"}, "unk_token: got a; expected '<unk>'"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs: got"),
        ({"separate_vocabs": 1}, "separate_vocabs: got 1; expected a value of type bool"),
    ],
)
def test_unsupported_settings_of_tokenizers_are_refused(tmp_path, values, message):
    write_vocabularies(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        marian_tokenizers.read_tokenizers(tmp_path)


def test_the_tokenizer_states_whether_vocabularies_are_separate(tmp_path):
    write_vocabularies(tmp_path, separate=True)
    (tmp_path / "tokenizer_config.json").write_text('{"separate_vocabs": false}')
    source, target = marian_tokenizers.read_tokenizers(tmp_path)
    assert source.vocab_size == target.vocab_size


def test_without_sentencepiece_the_package_is_named(tmp_path, monkeypatch):
    write_vocabularies(tmp_path)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"source\.spm: .*the package sentencepiece\. Fix: pip install sentencepiece=="):
        marian_tokenizers.read_tokenizers(tmp_path)


def test_vocabularies_of_another_model_are_refused(tmp_path):
    write_vocabularies(tmp_path)
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    source, target = open_weights(write_config(tmp_path, vocab_size=size, **ids)).vocabularies
    assert source.vocab_size == target.vocab_size == size
    with pytest.raises(UserError, match=rf"of the source: got {size} tokens; expected at most the model's 13"):
        _ = open_weights(write_config(tmp_path, **ids)).vocabularies
    (tmp_path / "generation_config.json").write_text(json.dumps({**ids, "eos_token_id": 0, "bad_words_ids": [[size]]}))
    with pytest.raises(UserError, match=rf"bad_words_ids: got {size}; expected ids below {size}"):
        _ = open_weights(write_config(tmp_path, vocab_size=size, **ids)).settings
    with pytest.raises(UserError, match=r"of the target: got SpecialIds.*as in config.json"):
        _ = open_weights(write_config(tmp_path, vocab_size=size)).vocabularies


def test_distinct_ids_are_encoded_and_decoded(tmp_path):
    special = encoder_decoders.SpecialIds(pad_id=12, bos_id=11, eos_id=0)
    encoder_decoders.save(tmp_path, random_params(make_config()), make_config(), special, {})
    assert read_special_ids(tmp_path) == special
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == 11 and generation["bad_words_ids"] == [[12]]
