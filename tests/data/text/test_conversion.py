"""Tests of vocabularies without a tokenizer.json: ids, templates and exports equal those of transformers."""

import importlib
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertjax.data.text.templates import Template
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import casing, load_saved, load_tokenizer, saved_file
from bertjax.errors import UserError
from tests.data.text.sentencepiece_files import BPE, FIRST, OF_ALBERT, OF_BERT, UNIGRAM, charsmap, model
from tests.data.text.test_library_encoders import DIFFICULT, roberta

LOWER = {"do_lower_case": True, "split_by_punct": True}
KEPT = {"do_lower_case": False, "keep_accents": True}
# The file, its first pieces, the type of the model, the class of the tokenizer, and its settings.
KINDS = {
    "xlm-r": ("sentencepiece.bpe.model", FIRST, UNIGRAM, "XLMRoberta", {}),
    "bpe": ("sentencepiece.bpe.model", FIRST, BPE, "XLMRoberta", {}),
    "camembert": ("sentencepiece.bpe.model", FIRST, UNIGRAM, "Camembert", {}),
    "deberta": ("spm.model", OF_BERT, UNIGRAM, "DebertaV2", {"do_lower_case": False, "split_by_punct": False}),
    "uncased deberta": ("spm.model", OF_BERT, UNIGRAM, "DebertaV2", LOWER),
    "albert": ("spiece.model", OF_ALBERT, UNIGRAM, "Albert", {"do_lower_case": True, "keep_accents": False}),
    "cased albert": ("spiece.model", OF_ALBERT, UNIGRAM, "Albert", KEPT),
}
PIECES = [*DIFFICULT, "\uff21", "cats", "The", "thing", "3,", "``", "''", "@user", "[MASK]", "<mask>", "\u2581"]


def write(folder, kind, table=b""):
    """Writes the folder of a kind, and returns the class and the settings of its tokenizer."""
    file, first, of_model, name, settings = KINDS[kind]
    folder.mkdir(exist_ok=True)
    (folder / file).write_bytes(model(first, of_model, table=table))
    stated = {"tokenizer_class": f"{name}Tokenizer", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    return name, settings


def theirs_of(folder, kind, monkeypatch):
    """The tokenizer that transformers' converter makes of a folder."""
    transformers = pytest.importorskip("transformers")
    convert = importlib.import_module("transformers.convert_slow_tokenizer")
    format_ = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
    monkeypatch.setattr(convert, "import_protobuf", lambda *_: format_)
    monkeypatch.setattr(convert, "requires_backends", lambda *_: None)
    name, settings = KINDS[kind][3:]
    of_bert = kind.endswith(("deberta", "albert"))
    names = ("[CLS]", "[SEP]", "[MASK]") if of_bert else ("<s>", "</s>", "<mask>")
    pad, unk = ("[PAD]", "[UNK]") if name == "DebertaV2" else ("<pad>", "<unk>")
    strips = {"lstrip": name != "DebertaV2", "normalized": False}
    special = {"pad_token": pad, "unk_token": unk, "cls_token": names[0], "sep_token": names[1]}
    mask = transformers.AddedToken(names[2], special=True, **strips)
    ids = {}
    slow = SimpleNamespace(vocab_file=str(saved_file(folder)), convert_tokens_to_ids=ids.get, **settings)

    class Converter(getattr(convert, f"{name}Converter")):
        class SpmExtractor:
            """Of BPE; that of transformers 5 fails."""

            def __init__(self, path):
                self._proto = format_.ModelProto.FromString(Path(path).read_bytes())

            def extract(self, _):
                pieces = {each.piece: each.score for each in self._proto.pieces}
                return None, convert.generate_merges({each: i for i, each in enumerate(pieces)}, pieces.items())

    library = Converter(slow).tokenizer(Converter(slow).proto)
    library.add_special_tokens([*special.values(), mask])
    ids.update(library.get_vocab(with_added_tokens=True))
    converted = Converter(slow).converted()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=converted, mask_token=mask, **special)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentencepiece_model_gives_the_ids_of_transformers(kind, tmp_path, monkeypatch):
    write(tmp_path, kind, charsmap())
    check(tmp_path, theirs_of(tmp_path, kind, monkeypatch))


def test_byte_pairs_in_two_files_give_the_ids_of_transformers(tmp_path):
    theirs = roberta(tmp_path)
    check(tmp_path, theirs)
    values = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(values["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{' '.join(m)}\n" for m in values["merges"]))
    check(tmp_path, theirs)


