"""Tests of tokenizers of the `tokenizers` library: ids, characters, masks, files."""

import itertools
import json
import pickle
import random
import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import casing, load_saved, load_tokenizer, saved_file
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from tests.data.text import byte_bpe

# Pieces of text that are difficult to encode or to map back.
DIFFICULT = (
    *("a", "the", "ing", " ", "  ", "\t", "\n", "\u00a0", "\u3000", ".", "!?", "(", "'s", "don't", "1", "234", "½"),
    *("한", "국어", "\u1112", "\u1161", "\u11ab", "é", "e\u0301", "\u0301", "\u0323", "ガ", "カ\u3099", "中", "文"),
    *("👍", "🏽", "\u200d", "👨", "\U0001f1f0\U0001f1f7", "\u200b", "\ufeff", "ﬁ", "İ", "ß", "Σς", "न", "<s>", "[SEP]"),
    *("\ufffd", "\x00", "\x85"),
)
TEXT = st.lists(st.sampled_from(DIFFICULT), max_size=20).map("".join) | st.text(max_size=20)


@pytest.fixture
def folder(tmp_path):
    byte_bpe.trained().save(tmp_path / "saved", 20)
    return tmp_path / "saved"


def names(text, tokenizer=None):
    tokenizer = tokenizer or byte_bpe.trained()
    return tokenizer.names(tokenizer.encode_batch([text])[0])


