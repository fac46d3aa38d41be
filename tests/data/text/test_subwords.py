"""Tests of encoding and decoding with every kind of vocabulary."""

import io
import json
import pickle
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors

from bertjax.data.text import subwords
from bertjax.data.text.library_tokenizers import LibraryTokenizer
from bertjax.data.text.sentencepiece_models import SentencePiece
from bertjax.data.text.subword_vocabularies import load_side, open_vocabulary, save_side
from bertjax.data.text.subwords import SPECIALS, Splitter
from bertjax.data.text.vocabularies import SPECIALS as BERT_SPECIALS
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from tests.data.text.test_bpe_trainer import train

# Scripts whose normalization is the same in all versions of Unicode.
RANGES = [(0x20, 0x24F), (0x300, 0x36F), (0x370, 0x377), (0x400, 0x45F), (0x1E00, 0x1EFF), (0x2000, 0x206F)]
RANGES += [(0x2580, 0x2590), (0x3000, 0x30FE), (0x4E00, 0x4E20), (0xAC00, 0xAC40), (0xFF01, 0xFF20), (0x1F600, 0x1F610)]
CHARS = st.one_of(*(st.characters(min_codepoint=low, max_codepoint=high) for low, high in RANGES))
TEXTS = st.lists(st.one_of(CHARS, st.sampled_from(" \t\n\rab.'")), max_size=30).map("".join)

TEXT = 'The cat, the new cat and the newest hat: "that\'s it" - 3,50 € für die Katze! the hat, the cat?'


def bpe_of(texts, vocab_size=400, normalization="nfc", lowercase=False, coverage=1.0):
    counts = Splitter(normalization, lowercase).count_words(texts)
    trained = train(counts, vocab_size, SPECIALS, coverage)
    return subwords.byte_pair(trained, normalization, lowercase)


def spaced(text):
    """Replaces line breaks and WORD_BEGIN by spaces, as decoding does."""
    return text.replace("\n", " ").replace("\r", " ").replace("▁", " ")


def back(vocabulary, text):
    (ids,) = vocabulary.encode_batch([text])
    return vocabulary.decode(ids)


@pytest.fixture(scope="module")
def bpe():
    return bpe_of([TEXT], 40)


@pytest.fixture(scope="module")
def wordpiece():
    vocab = (*BERT_SPECIALS, "the", "cat", "new", "##est", "##s", ",", "'", "#", "a", "[", "]", "mask")
    return WordPiece(vocab, lowercase=True)


@pytest.fixture(scope="module")
def sentencepiece_model():
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    model = io.BytesIO()
    trainer.train(sentence_iterator=iter([TEXT] * 5), model_writer=model, vocab_size=36, minloglevel=2)
    return model.getvalue()


@pytest.fixture
def sentencepiece_file(sentencepiece_model, tmp_path):
    path = tmp_path / "source.spm"
    path.write_bytes(sentencepiece_model)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A new day", ["▁A", "▁new", "▁day"]),
        ('He said:  "no"', ["▁He", "▁said", ":", "▁", '▁"', "no", '"']),
        ("it's 3,50€", ["▁it", "'", "s", "▁3", ",", "50", "€"]),
        ("a\u00a0b\tc", ["▁a", "\u00a0", "b", "\t", "c"]),
        ("e\u0301t\u00e9 <s>", ["▁été", "▁<", "s", ">"]),
        ("東京。Ab", ["▁東京", "。", "Ab"]),
        (" ", ["▁", "▁"]),
        ("", []),
    ],
)
def test_splitter_words(text, words):
    assert Splitter("nfc", lowercase=False).words(text) == words


def test_splitter_normalizes_words():
    assert Splitter("nfkc", lowercase=False).words("ﬁne\u00a0Ａ ½") == ["▁fine", "▁A", "▁1", "⁄", "2"]
    assert Splitter("nfkc", lowercase=True).words("ÉTÉ ℡") == ["▁été", "▁tel"]
    assert Splitter("nfc", lowercase=True).words("ÉTÉ ﬁ") == ["▁été", "▁ﬁ"]
    with pytest.raises(UserError, match=r"data\.normalization: got 'nfd'; expected one of nfc, nfkc"):
        Splitter("nfd", lowercase=False)


def test_special_tokens_are_skipped_in_decoding_and_ordinary_text_in_encoding(bpe):
    assert (bpe.pad_id, bpe.unk_id, bpe.cls_id, bpe.sep_id) == (0, 1, 2, 3)
    ids = bpe.encode_batch(["the cat"])[0]
    assert bpe.decode([bpe.cls_id, *ids, bpe.sep_id, bpe.pad_id, bpe.pad_id]) == "the cat"
    vocabulary = bpe_of(["the cat <s> </s> <pad> <unk>"])
    for text in ("<s>", "the</s> cat", "<pad><unk>"):
        (ids,) = vocabulary.encode_batch([text])
        assert min(ids) > 3
        assert vocabulary.decode(ids) == text


