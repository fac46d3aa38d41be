"""Tests of the tokenizers of published encoder-decoders: ids, rows and exports equal those of transformers."""

import functools
import importlib
import io
import json
import pickle
import random
import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bertjax.data.codecs.translation.parallel_text import Pair, ParallelTextConfig
from bertjax.data.codecs.translation.rows import PairCodec, TranslationRowsConfig
from bertjax.data.text.subword_vocabularies import Vocabularies, load_side, open_vocabulary, save_side
from bertjax.data.text.templates import Template
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.errors import UserError
from bertjax.interop.seq2seq_tokenizers import read_tokenizer
from tests.data.text import byte_bpe
from tests.data.text.sentencepiece_files import BPE, FIRST, model
from tests.data.text.test_library_encoders import DIFFICULT

OF_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LISTED = [f"<extra_id_{i}>" for i in range(3)]
MASKS = {"mask_token": "<mask_2>", "mask_token_sent": "<mask_1>"}
OF_MBART = {"tokenizer_class": "MBart50Tokenizer"}
LSTRIP = {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}}
# The model_type, the file and the options of its SentencePiece model, and the content of tokenizer_config.json.
KINDS = {
    "bart": ("bart", "", {}, {"tokenizer_class": "BartTokenizer"}),
    "bart with spaces": ("bart", "", {}, {"add_prefix_space": True, **LSTRIP}),
    "mbart": ("mbart", "sentencepiece.bpe.model", {"user_defined_symbols": "@user"}, OF_MBART),
    "mt5": ("mt5", "spiece.model", OF_T5, {"extra_ids": 0, "tokenizer_class": "T5Tokenizer"}),
    "pegasus": ("pegasus", "spiece.model", {**OF_T5, "user_defined_symbols": "<n>"}, {}),
    "pegasus with masks": ("pegasus", "spiece.model", OF_T5, {**MASKS, "offset": 9}),
    "t5": ("t5", "spiece.model", {**OF_T5, "user_defined_symbols": "@user"}, {}),
    "t5 with tokens": ("t5", "spiece.model", OF_T5, {"extra_ids": 3, "additional_special_tokens": [*LISTED, "<new>"]}),
    "t5 without a table": ("t5", "spiece.model", {**OF_T5, "normalization_rule_name": "identity"}, {}),
    "pegasus without a table": ("pegasus", "spiece.model", {**OF_T5, "normalization_rule_name": "identity"}, {}),
}
NAMES = ("<s>", "</s>", "<pad>", "<unk>")  # of special tokens that are text here, but not in transformers
PIECES = [
    *(piece for piece in DIFFICULT if piece not in NAMES),
    *("Hello", "   ", "\u2581", "\uff21", "1234", "<extra_id_0>", "<extra_id_99>", "<mask>", "<mask_1>", "<mask_2>"),
    *("<unk_2>", "<unk_50>", "ko_KR", "en_XX", "@user", "<n>", "<new>"),
]


@functools.cache
def train(**options):
    sentencepiece = pytest.importorskip("sentencepiece")
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(byte_bpe.TEXTS * 20),
        model_writer=trained,
        vocab_size=110,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return trained.getvalue()