def unigram(folder, **changes):
    """Writes a tokenizer of SentencePiece's kind, with RoBERTa's names, and returns its path."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("<mask>", 0.0), ("\u2581", -3.0)]
    pieces += [(each, -float(i)) for i, each in enumerate(["\u2581the", "\u2581cat", "s", "t", "h", "e", "c", "a"], 2)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    for key, value in changes.items():
        setattr(tokenizer, key, value)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_space_before_a_word_belongs_to_its_first_token():
    assert names("the cats singing.") == ["the", "cat", "##s", "sing", "##ing", "."]
    assert names("한국") == ["한국"]


def test_punctuation_and_chinese_characters_start_words():
    tokenizer = byte_bpe.trained()
    starts = set(np.array(tokenizer.vocab)[~tokenizer.is_continuation])
    assert {*SPECIALS, "Ġthe", "Ġ", ".", "'"} < starts
    assert not starts & {"ing", "t", "1", "Ã", "©"}


@given(TEXT)
def test_tokens_map_to_the_characters_that_they_came_from(text):
    tokenizer = byte_bpe.trained()
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode_batch([text])[0]
    assert (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all()
    covered = [False] * len(text)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        assert text[start:end] == text[start:end].strip()
        assert start < end or not text[end:start].strip(), "only spaces have no range"
        covered[start:end] = [True] * (end - start)
    assert covered == [not char.isspace() for char in text]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("각낙  👍🏽x", ["각", "낙", "👍", "🏽", "x"]),
        ("e\u0301t", ["e\u0301", "t"]),
        ("\u1112\u1161\u11ab글", ["\u1112\u1161\u11ab", "글"]),
        (" a\u200b ", ["a", "\u200b"]),
    ],
)
def test_a_character_of_several_tokens_has_one_range(text, parts):
    _, starts, ends = byte_bpe.trained().encode_with_offsets(text)
    ranges = zip(starts.tolist(), ends.tolist(), strict=True)
    found = [text[start:end] for start, end in dict.fromkeys(ranges) if start < end]
    assert found == parts


@given(st.lists(st.sampled_from(["the", "cat", "sing", ".", "서울은", "é", "'s", "中"]), min_size=1, max_size=8))
def test_words_of_a_sentence_are_encoded_as_in_the_sentence(words):
    tokenizer = byte_bpe.trained()
    assert list(itertools.chain(*tokenizer.encode_parts(words))) == tokenizer.encode_batch([" ".join(words)])[0]


def test_without_a_space_before_the_text_only_later_words_have_one(folder):
    values = json.loads((folder / "tokenizer.json").read_text())
    values["pre_tokenizer"] = values["pre_tokenizer"]["pretokenizers"][1]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = load_tokenizer(folder, lowercase=False)
    first, second = tokenizer.encode_parts(["are", "the"])
    assert [tokenizer.vocab[token] for token in (first[0], *second)] == ["are", "Ġthe"]


@given(TEXT)
def test_decoding_restores_normalized_text(text):
    tokenizer = byte_bpe.trained()
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == unicodedata.normalize("NFC", text).strip()


def test_a_lowercase_vocabulary_lowercases():
    tokenizer = byte_bpe.trained(lowercase=True)
    assert tokenizer.lowercase and not byte_bpe.trained().lowercase
    text = "The CAT \u0130\u0301 É"
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode_batch([text])[0]
    assert tokenizer.decode(ids.tolist()) == unicodedata.normalize("NFC", text.lower())
    assert (starts[-1], ends[-1], len(text)) == (11, 12, 12)


def test_masks_in_text_take_the_space_before_them():
    tokenizer = byte_bpe.trained()
    ids = tokenizer.encode_with_masks("the [MASK] cat[MASK] [mask]")
    assert tokenizer.names(ids)[:4] == ["the", "[MASK]", "cat", "[MASK]"]
    assert ids.count(tokenizer.mask_id) == 2
    assert tokenizer.encode_with_masks("[MASK]") == [tokenizer.mask_id]
    assert tokenizer.encode_with_masks("") == []
    assert tokenizer.mask_id not in tokenizer.encode_batch(["[MASK]"])[0]


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_no_space_is_put_after_a_mask_by_ours_or_by_a_saved_tokenizer(kind, tmp_path, folder):
    if kind == "sentencepiece":
        splitter = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
        folder = unigram(tmp_path / "unigram", pre_tokenizer=splitter).parent
        added = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        added.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
        added.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder, lowercase=False)
    ids = tokenizer.encode_with_masks("the [MASK]s")
    assert tokenizer.names(ids) == ["the", "[MASK]", "##s"]
    tokenizer.save(tmp_path / "again")
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "again" / "tokenizer.json"))
    assert saved.encode(f"the {tokenizer.vocab[tokenizer.mask_id]}s", add_special_tokens=False).ids == ids


def test_lone_surrogates_become_replacement_characters():
    tokenizer = byte_bpe.trained()
    assert tokenizer.encode_batch(["a\ud800"]) == tokenizer.encode_batch(["a\ufffd"])
    assert tokenizer.encode_with_offsets("\udfffa").ends.tolist()[-1] == 2


def test_names_of_special_tokens_are_those_of_bert_and_other_names_are_readable(tmp_path):
    tokenizer = load_tokenizer(unigram(tmp_path / "unigram"), lowercase=False)
    ids = [tokenizer.cls_id, *tokenizer.encode_batch(["the cats"])[0], tokenizer.mask_id, tokenizer.sep_id]
    assert tokenizer.names(ids) == ["[CLS]", "the", "cat", "##s", "[MASK]", "[SEP]"]
    assert byte_bpe.trained().names([byte_bpe.trained().vocab.index("Ġ")]) == ["Ġ"]


def test_a_saved_tokenizer_is_equal(folder):
    ours = byte_bpe.trained()
    opened = load_saved(folder), load_tokenizer(folder / "tokenizer.json", lowercase=False)
    for other in (*opened, pickle.loads(pickle.dumps(ours))):
        assert other == ours and hash(other) == hash(ours) and other.key == ours.key and other.content == ours.content
    assert byte_bpe.trained(300) != ours and byte_bpe.trained(300).key != ours.key
    assert ours != WordPiece((*SPECIALS, "a"), lowercase=False)
    assert saved_file(folder) == folder / "tokenizer.json" and saved_file(folder.parent) is None
    assert casing(folder) is False


def test_saving_replaces_the_vocabulary_of_the_other_kind(folder):
    wordpiece = WordPiece((*SPECIALS, "a"), lowercase=False)
    wordpiece.save(folder)
    assert load_saved(folder) == wordpiece
    byte_bpe.trained().save(folder)
    assert load_saved(folder) == byte_bpe.trained()


def test_parts_of_chinese_characters_begin_words():
    """Characters without a token of their own are not joined to the word before them."""
    tokenizer = byte_bpe.trained(270)
    (ids,) = tokenizer.encode_batch(["ab \u7dad\u57fa"])
    starts = tokenizer.encode_with_offsets("ab \u7dad\u57fa").starts
    begins = [place for place, token in zip(starts.tolist(), ids, strict=True) if not tokenizer.is_continuation[token]]
    assert len(ids) > 6 and {3, 4} <= set(begins)
    (ids,) = tokenizer.encode_batch(["\u0e44\u0e17\u0e22"])  # Thai
    assert sum(~tokenizer.is_continuation[ids]) == 1


def test_a_tokenizer_of_sentencepiece_kind_opens(tmp_path):
    path = unigram(tmp_path / "unigram")
    tokenizer = load_tokenizer(path.parent, lowercase=False)
    roles = {"pad": 1, "unk": 3, "cls": 0, "sep": 2, "mask": 4}
    assert {role: getattr(tokenizer, f"{role}_id") for role in roles} == roles
    (ids,) = tokenizer.encode_batch(["the  cats"])
    assert [tokenizer.vocab[i] for i in ids] == ["\u2581the", "\u2581", "\u2581cat", "s"]
    assert tokenizer.is_continuation[ids].tolist() == [False, False, False, True]
    _, starts, ends = tokenizer.encode_with_offsets("the  cats")
    assert (starts.tolist(), ends.tolist()) == ([0, 5, 5, 8], [3, 3, 8, 9])
    assert tokenizer.encode_with_masks("the <mask> [MASK]").count(4) == 2
    tokenizer.save(tmp_path / "again")
    assert load_saved(tmp_path / "again") == tokenizer


def test_special_tokens_are_those_that_the_folder_names(folder):
    tokenizer = load_saved(folder)
    named = {"mask_token": {"content": "Ġthe"}, "unk_token": "a", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "special_tokens_map.json").write_text(json.dumps({"unk_token": "[PAD]", "sep_token": "[CLS]"}))
    found = load_saved(folder)
    assert found.mask_id == tokenizer.vocab.index("Ġthe")
    assert (found.unk_id, found.sep_id, found.pad_id) == (tokenizer.pad_id, tokenizer.cls_id, tokenizer.pad_id)
    assert found != tokenizer


@pytest.mark.parametrize(
    ("config", "direction", "is_left"),
    [({"truncation_side": "left"}, None, True), ({}, "left", True), ({"truncation_side": "right"}, "left", False)],
)
def test_the_end_that_is_truncated_is_that_of_transformers(folder, config, direction, is_left):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if direction:
        library.enable_truncation(5, direction=direction)
        library.save(str(folder / "tokenizer.json"))
    values = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**values, **config}))
    tokenizer = load_saved(folder)
    assert tokenizer.template.truncates_left is is_left
    tokenizer.save(folder)
    assert load_saved(folder) == tokenizer


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"truncation_side": "up"}, "truncation_side: got 'up'; expected 'left' or 'right'"),
        ({"fix_mistral_regex": True}, "fix_mistral_regex: got True"),
        ({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False}, "add_prefix_space: got False; expected T"),
        ({"tokenizer_class": "RobertaTokenizer", "do_lower_case": True}, "do_lower_case: got True; expected False"),
    ],
)
def test_unsupported_settings_are_refused(folder, values, message):
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {message}"):
        load_saved(folder)


def test_merges_are_never_dropped(folder):
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["dropout"] = 0.9
    (folder / "tokenizer.json").write_text(json.dumps(values))
    assert load_saved(folder) == byte_bpe.trained()
    assert load_saved(folder).encode_batch(["the birds"] * 9) == byte_bpe.trained().encode_batch(["the birds"] * 9)


def test_unused_ids_have_no_name(folder):
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["vocab"]["naÃ¯ve"] = 350
    (folder / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = load_saved(folder)
    assert tokenizer.vocab_size == len(tokenizer.vocab) == 351
    assert (tokenizer.vocab[340], tokenizer.vocab[350]) == ("", "naÃ¯ve")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values["model"]["vocab"].update({"naÃ¯ve": 2**31}), r"320 tokens with ids up to 2147483648"),
        (lambda values: values["model"]["vocab"].pop("Ġthe"), "expected a tokenizer.json"),
        (lambda values: values.update(pre_tokenizer=None), "type BPE with the pre-tokenizer none; expected byte-level"),
        (lambda values: values.update(pre_tokenizer={"type": "Whitespace"}), "the pre-tokenizer Whitespace; expected"),
        (
            lambda values: values.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
            "a tokenizer of type WordLevel",
        ),
    ],
)
def test_an_unsupported_tokenizer_is_an_error(folder, change, message):
    values = json.loads((folder / "tokenizer.json").read_text())
    change(values)
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(folder / "tokenizer.json", lowercase=False)
    assert str(error.value).startswith(f"{folder / 'tokenizer.json'}: got ")


def test_missing_special_tokens_are_an_error(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "<gone>"}))
    message = r"without mask_token \(<gone>\); expected tokens for .*name others in tokenizer_config\.json"
    with pytest.raises(UserError, match=message):
        load_saved(folder)
    (folder / "tokenizer_config.json").unlink()
    text = (folder / "tokenizer.json").read_text().replace("[MASK]", "[M]").replace("[PAD]", "[P]")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"without pad_token \(\[PAD\] or <pad>\), mask_token"):
        load_saved(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "expected"), (b'{"model": {"type": "BPE"}}', "expected a tokenizer.json"), (b"\xff", "UTF-8")],
)
@pytest.mark.parametrize("name", ["tokenizer.json", ""])
def test_a_broken_file_is_an_error(tmp_path, content, message, name):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(tmp_path / name, lowercase=False)
    assert str(tmp_path) in str(error.value)


def test_another_casing_is_an_error(folder):
    for path in (folder, folder / "tokenizer.json"):
        with pytest.raises(UserError, match=r"data\.lowercase: got True; expected False.*lowercase=False"):
            load_tokenizer(path, lowercase=True)


def test_a_folder_with_a_wordpiece_vocabulary_is_wordpiece(tmp_path):
    WordPiece((*SPECIALS, "a"), lowercase=True).save(tmp_path)
    assert load_tokenizer(tmp_path, lowercase=True) == load_saved(tmp_path) == WordPiece((*SPECIALS, "a"), True)
    (tmp_path / "vocab.txt").unlink()
    assert isinstance(load_tokenizer(tmp_path, lowercase=True), WordPiece)


def test_a_saved_folder_opens_in_transformers(folder):
    transformers = pytest.importorskip("transformers")
    ours, theirs = byte_bpe.trained(), transformers.AutoTokenizer.from_pretrained(folder)
    first, second = ours.encode_batch(["The cat sleeps.", "서울 [x]"])
    pair = theirs("The cat sleeps.", "서울 [x]")
    assert pair["input_ids"] == [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs("the [MASK]s", add_special_tokens=False)["input_ids"] == ours.encode_with_masks("the [MASK]s")
    assert theirs.decode(first) == "The cat sleeps."
    assert len(theirs("the " * 99, truncation=True)["input_ids"]) == 20
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (ours.pad_id, ours.unk_id, ours.mask_id)
    words = ["the", "cat", "sleeps", ".", "서울은"]
    split = theirs(words, is_split_into_words=True, add_special_tokens=False)
    assert split["input_ids"] == list(itertools.chain(*ours.encode_parts(words)))
    assert split.word_ids() == [i for i, ids in enumerate(ours.encode_parts(words)) for _ in ids]
    ours.save(folder, token_types=False)
    assert "token_type_ids" not in transformers.AutoTokenizer.from_pretrained(folder)("a")


def modernbert(folder):
    """Writes a folder with the parts of ModernBERT's tokenizer, and returns transformers' tokenizer."""
    transformers = pytest.importorskip("transformers")
    values = json.loads(byte_bpe.trained()._content)
    values["pre_tokenizer"]["add_prefix_space"] = False
    values["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    mask = next(token for token in values["added_tokens"] if token["content"] == "[MASK]")
    others = ("|||IP_ADDRESS|||", "  ", "    ", "[unused0]", "<|endoftext|>")
    values["added_tokens"] += [
        {**mask, "id": 320 + i, "content": token, "lstrip": False, "special": token.startswith("<"), "normalized": True}
        for i, token in enumerate(others)
    ]
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(values)),
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
    )
    theirs.save_pretrained(folder)
    return theirs


def roberta(folder):
    """The same for RoBERTa, with the class of transformers."""
    transformers = pytest.importorskip("transformers")
    model = json.loads(byte_bpe.trained()._content)["model"]
    renamed = dict(zip(SPECIALS, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    vocab = {renamed.get(token, token): number for token, number in model["vocab"].items()}
    theirs = transformers.RobertaTokenizer(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]])
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("publish", [modernbert, roberta])
def test_a_published_tokenizer_gives_the_ids_of_transformers(publish, tmp_path):
    theirs = publish(tmp_path)
    ours = load_tokenizer(tmp_path, lowercase=False)
    special = (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id)
    names = [getattr(theirs, f"{role}_token") for role in ("pad", "unk", "cls", "sep", "mask")]
    assert theirs.convert_tokens_to_ids(names) == list(special)
    rng = random.Random(0)
    pieces = [*DIFFICULT, "|||IP_ADDRESS|||", "    ", "[unused0]"]
    texts = ["".join(rng.choices(pieces, k=rng.randrange(20))) for _ in range(300)]
    texts = [text.replace("[SEP]", "").replace("<s>", "") for text in texts]  # special tokens in transformers
    assert ours.encode_batch(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    masked = "The [MASK] sings [MASK]."
    expected = theirs(masked.replace("[MASK]", theirs.mask_token), add_special_tokens=False)["input_ids"]
    assert ours.encode_with_masks(masked) == ours.encode_with_masks(masked.replace("[MASK]", names[-1])) == expected
    ours.save(tmp_path / "again")
    assert load_saved(tmp_path / "again") == ours
