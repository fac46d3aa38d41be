"""Tests of added tokens: those of folders give the ids of transformers, and those of a config follow the others."""

import dataclasses
import json
import pickle
import random
import unicodedata

import numpy as np
import pytest

from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import AddedTokensConfig, VocabularyConfig, load_saved, load_tokenizer
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from tests.data.text import byte_bpe
from tests.data.text.test_library_encoders import modernbert, unigram

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = (*SPECIALS, "the", "covid", "[unused1]", *"我[],.", *LETTERS, *(f"##{letter}" for letter in LETTERS))
# Texts that contain the tokens, parts of them, or what normalization changes.
PARTS = (
    *("NewTok", "newtok", "NEW York", "new  york", "More", "word", "_", "1", "covid", "Left", "right", "新冠", "我"),
    *("##y", "é", "e\u0301", "É", "[ENT]", "[ent]", "[unused1]", " ", "  ", "the", "a", ".", "\t", "\u200b", "\u0301"),
)


@dataclasses.dataclass(frozen=True)
class Config(VocabularyConfig, AddedTokensConfig):
    pass


def wordpiece(folder, lowercase):
    transformers = pytest.importorskip("transformers")
    return transformers.BertTokenizer({token: i for i, token in enumerate(VOCAB)}, do_lower_case=lowercase)


def sentencepiece(folder):
    transformers = pytest.importorskip("transformers")
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    file = str(unigram(folder))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=file, **{f"{k}_token": v for k, v in names.items()})


def plain(text):
    """The text without case, accents and the character that BERT drops."""
    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if c not in "\u0301\u200b").strip()


@pytest.mark.parametrize(("make", "lowercase"), [
    (lambda folder: wordpiece(folder, True), True),
    (lambda folder: wordpiece(folder, False), False),
    (modernbert, False),
    (sentencepiece, False),
], ids=["uncased", "cased", "byte-level", "sentencepiece"])  # fmt: skip
def test_a_folder_with_added_tokens_gives_the_ids_of_transformers(make, lowercase, tmp_path):
    theirs = make(tmp_path)
    from transformers import AddedToken, AutoTokenizer

    options = {"word": {"single_word": True}, "covid": {"single_word": True}, "Left": {"lstrip": True}}
    options["right"] = {"rstrip": True, "normalized": False}
    theirs.add_tokens(["NewTok", "New York", "NewTokMore", "新冠", "##y", "é"])
    theirs.add_tokens([AddedToken(token, **values) for token, values in options.items()])
    theirs.add_special_tokens({"additional_special_tokens": ["[ENT]", "[unused1]"]})
    theirs.save_pretrained(tmp_path)
    ours, rng = load_tokenizer(tmp_path, lowercase), random.Random(0)
    texts = ["".join(rng.choices(PARTS, k=rng.randrange(12))) for _ in range(400)]
    ids = theirs(texts, add_special_tokens=False)["input_ids"]
    assert ours.encode_batch(texts) == ids
    ours.save(tmp_path / "again")
    again = load_saved(tmp_path / "again")
    assert again == ours == pickle.loads(pickle.dumps(ours)) and again.key == ours.key
    theirs = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert theirs(texts, add_special_tokens=False)["input_ids"] == ids
    added = theirs.added_tokens_decoder.items()
    known = {number: plain(token.content) for number, token in added if token.content not in ours.special}
    for text in texts:
        found, starts, ends = ours.encode_with_offsets(text)
        assert found.tolist() == ours.encode_batch([text])[0]
        assert (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all(), text
        ranges = zip(found.tolist(), starts, ends, strict=True)
        assert all(plain(text[start:end]) == known[i] for i, start, end in ranges if i in known), text


@pytest.mark.parametrize(("name", "files"), [
    ("added_tokens.json", {"the cat": len(VOCAB), "[ENT]": len(VOCAB) + 1}),
    ("tokenizer_config.json", {
        "do_lower_case": True,
        "added_tokens_decoder": {str(len(VOCAB)): {"content": "the cat"}, str(len(VOCAB) + 1): {"content": "[ENT]"}},
    }),
])  # fmt: skip
def test_older_folders_state_added_tokens_in_another_file(name, files, tmp_path):
    WordPiece(VOCAB, lowercase=True).save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / name).write_text(json.dumps(files))
    assert load_tokenizer(tmp_path, True).encode_batch(["The Cat[ent]"]) == [[len(VOCAB), len(VOCAB) + 1]]


@pytest.mark.parametrize("make", [lambda: WordPiece(VOCAB, lowercase=True), byte_bpe.trained])
def test_added_tokens_of_a_config_follow_the_others(make, tmp_path):
    before = make()
    before.save(tmp_path)
    after = load_tokenizer(tmp_path, before.lowercase, ("Ab Initio", "x9"))
    size = before.vocab_size
    assert after.vocab == (*before.vocab, "Ab Initio", "x9") and not after.is_continuation[size:].any()
    assert after.encode_batch(["x9Ab Initio", "ax9"])[0] == [size + 1, size] and after.key != before.key
    assert load_tokenizer(tmp_path, before.lowercase, ()).key == before.key
    after.save(tmp_path)
    assert load_saved(tmp_path) == after


@pytest.mark.parametrize(("tokens", "message"), [
    (("",), r"got \[''\]; expected different tokens, not empty"),
    ((" a",), r"got \[' a'\]; expected different tokens"),
    (("x9", "x9"), r"got \['x9'\]; expected different tokens"),
    (("The",), "got 'The', which the vocabulary has already"),
    (("[unused1]",), "got '.unused1.', which the vocabulary has already"),
    (("X9", "x9"), "got '[Xx]9', which the vocabulary encodes as '[Xx]9'; expected tokens that remain different"),
])  # fmt: skip
def test_a_token_that_cannot_be_added_is_an_error(tokens, message, tmp_path):
    WordPiece(VOCAB, lowercase=True).save(tmp_path)
    with pytest.raises(UserError, match=r"config key data\.add_tokens: " + message):
        config = Config(str(tmp_path), True, add_tokens=tokens)
        load_tokenizer(tmp_path, True, config.add_tokens)
