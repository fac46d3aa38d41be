import gzip
import hashlib
import json
import pickle
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from bertjax.data.text.normalization import Chain, normalize, separate_punctuation
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import TrainedVocabularyConfig, load_tokenizer, load_wordpiece
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from tests.data.text import byte_bpe

WORDS = ["un", "##want", "##aff", "##able", "want", "##ed", ",", "running", "a", "##a", "é", "e"]
VOCAB = [*SPECIALS, *WORDS, "[", "]", "mask"]


@pytest.fixture(scope="module")
def golden():
    return json.loads(gzip.decompress((Path(__file__).parents[1] / "golden" / "tokenizer.json.gz").read_bytes()))


def make(lowercase=True):
    return WordPiece(VOCAB, lowercase)


def pieces(ids):
    return [VOCAB[i] for i in ids]


def test_separate_punctuation_changes_nothing_else():
    text = "It's  Où\u200d\tU.S.,東京 €5"
    assert separate_punctuation(text).split() == ["It", "'", "s", "Où\u200d", "U", ".", "S", ".", ",", "東京", "€5"]
    assert separate_punctuation(text).replace(" ", "") == text.replace(" ", "")


def test_golden_small_vocabulary(golden):
    for casing in ("uncased", "cased"):
        got = WordPiece(golden["vocab"], casing == "uncased").encode_batch(golden["texts"])
        for text, ids, expected in zip(golden["texts"], got, golden[casing], strict=True):
            assert ids == expected, ascii(text)


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_golden_published_vocabulary(golden, data_folder, casing):
    tokenizer = WordPiece.from_file(data_folder / "vocab" / f"bert-base-{casing}-vocab.txt", casing == "uncased")
    assert tokenizer.vocab_size == {"uncased": 30522, "cased": 28996}[casing]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        0, 100, 101, 102, 103
    )  # fmt: skip
    ids = tokenizer.encode_batch(golden["texts"])
    size = len(ids) // len(golden["published"][casing])
    blocks = [json.dumps(ids[start : start + size]).encode() for start in range(0, len(ids), size)]
    assert [hashlib.sha256(block).hexdigest()[:16] for block in blocks] == golden["published"][casing]


def ranges(text, lowercase=True, tokenizer=None):
    encoded = (tokenizer or make(lowercase)).encode_with_offsets(text)
    return [text[start:end] for start, end in zip(encoded.starts, encoded.ends, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \x00\u200b ", []),
        (" UNwantéd,\t running", ["UN", "want", "éd", ",", "running"]),
        ("unwante\u0301d want\u0323\u0307, \u0301a", ["un", "want", "e\u0301d", "want\u0323\u0307", ",", "a"]),
        ("u\u200bn\u200bwant\u200bed\u200b", ["u\u200bn", "want", "ed"]),
        ("aİa ß", ["aİa", "ß"]),
        ("a東京a", ["a", "東", "京", "a"]),
        ("e👩\u200d👩\ufe0f!", ["e👩\u200d👩\ufe0f", "!"]),
        (f"a {'x' * 201}, want", ["a", "x" * 201, ",", "want"]),
        ("[MASK]", ["[", "MASK", "]"]),
        ("a\ud800 a", ["a\ud800", "a"]),
    ],
)
def test_offsets(text, expected):
    assert ranges(text) == expected


def test_offsets_of_a_character_in_two_pieces():
    jamo = unicodedata.normalize("NFD", "각")
    tokenizer = WordPiece([*SPECIALS, jamo[:1], "##" + jamo[1:], "##" + jamo], lowercase=True)
    assert ranges("각각", tokenizer=tokenizer) == ["각", "각", "각"]


TRICKY = "aİßﬁΣσς\u0301\u0323\u302e\u302f\U0001d165é中한한하ậ .,\x00\u200b\u200d\ufe0f\u0344👩\ufffd\u3000\tun"


@example(text="A\u302a\u0323.", lowercase=False, strip_accents=False, nfc=True)  # composes over a mark
@given(st.text(st.characters()) | st.text(TRICKY), st.booleans(), st.booleans(), st.booleans())
def test_offsets_agree_with_encode_batch_and_with_the_text(text, lowercase, strip_accents, nfc):
    letters = {"##" + char for char in "aunté하한"} | set("aunté하한")
    vocab = [*SPECIALS, *sorted(letters), "i", "##i", "中", "."]
    tokenizer = WordPiece(vocab, lowercase, strip_accents=strip_accents, nfc=nfc)
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert [ids.tolist()] == tokenizer.encode_batch([text])
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(ends) >= 0).all()
    assert ((starts >= 0) & (starts < ends) & (ends <= len(text))).all()
    for token, start, end in zip(ids.tolist(), starts, ends, strict=True):
        own = normalize(text[start:end], tokenizer.chain).strip()
        assert token == tokenizer.unk_id or tokenizer.vocab[token].removeprefix("##") in own
    covered = {index for start, end in zip(starts, ends, strict=True) for index in range(start, end)}
    for index, char in enumerate(text):
        assert index in covered or not normalize(char, tokenizer.chain).strip()