def test_unknown_characters(bpe):
    (ids,) = bpe.encode_batch(["the 東cat東"])
    assert ids.count(bpe.unk_id) == 2
    assert bpe.decode(ids) == "the <unk>cat<unk>"
    rare = bpe_of(["aaaaaaaaa b"], coverage=0.9)
    assert rare.encode_batch(["b"])[0].count(rare.unk_id) == 1


@settings(max_examples=60)
@given(TEXTS, st.booleans())
def test_byte_pairs_restore_every_text(text, compatible):
    form = "nfkc" if compatible else "nfc"
    vocabulary = bpe_of([text, "a b"], 100, form)
    assert back(vocabulary, text) == spaced(unicodedata.normalize(form.upper(), text)) == vocabulary.normalized(text)


@settings(max_examples=60)
@given(TEXTS)
def test_characters_restore_every_text(text):
    vocabulary = subwords.characters(sorted(set(text)))
    assert back(vocabulary, text) == text == vocabulary.normalized(text)
    assert len(vocabulary.encode_batch([text])[0]) == len(text)
    assert vocabulary.vocab_size == 4 + len(set(text))


def test_unknown_code_points():
    vocabulary = subwords.characters("19. ")
    assert vocabulary.encode_batch(["9.년1"])[0] == [5, 6, 1, 4]
    assert back(vocabulary, "9.년1") == "9.<unk>1"


def test_wordpiece(wordpiece):
    assert back(wordpiece, "The newest cats' # ##a") == "the newest cats ' # # # a"
    assert back(wordpiece, "the [MASK] dog") == "the [ mask ] [UNK]"


def test_known_and_unknown_text_is_normalized(bpe, wordpiece, sentencepiece_model):
    """Most vocabularies compose Korean text that is given in decomposed form."""
    decomposed = unicodedata.normalize("NFD", "한국어")
    sentencepiece = SentencePiece(sentencepiece_model, "source.spm")
    compatible = bpe_of([TEXT], 40, "nfkc", lowercase=True)
    for vocabulary, text, expected, name in (
        (bpe, f"The {decomposed}", "The 한국어", "nfc"),
        (compatible, f"Ｔhe {decomposed}", "the 한국어", "nfkc+lowercase"),
        (wordpiece, "The cat's Öl", "the cat ' s ol", "wordpiece+lowercase"),
        (sentencepiece, f"Ｔhe  {decomposed}", "The 한국어", "sentencepiece"),
        (subwords.characters("abc"), decomposed, decomposed, ""),
    ):
        assert (vocabulary.normalized(text), vocabulary.normalization) == (expected, name)


def test_normalizer_steps_without_types_are_read():
    content = json.loads(bpe_of([TEXT], 40)._library.to_str())
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"prepend": "_"}]}
    assert LibraryTokenizer.from_json(json.dumps(content), "tokenizer.json").normalization == "nfkc"


def test_a_given_sentencepiece_model(sentencepiece_model):
    vocabulary = SentencePiece(sentencepiece_model, "source.spm")
    assert (vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id) == (0, 1, 2)
    assert (vocabulary.pad_id, vocabulary.vocab_size) == (36, 37), "the model has no padding token"
    assert back(vocabulary, TEXT) == TEXT
    assert back(vocabulary, "the 東") == "the  \u2047 "


def test_a_given_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 3, "a": 0, "b": 1, "<eos>": 2, "[UNK]": 4}, unk_token="[UNK]"))
    tokenizer.enable_padding(length=9)
    tokenizer.enable_truncation(1)
    vocabulary = LibraryTokenizer.from_json(tokenizer.to_str(), "tokenizer.json")
    assert (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.unk_id) == (3, 3, 2, 4)
    assert vocabulary.encode_batch(["a", "c", ""]) == [[0], [4], []]


def test_language_names_in_a_text_are_tokens(bpe):
    """Only the names of the padding, begin, end and unknown tokens are ordinary text."""
    tokenizer = Tokenizer.from_str(bpe._library.to_str())
    tokenizer.add_special_tokens(["<2de>"])
    vocabulary = LibraryTokenizer.from_json(tokenizer.to_str(), "tokenizer.json")
    ids = vocabulary.encode_batch(["<2de> the cat"])[0]
    assert ids == tokenizer.encode("<2de> the cat").ids and ids[0] == tokenizer.token_to_id("<2de>")
    padding = vocabulary.encode_batch(["<pad>"])[0]
    assert padding == bpe.encode_batch(["<pad>"])[0] and vocabulary.pad_id not in padding
    (again,) = pickle.loads(pickle.dumps(vocabulary)).encode_batch(["<2de> the cat"])
    assert again == ids


