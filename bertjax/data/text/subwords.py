"""Converts texts to the tokens of an encoder-decoder, and back: one interface to all kinds of vocabularies."""

import abc
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int32
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertjax.config import choice
from bertjax.data.text.bpe_trainer import Bpe
from bertjax.data.text.library_tokenizers import with_ordinary_tokens
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.vocabularies import CONTINUATION
from bertjax.data.text.vocabulary_config import load_wordpiece
from bertjax.errors import UserError
from bertjax.files import completed

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
WORD_BEGIN = "\u2581"  # SentencePiece's symbol for a space

# The names of special tokens in published vocabularies. The first name that exists is used.
_PADS = ("<pad>", "[PAD]", "<|pad|>", "<PAD>")
_UNKS = ("<unk>", "[UNK]", "<UNK>")
_BEGINS = ("<s>", "[CLS]", "<bos>", "[BOS]", "<BOS>")
_ENDS = ("</s>", "[SEP]", "<eos>", "[EOS]", "<EOS>", "<|endoftext|>")

_LIBRARY_FILE, _SENTENCEPIECE_FILE = "tokenizer.json", "spm.model"

Ids = Int32[np.ndarray, " tokens"]


class Special(NamedTuple):
    """The ids of the special tokens."""

    pad: int
    begin: int  # equals `pad` in a vocabulary without a begin token, because Marian and T5 start with it
    end: int
    unknown: int | None  # None if every text can be encoded


class Subwords(abc.ABC):
    """A vocabulary that converts texts to ids and back.

    Attributes:
      vocab_size: V; all ids are below it.
      pad_id, bos_id, eos_id, unk_id: the ids of the special tokens, see `Special`. Their names in a text are ordinary
        text.
      normalization: the steps of `normalized`, such as "nfkc+lowercase"; empty if it changes nothing.
    """

    def __init__(self, vocab_size: int, special: Special, normalization: str) -> None:
        self.vocab_size = vocab_size
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = special
        self.normalization = normalization

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, without special tokens."""

    def decode(self, ids: Int[np.ndarray, " tokens"]) -> str:
        """Returns the text of ids. Padding, begin and end tokens are skipped."""
        silent = (self.pad_id, self.bos_id, self.eos_id)
        return self._text([token for token in ids.tolist() if token not in silent])

    def unknown(self, text: str) -> list[str]:
        """Returns the characters of a text that become the unknown token, and words that do so only as a whole."""
        found: list[str] = []
        words = text.split()
        for word, is_unknown in zip(words, self._are_unknown(words), strict=True):
            characters = [c for c, alone in zip(word, self._are_unknown(list(word)), strict=True) if alone]
            found += (characters or [word]) if is_unknown else ()
        return found

    def _are_unknown(self, texts: list[str]) -> list[bool]:
        return [self.unk_id in ids for ids in self.encode_batch(texts)]

    @abc.abstractmethod
    def normalized(self, text: str) -> str:
        """Returns the normalized text: the result of decoding its ids if the vocabulary has all of its characters."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the vocabulary to a folder, for `load`."""

    @property
    def fingerprint(self) -> str:
        """A digest that identifies the vocabulary."""
        return hashlib.sha256(self._content()).hexdigest()

    @abc.abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Returns the text of ids that may include the unknown token, but no other special token."""

    @abc.abstractmethod
    def _content(self) -> bytes:
        """Returns the whole vocabulary as bytes."""


class LibrarySubwords(Subwords):
    """A tokenizer of the `tokenizers` library: byte pairs or characters trained here, or a given tokenizer.json.

    An unknown character is decoded as "<unk>".
    """

    def __init__(self, content: str, where: str) -> None:
        """Opens a tokenizer.

        Args:
          content: the content of a tokenizer.json.
          where: its name, for messages.
        Raises:
          UserError: if it is not a tokenizer.json, or has no padding or end token.
        """
        try:
            tokenizer = Tokenizer.from_str(content)
        except Exception as error:  # the library raises no narrower type
            fix = "copy the file again, or save it again with the tokenizers library"
            raise UserError(where, got=str(error), expected="a tokenizer.json", fix=fix) from None
        ids = tokenizer.get_vocab(with_added_tokens=True)
        special = _special(ids, where)
        self._where = where
        self._tokenizer = with_ordinary_tokens(tokenizer, {name for name in ids if ids[name] in special})
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.post_processor = None  # special tokens are added here
        # Read from what the library writes, because in an input file steps may lack their types.
        steps = _normalization(json.loads(tokenizer.to_str()).get("normalizer"))
        super().__init__(max(ids.values(), default=-1) + 1, special, steps)

    def __reduce__(self) -> tuple[type["LibrarySubwords"], tuple[str, str]]:
        return LibrarySubwords, (self._tokenizer.to_str(), self._where)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def normalized(self, text: str) -> str:
        """Returns the normalized text: the result of decoding its ids if the vocabulary has all of its characters."""
        normalizer = self._tokenizer.normalizer
        return _without_marks(normalizer.normalize_str(text)) if normalizer else text

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which `transformers.AutoTokenizer` can also open."""
        _save_tokenizer(folder, Tokenizer.from_str(self._tokenizer.to_str()), self)

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _content(self) -> bytes:
        return self._tokenizer.to_str(pretty=True).encode()