def test_encode_with_masks():
    tokenizer = make()
    ids = tokenizer.encode_with_masks("a [MASK], un[MASK]a [mask]")
    assert pieces(ids) == ["a", "[MASK]", ",", "un", "[MASK]", "a", "[", "mask", "]"]
    assert pieces(tokenizer.encode_with_masks("[MASK][MASK]")) == ["[MASK]", "[MASK]"]
    assert pieces(tokenizer.encode_with_masks("a")) == ["a"]
    assert tokenizer.encode_with_masks("") == []


def test_attributes_and_pickle():
    tokenizer = pickle.loads(pickle.dumps(make(lowercase=False)))
    assert (tokenizer.vocab, tokenizer.lowercase) == (tuple(VOCAB), False)
    assert [token for token in VOCAB if token[:2] == "##"] == list(np.array(VOCAB)[tokenizer.is_continuation])
    assert list(map(pieces, tokenizer.encode_batch(["A é"]))) == [["[UNK]", "é"]]
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_vocab_file_endings(tmp_path, ending, last):
    vocab = [*VOCAB, "\u2028", "\x85x", "\x1d"]
    text = ending.join(vocab) + (ending if last else "")
    (tmp_path / "vocab.txt").write_bytes(text.encode())
    assert WordPiece.from_file(tmp_path / "vocab.txt", lowercase=True).vocab == tuple(vocab)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"0 tokens without \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"5 tokens without \[MASK\]; expected"),
        ("\n".join([*VOCAB, "a", "un", "a"]).encode(), r"'un' on lines 6, 22 \(2 duplicated"),
        (b"[PAD]\n[UNK]\ncaf\xe9\n", r"vocab.txt, line 3: got the byte 0xe9"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n", r"got only 6 special tokens; expected a BERT voc"),
    ],
)
def test_a_bad_vocab_file_is_an_error(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        WordPiece.from_file(path, lowercase=True)
    assert str(path) in str(error.value)


def test_a_missing_vocab_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"nothing.txt: got No such file"):
        WordPiece.from_file(tmp_path / "nothing.txt", lowercase=True)
    with pytest.raises(UserError, match="Is a directory"):
        WordPiece.from_file(tmp_path, lowercase=True)


@pytest.mark.parametrize("lowercase", [True, False])
def test_saved_folder_opens_in_transformers(tmp_path, golden, lowercase):
    transformers = pytest.importorskip("transformers")
    ours = WordPiece(golden["vocab"], lowercase)
    ours.save(tmp_path, 20)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = "Être OU ne pas être", "x" * 90 + ", 東京!"
    a, b = ours.encode_batch([first, second])
    assert ours.unk_id not in a
    assert theirs(first)["input_ids"] == [ours.cls_id, *a, ours.sep_id]
    pair = theirs(first, second)
    assert pair["input_ids"] == [ours.cls_id, *a, ours.sep_id, *b, ours.sep_id]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert theirs("[MASK]", add_special_tokens=False)["input_ids"] == [ours.mask_id]
    assert (theirs.pad_token_id, theirs.unk_token_id) == (ours.pad_id, ours.unk_id)
    assert len(theirs) == ours.vocab_size
    assert len(theirs("a " * 99, truncation=True)["input_ids"]) == 20


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("absent", [(), ("vocab.txt",), ("tokenizer.json",), ("vocab.txt", "tokenizer_config.json")])
def test_load_needs_only_some_files_of_a_folder(tmp_path, lowercase, absent):
    make(lowercase).save(tmp_path)
    for name in absent:
        (tmp_path / name).unlink()
    loaded = WordPiece.load(tmp_path)
    assert (loaded.vocab, loaded.lowercase) == (tuple(VOCAB), lowercase)


CASED = {"do_lower_case": False}
ALL = {"vocab.txt": "\n".join(VOCAB), "tokenizer_config.json": {"do_lower_case": True}}