def test_vocabularies_are_saved_loaded_and_pickled(bpe, wordpiece, sentencepiece_model, tmp_path):
    texts = ["the newest cat <s>", "ab", ""]
    for vocabulary in (bpe, subwords.characters("ab "), wordpiece, SentencePiece(sentencepiece_model, "source.spm")):
        folder = tmp_path / vocabulary.fingerprint / "folder"
        save_side(vocabulary, folder)
        if (library := folder / "tokenizer.json").exists():  # the file that transformers opens
            ids = Tokenizer.from_file(str(library)).encode("the cat").ids
            assert ids == [*vocabulary.encode_batch(["the cat"])[0], vocabulary.sep_id]
        loaded = load_side(folder)
        assert loaded.template.row([[7]])[0] == [7, vocabulary.sep_id]
        for other in (loaded, pickle.loads(pickle.dumps(vocabulary))):
            assert type(other) is type(vocabulary)
            assert other.fingerprint == vocabulary.fingerprint
            assert (other.vocab_size, other.pad_id) == (vocabulary.vocab_size, vocabulary.pad_id)
            assert other.encode_batch(texts) == vocabulary.encode_batch(texts)


def test_a_vocabulary_of_an_earlier_version_keeps_its_template_and_fingerprint(bpe, tmp_path):
    """Earlier versions wrote a post_processor for one text."""
    save_side(bpe, tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    end = library.id_to_token(bpe.sep_id)
    library.post_processor = processors.TemplateProcessing(["$A", end], special_tokens=[(end, bpe.sep_id)])
    library.save(str(tmp_path / "tokenizer.json"))
    loaded = load_side(tmp_path)
    assert (loaded.template, loaded.fingerprint) == (bpe.template, bpe.fingerprint)


def test_different_vocabularies_have_different_fingerprints(wordpiece, sentencepiece_model):
    texts = ["ab ab cd"]
    same = {bpe_of(texts).fingerprint for _ in range(3)}
    assert len(same) == 1
    others = (bpe_of(["ab ab ce"]), bpe_of(texts, normalization="nfkc"), bpe_of(texts, lowercase=True))
    others += (subwords.characters("abcd"), wordpiece, SentencePiece(sentencepiece_model, "source.spm"))
    assert len(same | {other.fingerprint for other in others}) == 7


def test_the_kind_of_a_vocabulary_is_detected(bpe, wordpiece, sentencepiece_file, tmp_path):
    bpe.save(tmp_path / "bpe")
    save_side(wordpiece, tmp_path / "bert")
    for path, kind in {
        tmp_path / "bpe": LibraryTokenizer,
        tmp_path / "bpe" / "tokenizer.json": LibraryTokenizer,
        tmp_path / "bert": WordPiece,
        tmp_path / "bert" / "vocab.txt": WordPiece,
        sentencepiece_file: SentencePiece,
    }.items():
        is_bert = kind is WordPiece
        assert type(open_vocabulary(path, lowercase=is_bert)) is kind
        if not is_bert:
            with pytest.raises(UserError, match=rf"data.lowercase: got True; expected False, because {path} defines"):
                open_vocabulary(path, lowercase=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", None, r"a\.json: got No such file.*; expected a readable vocabulary\. Fix: give a tokenizer\.json,"),
        ("a.json", b"{", r"a\.json: got EOF while parsing.*; expected a tokenizer\.json\. Fix: copy the file again"),
        ("a.model", b"nothing", r"a\.model: got an invalid SentencePiece model \(.*; expected a valid.* Fix: copy the"),
        ("a/b", b"", r"a/tokenizer\.json: got No such file"),
    ],
)
def test_unreadable_files_are_errors(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    if name == "a.model":
        pytest.importorskip("sentencepiece")
    with pytest.raises(UserError, match=message):
        open_vocabulary(path.parent if name == "a/b" else path, lowercase=False)


@pytest.mark.parametrize(("vocab", "missing"), [(["<pad>", "a"], "an end token"), (["a", "</s>"], "a padding token")])
def test_a_vocabulary_without_special_tokens_is_an_error(vocab, missing):
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocab)}, unk_token="a"))
    with pytest.raises(UserError, match=rf"a.json: got a vocabulary without {missing} \(.*; expected a vocabulary for"):
        LibraryTokenizer.from_json(tokenizer.to_str(), "a.json")


def test_unknown_characters_are_listed(bpe, wordpiece, sentencepiece_model):
    sentencepiece = SentencePiece(sentencepiece_model, "source.spm")
    for vocabulary in (bpe, sentencepiece, subwords.characters("the ca")):
        assert vocabulary.unknown("the 東東 cat ж") == ["東", "東", "ж"]
        assert vocabulary.unknown("the cat") == []
    assert wordpiece.unknown("the 東 cats' aa") == ["東", "aa"], "a word that is unknown only as a whole"