class WordPieceSubwords(Subwords):
    """The vocabulary of a BERT. Decoded words and punctuation marks are separated by spaces."""

    def __init__(self, tokenizer: WordPiece) -> None:
        special = Special(tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id)
        super().__init__(tokenizer.vocab_size, special, "wordpiece" + "+lowercase" * tokenizer.lowercase)
        self._tokenizer = tokenizer

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, without special tokens."""
        return [np.array(ids, np.int32) for ids in self._tokenizer.encode_batch(texts)]

    def normalized(self, text: str) -> str:
        """Returns the words of the text, separated by spaces."""
        return " ".join(self._tokenizer.words(text))

    def save(self, folder: Path) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json. `transformers.AutoTokenizer` can open them."""
        self._tokenizer.save(folder)
        tokenizer = Tokenizer.from_file(str(folder / _LIBRARY_FILE))
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
        _save_tokenizer(folder, tokenizer, self)

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)

    def _content(self) -> bytes:
        return json.dumps([self._tokenizer.vocab, self._tokenizer.lowercase]).encode()


class SentencePieceSubwords(Subwords):
    """A SentencePiece model. An unknown character is decoded as " \u2047 ", SentencePiece's default.

    Attributes:
      model: the content of the model file.
    """

    def __init__(self, model: bytes, where: str) -> None:
        """Opens a model.

        Args:
          model: the content of the model file.
          where: its name, for messages.

        Raises:
          UserError: if the content is not a model, the model has no end token, or `sentencepiece` is not installed.
        """
        self.model, self._where = model, where
        self._processor = processor = sentencepiece_processor(model, where)
        size, end = processor.get_piece_size(), processor.eos_id()
        if end < 0:
            raise _without(where, "an end token (eos)")
        # Most models have no padding token, so padding gets an additional id.
        pad = size if processor.pad_id() < 0 else processor.pad_id()
        begin = pad if processor.bos_id() < 0 else processor.bos_id()
        special = Special(pad, begin, end, processor.unk_id())
        super().__init__(size + (pad == size), special, "sentencepiece")

    def __reduce__(self) -> tuple[type["SentencePieceSubwords"], tuple[bytes, str]]:
        return SentencePieceSubwords, (self.model, self._where)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, without special tokens."""
        return [np.array(ids, np.int32) for ids in self._processor.encode(list(texts))]

    def normalized(self, text: str) -> str:
        """Returns the normalized text: the result of decoding its ids if the vocabulary has all of its characters."""
        return sentencepiece_normalized(self._processor, text)

    def save(self, folder: Path) -> None:
        """Writes a copy of the model to spm.model."""
        _write(folder, _SENTENCEPIECE_FILE, self.model)

    def names(self) -> list[str]:
        """Returns the V pieces in the order of their ids. An additional padding token gets an unused name."""
        pieces: list[str] = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        free = next(name for name in itertools.chain(_PADS, map(str, itertools.count())) if name not in pieces)
        return pieces + [free] * (self.vocab_size - len(pieces))

    def _text(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def _content(self) -> bytes:
        return self.model


def sentencepiece_processor(model: bytes, where: str) -> Any:
    """Opens a SentencePiece model. Raises UserError about `where` if the package or the model is unusable."""
    try:
        import sentencepiece  # optional: needed only for such models
    except ImportError:
        got = "a SentencePiece model, but the package sentencepiece is not installed"
        fix = "pip install sentencepiece==0.2.3"
        raise UserError(where, got=got, expected="the package sentencepiece", fix=fix) from None
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        fix = "copy the file again, or use a file that spm_train wrote"
        got = f"an invalid SentencePiece model ({error})"
        raise UserError(where, got=got, expected="a valid model", fix=fix) from None


def sentencepiece_normalized(processor: Any, text: str) -> str:
    """Returns a text as a SentencePiece processor normalizes it."""
    return _without_marks(processor.normalize(text))


def load(folder: Path) -> Subwords:
    """Returns the vocabulary that `save` wrote. Raises UserError if the folder has none."""
    if (folder / _SENTENCEPIECE_FILE).exists():
        return SentencePieceSubwords(_read(folder / _SENTENCEPIECE_FILE), str(folder / _SENTENCEPIECE_FILE))
    if (folder / "vocab.txt").exists():
        return WordPieceSubwords(WordPiece.load(folder))
    return _library(folder / _LIBRARY_FILE)


def open_vocabulary(path: Path, lowercase: bool) -> Subwords:
    """Opens the vocabulary at a path that a config names.

    Args:
      path: a tokenizer.json, a SentencePiece model (`.model` or `.spm`), a vocab.txt, or a folder with a
        tokenizer.json, a vocab.txt or a `spm.model`.
      lowercase: the casing of a vocab.txt. Must be False for the other kinds, which define their own casing.
    Raises:
      UserError: if the file does not exist or cannot be read, or `lowercase` is not allowed.
    """
    is_sentencepiece = path.suffix in (".model", ".spm")
    if (path / "vocab.txt").exists() or not (path.is_dir() or is_sentencepiece or path.suffix == ".json"):
        return WordPieceSubwords(load_wordpiece(path, lowercase))
    if lowercase:
        expected = f"False, because {path} defines its own casing"
        fix = "remove the key, and lowercase the text beforehand if necessary"
        raise UserError("config key data.lowercase", got=lowercase, expected=expected, fix=fix)
    if path.is_dir():
        return load(path)
    return SentencePieceSubwords(_read(path), str(path)) if is_sentencepiece else _library(path)


def byte_pair(bpe: Bpe, normalization: str, lowercase: bool) -> LibrarySubwords:
    """Returns byte-pair encoding over the words of a `Splitter`. The first tokens are `SPECIALS`."""
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(bpe.vocab)}, bpe.merges, unk_token="<unk>"))
    tokenizer.normalizer = _normalizer(normalization, lowercase)
    tokenizer.pre_tokenizer = _SPLIT
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(WORD_BEGIN, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_specials(tokenizer)


def characters(alphabet: Sequence[str]) -> LibrarySubwords:
    """Returns a vocabulary of code points, including spaces, without normalization. The first tokens are `SPECIALS`."""
    vocab = {token: i for i, token in enumerate((*SPECIALS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    return _with_specials(tokenizer)


class Splitter:
    """Splits text into the words within which byte pairs are merged.

    Text is normalized to NFC or NFKC and optionally lowercased. Line breaks count as spaces. As in SentencePiece, each
    space becomes WORD_BEGIN, and another WORD_BEGIN is added before the text. A word is a run of characters, or a
    single punctuation mark, symbol or other whitespace character, with the WORD_BEGIN before it. Decoding therefore
    restores the normalized text exactly, including repeated spaces. (A WORD_BEGIN in the text is decoded as a space.)

    >>> Splitter("nfc", lowercase=False).words('A  "new"\\u00a0day')
    ['▁A', '▁', '▁"', 'new', '"', '\\xa0', 'day']
    """

    def __init__(self, normalization: str, lowercase: bool) -> None:
        self._normalizer = _normalizer(normalization, lowercase)

    def words(self, text: str) -> list[str]:
        """Returns the words of a text, with WORD_BEGIN for spaces."""
        return [word for word, _ in _SPLIT.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def count_words(self, texts: Iterable[str]) -> Counter[str]:
        """Returns the number of occurrences of each word in the texts."""
        return Counter(itertools.chain.from_iterable(map(self.words, texts)))


_SPLIT = pre_tokenizers.Split(
    Regex(rf"{WORD_BEGIN}?(?:[\p{{P}}\p{{S}}\s&&[^{WORD_BEGIN}]]|[^\p{{P}}\p{{S}}\s]+)|{WORD_BEGIN}"), "isolated"
)


def _normalizer(normalization: str, lowercase: bool) -> normalizers.Normalizer:
    choice(normalization, ("nfc", "nfkc"), "data.normalization")
    form = normalizers.NFC() if normalization == "nfc" else normalizers.NFKC()
    # Lowercasing can change the normal form, so it is applied again. Normalizing twice then changes nothing.
    steps = [form, normalizers.Lowercase(), form] if lowercase else [form]
    spaces = normalizers.Replace(Regex(r"[\n\r ]"), WORD_BEGIN)
    return normalizers.Sequence([*steps, spaces, normalizers.Prepend(WORD_BEGIN)])


def _normalization(normalizer: Mapping[str, Any] | None) -> str:
    """Returns the names of the steps of a normalizer in a tokenizer.json, except those that mark spaces."""
    steps = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
    names = (step["type"].lower() for step in steps if step["type"] not in ("Replace", "Prepend"))
    return "+".join(dict.fromkeys(names))


def _without_marks(text: str) -> str:
    """Returns normalized text with WORD_BEGIN replaced by spaces, without the one before the text."""
    return text.replace(WORD_BEGIN, " ").removeprefix(" ")


def _with_specials(tokenizer: Tokenizer) -> LibrarySubwords:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    return LibrarySubwords(tokenizer.to_str(), "the vocabulary")


def _special(ids: dict[str, int], where: str) -> Special:
    """Returns the special tokens of a vocabulary, found by their names."""

    def first(names: Sequence[str]) -> int | None:
        return next((ids[name] for name in names if name in ids), None)

    pad, begin, end = first(_PADS), first(_BEGINS), first(_ENDS)
    if pad is None:
        raise _without(where, f"a padding token ({', '.join(_PADS)})")
    if end is None:
        raise _without(where, f"an end token ({', '.join(_ENDS)})")
    return Special(pad, pad if begin is None else begin, end, first(_UNKS))


def _without(where: str, token: str) -> UserError:
    fix = "add the token to the vocabulary, or use another vocabulary"
    expected = "a vocabulary for text generation"
    return UserError(where, got=f"a vocabulary without {token}", expected=expected, fix=fix)


def _library(path: Path) -> LibrarySubwords:
    try:
        return LibrarySubwords(_read(path).decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        got, fix = f"a byte that is not UTF-8 ({error.reason})", "copy the file again"
        raise UserError(str(path), got=got, expected="a tokenizer.json in UTF-8", fix=fix) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fix = "give a tokenizer.json, a SentencePiece model or a vocab.txt"
        raise UserError(str(path), got=error.strerror, expected="a readable vocabulary", fix=fix) from None


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, vocabulary: Subwords) -> None:
    """Writes tokenizer.json and tokenizer_config.json, with which transformers appends the end token to a source."""
    special = {"pad_token": vocabulary.pad_id, "eos_token": vocabulary.eos_id, "unk_token": vocabulary.unk_id}
    if vocabulary.bos_id != vocabulary.pad_id:
        special["bos_token"] = vocabulary.bos_id
    names = {key: tokenizer.id_to_token(token) for key, token in special.items() if token is not None}
    end = names["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", end], special_tokens=[(end, vocabulary.eos_id)]
    )
    # As here, names of special tokens in a text are ordinary text.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder, _LIBRARY_FILE, tokenizer.to_str(pretty=True).encode())
    _write(folder, "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False).encode())


def _write(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with completed(folder / name) as path:
        path.write_bytes(content)