def write(folder, name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("files", "longest"),
    [
        ({}, 100),
        ({"tokenizer.json": {"model": {"max_input_chars_per_word": 5}}}, 5),
        ({"tokenizer_config.json": {"do_lower_case": True, "max_input_chars_per_word": 6}}, 6),
    ],
)
def test_the_maximum_word_length_is_read_from_the_folder(tmp_path, files, longest):
    for name, value in {**ALL, **files}.items():
        write(tmp_path, name, value)
    loaded = WordPiece.load(tmp_path)
    loaded.save(tmp_path / "again")
    for tokenizer in (loaded, WordPiece.load(tmp_path / "again"), pickle.loads(pickle.dumps(loaded))):
        fits, long = tokenizer.encode_batch(["a" * longest, "a" * (longest + 1)])
        assert len(fits) == longest
        assert long == [tokenizer.unk_id]


def test_the_maximum_word_length_of_googles_files_is_200(tmp_path):
    write(tmp_path, "vocab.txt", ALL["vocab.txt"])
    write(tmp_path, "bert_config.json", {})
    for path in (tmp_path, tmp_path / "vocab.txt"):
        assert [len(ids) for ids in load_wordpiece(path, True).encode_batch(["a" * 200, "a" * 201])] == [200, 1]


def test_tokenizers_with_the_same_results_are_equal():
    assert make() == make()
    assert len({make(), make(), make(lowercase=False), WordPiece(VOCAB, True, 100), WordPiece(VOCAB[:-1], True)}) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file that states the casing"),
        ({"tokenizer_config.json": {"do_lower_case": True}}, "no vocab.txt and no tokenizer.json"),
        ({"tokenizer_config.json": "[" * 10**5}, "tokenizer_config.json: got maximum recursion depth"),
        ({**ALL, "tokenizer.json": {"model": {"max_input_chars_per_word": 2**31}}}, "expected a number from 1 to 2147"),
        ({"tokenizer_config.json": {"do_lower_case": True, "strip_accents": 1}}, "'strip_accents': 1"),
        (
            {"tokenizer_config.json": {"do_lower_case": True}, "tokenizer.json": {"model": {"type": "BPE"}}},
            "a tokenizer.json of type BPE",
        ),
        ({**ALL, "added_tokens.json": {"[ENT]": 99, "a": 13}}, "added token '[ENT]': got 99; expected 20, the next id"),
        (
            {**ALL, "tokenizer_config.json": {"do_lower_case": True, "tokenizer_class": "BertJapaneseTokenizer"}},
            "got tokenizer_class BertJapaneseTokenizer; expected BERT's own",
        ),
        ({**ALL, "tokenizer.json": {"pre_tokenizer": {"type": "Whitespace"}}}, "got pre_tokenizer Whitespace"),
        (
            {
                **ALL,
                "tokenizer_config.json": {"do_lower_case": True, "tokenizer_class": "BertTokenizer"},
                "tokenizer.json": {"post_processor": {"type": "BertProcessing", "cls": ["a", 5], "sep": ["b", 6]}},
            },
            "of the special tokens, with which BertTokenizer surrounds texts",
        ),
        ({**ALL, "special_tokens_map.json": {"sep_token": None}}, "sep_token: got null; expected a token"),
        *(
            (
                {**ALL, "special_tokens_map.json": {"extra_special_tokens": tokens}},
                f"got {tokens[0]!r}; expected tokens",
            )
            for tokens in ([1], [{"content": "x", "special": 1}], [""], ["\ud800"])
        ),
        ({**ALL, "special_tokens_map.json": {"extra_special_tokens": "abc"}}, "got 'abc'; expected tokens"),
        ({**ALL, "tokenizer.json": {"truncation": {"direction": "Up"}}}, "truncation_side: got 'up'; expected 'left'"),
        (
            {**ALL, "tokenizer_config.json": CASED, "sentence_bert_config.json": {"do_lower_case": True}},
            "got do_lower_case true for sentences",
        ),
    ],
)
def test_a_bad_folder_is_an_error(tmp_path, files, message):
    for name, value in files.items():
        write(tmp_path, name, value)
    with pytest.raises(UserError) as error:
        WordPiece.load(tmp_path)
    assert message in str(error.value)


HANGUL = "한국어 Été ㅋㅋ ΟΔΟΣ 각"
SYLLABLES = ["한", "##국", "##어", "ㅋ", "##ㅋ", "각", *"éeoδσ", "##t", "##e", "##é", "##δ", "##ο", "##σ", "ο"]
CHAINS = [(True, None), (True, False), (False, None), (False, True)]