def write(folder, kind):
    """Writes the older files of a kind, and returns its model_type."""
    family, file, options, config = KINDS[kind]
    if file:
        (folder / file).write_bytes(train(**options))
    else:
        bpe = byte_bpe.trained()._library.model
        bpe.save(str(folder))
        ids = json.loads((folder / "vocab.json").read_text())
        special = dict(zip(SPECIALS, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
        (folder / "vocab.json").write_text(json.dumps({special.get(token, token): ids[token] for token in ids}))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return family


@pytest.fixture
def transformers(monkeypatch):
    package = pytest.importorskip("transformers")
    convert = importlib.import_module("transformers.convert_slow_tokenizer")
    format_ = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
    monkeypatch.setattr(convert, "import_protobuf", lambda *_: format_)
    return package


@pytest.mark.parametrize("is_library", [False, True], ids=["older files", "tokenizer.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_folders_give_the_ids_of_transformers(kind, is_library, tmp_path, transformers):
    family = write(tmp_path, kind)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if is_library:
        for path in tmp_path.iterdir():
            if path.name != "config.json":
                path.unlink()
        theirs.save_pretrained(tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, family)
    names = [theirs.pad_token, theirs.unk_token, theirs.eos_token]
    assert theirs.convert_tokens_to_ids(names) == [ours.pad_id, ours.unk_id, ours.sep_id]
    starts = family in ("bart", "mbart")
    assert ours.cls_id == (theirs.convert_tokens_to_ids("<s>") if starts else ours.pad_id)
    rng = random.Random(0)
    texts = ["", *PIECES, *("".join(rng.choices(PIECES, k=rng.randrange(2, 20))) for _ in range(200))]
    code = ""
    if family == "mbart":
        # A code includes all spaces after it, also those that are tokens in transformers.
        texts = [re.sub("\x85|en_XX|ko_KR", "", text).strip() for text in texts]
        theirs.src_lang = "ko_KR"
        code = "ko_KR "
    rows = [ours.template.row([ids])[0] for ids in ours.encode_batch([code + text for text in texts])]
    assert rows == theirs(texts)["input_ids"]
    check_saved(ours, [code + text for text in texts], rows, family, tmp_path / "saved", transformers)
    theirs.split_special_tokens = theirs._tokenizer.encode_special_tokens = True
    text = f"a{' a'.join(NAMES)}"
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def check_saved(ours, texts, rows, family, folder, transformers):
    save_side(ours, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs(texts)["input_ids"] == rows
    decoded = theirs.batch_decode(rows, skip_special_tokens=True)
    assert [text.replace(ours.newline, "\n") for text in decoded] == list(map(ours.decode, rows))
    for again in (load_side(folder), pickle.loads(pickle.dumps(ours)), read_tokenizer(folder, family)):
        assert (again.template, again.fingerprint) == (ours.template, ours.fingerprint)
        fields = ("pad_id", "unk_id", "cls_id", "sep_id", "vocab_size", "silent")
        assert [getattr(again, field) for field in fields] == [getattr(ours, field) for field in fields]
        assert [again.template.row([ids])[0] for ids in again.encode_batch(texts)] == rows
    plain = open_vocabulary(folder, lowercase=False)
    assert plain.template == Template.of_marian(plain.sep_id)
    assert (plain.fingerprint == ours.fingerprint) == (plain.template == ours.template)


def test_the_space_after_a_language_is_no_token(tmp_path):
    write(tmp_path, "mbart")
    ours = read_tokenizer(tmp_path, "mbart")
    code, *ids = ours.encode("ko_KR 서울")
    assert ours.vocab_size - 53 <= code < ours.vocab_size - 1, "languages precede the mask token"
    assert ids == ours.encode("서울") == ours.encode(" 서울")
    assert ours.encode("서울 ko_KR  서울") == [*ids, ours.encode("\u2581")[0], code, *ids]
    assert ours.encode("ko_KR ") == ours.encode("ko_KR") == [code]
    assert ours.decode([code, *ids]) == "서울"


def test_pegasus_writes_the_ends_of_lines_as_a_token(tmp_path):
    """In targets; transformers reads those of sources as spaces, on which its ids depend."""
    ours = read_tokenizer(tmp_path, write(tmp_path, "pegasus"))
    codec = PairCodec(Vocabularies(ours, ours), TranslationRowsConfig(seq_len=32), ParallelTextConfig())
    (row,) = codec.rows([Pair("a cat\na cat", "a cat\na cat", "")])
    assert row["input_ids"].tolist() == [*ours.encode("a cat a cat"), ours.sep_id]
    assert row["labels"].tolist() == [*ours.encode("a cat<n>a cat"), ours.sep_id]
    assert codec.translation(row["labels"]) == "a cat\na cat"


def test_a_bart_of_no_class_without_template_has_an_end_token(tmp_path, caplog):
    """As KoBART, whose summaries are trained to end with </s> but not to start with <s>."""
    library_of(None, ("<s>", "</s>", "<pad>", "<unk>", "<mask>")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert read_tokenizer(tmp_path, "bart").template == Template.of_marian(1)
    assert "states no special tokens around texts: bertjax adds </s>" in caplog.text


def library_of(post_processor, first=("<pad>", "</s>", "<unk>")):
    """A byte-level BPE with the special tokens of T5."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({token: i for i, token in enumerate((*first, *alphabet))}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = post_processor
    return library


@pytest.mark.parametrize(("name", "processor", "template"), [
    ("T5TokenizerFast", None, Template((), (), (1,), 0)),
    ("PreTrainedTokenizerFast", ("$A </s>", "$A </s> $B </s>"), Template((), (1,), (1,), 0)),
    ("TokenizersBackend", ("<pad> $A </s>", "<pad> $A $B </s>"), Template((0,), (), (1,), 0)),
])  # fmt: skip
def test_a_tokenizer_json_that_the_class_cannot_build_is_applied(name, processor, template, tmp_path):
    """pko-t5, for example, is a byte-level BPE of the class T5TokenizerFast."""
    special = [("</s>", 1), ("<pad>", 0)]
    step = processor and processors.TemplateProcessing(*processor, special_tokens=special)
    library_of(step).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    ours = read_tokenizer(tmp_path, "t5")
    assert ours.template == template and (ours.pad_id, ours.cls_id, ours.sep_id, ours.unk_id) == (0, 0, 1, 2)
    assert ours.encode("한 a") == library_of(None).encode("한 a").ids
    assert ours.decode(ours.encode("한 a")) == "한 a"


@pytest.mark.parametrize(("kind", "files", "message"), [
    ("t5", {}, "the tokenizer of .*: got no tokenizer.json and no spiece.model; expected one of them"),
    ("bart", {"vocab.json": "{}"}, "got no tokenizer.json and no merges.txt"),
    ("bart", {"vocab.json": "{}", "merges.txt": ""}, r"got a vocabulary without pad_token \(<pad>\) and eos_token"),
    ("bart", {"vocab.json": "{", "merges.txt": ""}, "merges.txt: got .*; expected a vocabulary. Fix: copy the files"),
    ("t5", {"spiece.model": "nonsense"}, "spiece.model: got .*"),
    ("t5", {"spiece.model": model(FIRST, BPE)}, "spiece.model: got a model of type 2; expected one of type unigram"),
    ("t5", {"tokenizer.json": "{"}, "tokenizer.json: got .*; expected JSON"),
    ("t5", {"tokenizer.json": '{"model": {"type": "Unigram"}}'}, "tokenizer.json: got 'vocab'; expected a vocabulary"),
    ("mbart", {"sentencepiece.bpe.model": model(FIRST)}, "got tokenizer_class MBartTokenizer; expected .* MBart50T"),
    ("t5", {"tokenizer_config.json": '{"tokenizer_class": "BartTokenizer"}'}, "class BartTokenizer; expected .* T5Tok"),
    ("t5", {"config.json": '{"tokenizer_class": "TokenizersBackend"}'}, "got no tokenizer.json; expected"),
    ("t5", {"tokenizer_config.json": '{"truncation_side": "left"}'}, "truncation_side: got left; expected 'right'"),
    ("pegasus", {"spiece.model": model(FIRST), "tokenizer_config.json": '{"mask_token": "<mask_2>"}'}, "shifts all"),
])  # fmt: skip
def test_unusable_folders_are_errors(kind, files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        read_tokenizer(tmp_path, kind)


def test_a_mask_token_without_embedding_is_text(tmp_path):
    """As in bart-large-cnn and distilbart-cnn, whose models have one embedding less than their tokenizers."""
    write(tmp_path, "bart")
    ids = json.loads((tmp_path / "vocab.json").read_text())
    del ids["<mask>"]
    ordered = [*sorted(ids, key=ids.__getitem__), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(ordered)}))
    size = len(ids)
    assert read_tokenizer(tmp_path, "bart", size + 1).encode("<mask>") == [size]
    ours = read_tokenizer(tmp_path, "bart", size)
    assert ours.vocab_size == size
    assert ours.decode(ours.encode("a <mask>")) == "a <mask>"
    assert read_tokenizer(tmp_path, "bart", size - 1).vocab_size == size + 1, "no other token is left out"