def test_a_word_piece_vocabulary_of_mpnet_has_its_template(tmp_path):
    transformers = pytest.importorskip("transformers")
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "[CLS]", "the", "cat", "##s", "<mask>"]
    theirs = transformers.MPNetTokenizer(vocab={token: number for number, token in enumerate(vocab)})
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    check(tmp_path, theirs)
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    (tmp_path / "tokenizer.json").unlink()
    check(tmp_path, theirs)
    tokenizer = load_tokenizer(tmp_path, lowercase=True)
    assert tokenizer.names(tokenizer.encode_with_masks("the [MASK]<mask> x")) == ["the", "[MASK]", "[MASK]", "[UNK]"]


@pytest.mark.parametrize(("first", "name", "template"), [
    (FIRST, "sentencepiece.bpe.model", Template((0,), (2, 2), (2,), 0)),
    (OF_BERT, "spm.model", Template((1,), (2,), (2,), 1)),
    (OF_ALBERT, "spiece.model", Template((2,), (3,), (3,), 1)),
])  # fmt: skip
def test_the_name_of_a_file_decides_if_nothing_states_the_class(first, name, template, tmp_path):
    (tmp_path / name).write_bytes(model(first, table=charsmap()))
    tokenizer = load_tokenizer(tmp_path, lowercase=False)
    assert tokenizer.template == template and tokenizer.mask_id in (4, tokenizer.vocab_size - 1)
    assert tokenizer == load_tokenizer(tmp_path / name, lowercase=False)
    wide, plain = tokenizer.encode_batch(["\uff21", "A"])
    assert wide == plain and tokenizer.unk_id not in wide


def test_hangul_is_composed_after_accents_are_stripped(tmp_path):
    """As by SentencePiece, where transformers' converter leaves letters, which KoBERT has no tokens of."""
    (tmp_path / "spiece.model").write_bytes(model(OF_ALBERT))
    tokenizer = load_tokenizer(tmp_path, lowercase=False)
    assert tokenizer.names(tokenizer.encode_batch(["한국어"])[0]) == ["한국", "##어"]


@pytest.mark.parametrize(("change", "message"), [
    ({"tokenizer_config.json": '{"tokenizer_class": "T5Tokenizer"}'}, "tokenizer_class T5Tokenizer; expected for spm"),
    ({"tokenizer_config.json": '{"tokenizer_class": "AlbertTokenizer", "remove_space": false}'}, "remove_space: got F"),
    ({"added_tokens.json": '{"[MASK]": 3000}'}, r"json: added token '\[MASK\]': got 3000; expected"),
    ({"spm.model": model(OF_BERT, 3)}, "got a model of type 3; expected a SentencePiece model of type unigram or bpe"),
    ({"spm.model": b"\x00"}, "got wire type 0|expected"),
    ({"vocab.txt": "\n".join([*SPECIALS, "\u2581a"])}, "got tokens of SentencePiece.*name the SentencePiece model"),
])  # fmt: skip
def test_a_vocabulary_that_would_give_other_ids_is_an_error(change, message, tmp_path):
    (tmp_path / "spm.model").write_bytes(model(OF_BERT))
    for name, content in change.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path, lowercase=False)


def check(folder, theirs):
    """Compares ids of texts and pairs, also those of the tokenizer that transformers opens after we saved it."""
    import transformers

    ours = load_tokenizer(folder, casing(folder))
    ours.save(folder / "saved")
    again, opened = load_saved(folder / "saved"), transformers.AutoTokenizer.from_pretrained(folder / "saved")
    assert again == ours and again.key == ours.key and again.template == ours.template
    rng = random.Random(0)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(1, 20))) for _ in range(200)]
    ids = ours.encode_batch(texts)
    for other in (theirs, opened):
        other.split_special_tokens = other._tokenizer.encode_special_tokens = True
        assert other(texts)["input_ids"] == [ours.template.row([one])[0] for one in ids]
        pairs = zip(ids, ids[::-1], strict=True)
        assert other(texts, texts[::-1])["input_ids"] == [ours.template.row(pair)[0] for pair in pairs]
    for text, expected in zip(texts, ids, strict=True):
        found, starts, ends = ours.encode_with_offsets(text)
        assert found.tolist() == expected
        assert sorted(starts) == starts.tolist() and sorted(ends) == ends.tolist(), text
        assert all(text[start:end] == text[start:end].strip() for start, end in zip(starts, ends, strict=True))