def of_chain(lowercase, strip_accents, *, nfc=True):
    return WordPiece([*SPECIALS, *SYLLABLES], lowercase, strip_accents=strip_accents, nfc=nfc)


@pytest.mark.parametrize(("lowercase", "strip_accents"), CHAINS)
def test_new_vocabularies_compose_text_whatever_its_form(lowercase, strip_accents):
    tokenizer = of_chain(lowercase, strip_accents)
    words = ["한국어", "été", "ㅋㅋ", "οδοσ", "각"] if lowercase else ["한국어", "Été", "ㅋㅋ", "ΟΔΟΣ", "각"]
    if tokenizer.chain.strip_accents:
        words[1] = {"été": "ete", "Été": "Ete"}[words[1]]
    for form in ("NFC", "NFD"):
        assert tokenizer.words(unicodedata.normalize(form, HANGUL)) == words


@pytest.mark.parametrize("nfc", [True, False])
@pytest.mark.parametrize(("lowercase", "strip_accents"), CHAINS)
def test_a_saved_chain_is_that_of_transformers(tmp_path, lowercase, strip_accents, nfc):
    transformers = pytest.importorskip("transformers")
    ours = of_chain(lowercase, strip_accents, nfc=nfc)
    ours.save(tmp_path)
    assert WordPiece.load(tmp_path) == load_wordpiece(tmp_path / "vocab.txt", lowercase) == ours or not nfc
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["한국어 Été ㅋㅋ", unicodedata.normalize("NFD", "한국어 Été")]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == ours.encode_batch(texts)
    assert (ours.unk_id in ours.encode("한국어")) == (not nfc and ours.chain.strip_accents)


@given(st.text("aİßﬁΣσς\u0301\u0323é中한\u1112\u1161\u11ab .,\u200b\u3000"), st.sampled_from(CHAINS))
def test_new_chains_are_those_of_the_library(text, settings):
    chain = Chain.of(*settings, nfc=True)
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(chain.of_library.normalize_str(text))
    assert normalize(text, chain).split() == [word for word, _ in split]


def test_the_config_sets_the_accents_of_a_published_vocabulary(tmp_path):
    of_chain(True, None, nfc=False).save(tmp_path)
    opened = load_tokenizer(tmp_path, True, strip_accents=False)
    assert opened == of_chain(True, False, nfc=False) and opened.unk_id not in opened.encode("한국어 été")
    byte_bpe.trained().save(tmp_path / "bytes")
    with pytest.raises(UserError, match="strip_accents: got False; expected no value, because the vocabulary is not"):
        load_tokenizer(tmp_path / "bytes", False, strip_accents=False)
    with pytest.raises(UserError, match=r"got False; expected no value with data\.tokenizer=byte_bpe"):
        TrainedVocabularyConfig(strip_accents=False, tokenizer="byte_bpe")


def test_the_chain_is_in_digests_only_where_it_is_not_that_of_bert():
    bert, composing, accented = (
        of_chain(True, strip, nfc=nfc) for strip, nfc in ((True, False), (None, True), (False, False))
    )
    assert bert == of_chain(True, None, nfc=False)
    assert bert.content == [bert.vocab, True] and len(bert.key) == 3
    for digest in ("content", "key", "fingerprint"):
        assert len({json.dumps(getattr(one, digest)) for one in (bert, composing, accented)}) == 3
    assert len({one.key[0] for one in (bert, composing, accented)}) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("한국어, 각", ["한", "국", "어", ",", "각"]),
        (
            unicodedata.normalize("NFD", "한국어") + " e\u0301",
            [*(unicodedata.normalize("NFD", char) for char in "한국어"), "e\u0301"],
        ),
        ("ᄒ\u200bᅡᆫ", ["ᄒ\u200bᅡᆫ"]),
    ],
)
@pytest.mark.parametrize(("lowercase", "strip_accents"), CHAINS)
def test_offsets_of_composed_characters(text, expected, lowercase, strip_accents):
    assert ranges(text, tokenizer=of_chain(lowercase, strip_accents)) == expected


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_outputs_are_composed(form):
    pieces = [unicodedata.normalize("NFD", piece) for piece in ("각", "##가", "##é")]
    tokenizer = WordPiece([*SPECIALS, *pieces], lowercase=False)
    assert tokenizer.names([5, 6, 7]) == ["각", "##가", "##é"]
    assert tokenizer.decode([5, 6, 7]) == tokenizer.normalized(unicodedata.normalize(form, "각가é")) == "각가é"
