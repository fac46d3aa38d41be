"""WordPiece: text to the very ids that google-research/bert's `tokenization.py` gives.

Normalization and word splitting are ours, on the interpreter's Unicode tables as in Google's code: the
`tokenizers` library follows older tables and another order of steps, so rare text comes out otherwise there
(private use, newer scripts, part of CJK extension E, a Greek final sigma). Splitting words into pieces is the
library's. On English this is also faster than the library's own normalizer.
"""

import hashlib
import json
import string
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertjax.data.text.vocabularies import (
    CLS,
    CONTINUATION,
    GOOGLE_WORD_CHARS,
    MASK,
    SEP,
    SPECIALS,
    UNK,
    checked_ids,
    read_folder,
    read_vocab,
)
from bertjax.files import completed

# Words whose pieces are remembered: 20 MB of English ones.
_KEPT_WORDS = 1 << 16
_LONGEST_KEPT = 100  # characters

# The blocks that Google's code calls Chinese: Hangul, kana and later extensions are not among them.
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class Pieces(NamedTuple):
    """A text's word pieces, and the half-open range of its characters that each came from.

    Ranges go from left to right. Those of neighbors overlap where one character is in two pieces (a Hangul
    syllable); characters that normalization drops are in none or in the middle of one. Combining marks
    dropped after a piece belong to it.
    """

    ids: Int32[np.ndarray, " pieces"]
    starts: Int64[np.ndarray, " pieces"]
    ends: Int64[np.ndarray, " pieces"]


class WordPiece:
    """A vocabulary with the text-to-ids algorithm of BERT. Tokenizers that encode alike are equal.

    Attributes:
      vocab: the V tokens, at their ids.
      lowercase: whether text is lowercased and stripped of accents first (an "uncased" model).
      max_word_chars: the longest word in characters; a longer one is [UNK].
      vocab_size: V.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      is_continuation: [V] bool, whether the token continues a word ("##...").
    """

    def __init__(self, vocab: Sequence[str], lowercase: bool, max_word_chars: int = GOOGLE_WORD_CHARS) -> None:
        """Raises UserError if a special token is missing or a token is there twice."""
        self.vocab = tuple(vocab)
        self.lowercase = lowercase
        self.max_word_chars = max_word_chars
        self.vocab_size = len(self.vocab)
        ids = checked_ids(self.vocab, "the vocabulary")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIALS)
        self.is_continuation = np.array([token.startswith(CONTINUATION) for token in self.vocab])
        self._model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=max_word_chars)
        self._pieces = _Remembered(self._word_ids)
        self._chunks = _Remembered(self._encode_chunk)
        self._widths = np.array([len(token.removeprefix(CONTINUATION)) for token in self.vocab])
        self._widths[self.unk_id] = 0  # as long as its word

    def __reduce__(self) -> tuple[type["WordPiece"], tuple[tuple[str, ...], bool, int]]:
        return WordPiece, (self.vocab, self.lowercase, self.max_word_chars)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WordPiece) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    @property
    def key(self) -> list[Any]:
        """A short JSON-serializable description, equal for equal tokenizers only."""
        vocabulary = hashlib.sha256("\n".join(self.vocab).encode()).hexdigest()
        return [vocabulary, self.lowercase, self.max_word_chars]

    @classmethod
    def from_file(cls, path: str | Path, lowercase: bool) -> "WordPiece":
        """Reads a vocab.txt (see `vocabularies.read_vocab`), the line number (from 0) being a token's id."""
        return cls(read_vocab(Path(path)), lowercase)

    @classmethod
    def load(cls, folder: str | Path, otherwise: bool | None = None) -> "WordPiece":
        """Reads the tokenizer of a Hugging Face folder; arguments and errors are those of `read_folder`."""
        return cls(*read_folder(Path(folder), otherwise))

    def save(self, folder: str | Path, max_length: int | None = None) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json, for `transformers.AutoTokenizer`.

        Its `BertTokenizer` takes words over 100 characters as [UNK], whatever the `max_word_chars` in tokenizer.json.

        Args:
          folder: made if needed.
          max_length: tokens that a model takes, to which `truncation=True` cuts there; None if that is not told.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{token}\n" for token in self.vocab)
        with completed(folder / "vocab.txt") as path:
            path.write_text(text, encoding="utf-8", newline="\n")
        with completed(folder / "tokenizer.json") as path:
            self._library_tokenizer().save(str(path))
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            **{f"{token[1:-1].lower()}_token": token for token in SPECIALS},
            **({} if max_length is None else {"model_max_length": max_length}),
        }
        text = json.dumps(settings, indent=2) + "\n"
        with completed(folder / "tokenizer_config.json") as path:
            path.write_text(text, encoding="utf-8")

    def words(self, text: str) -> list[str]:
        """The normalized words that are then split into pieces."""
        return normalize(text, self.lowercase).split()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text or single word, without special tokens; a "[MASK]" in a text is ordinary text."""
        # Normalization looks at neighboring characters, but never across a space.
        chunks = self._chunks
        return [[piece for chunk in text.split(" ") for piece in chunks[chunk]] for text in texts]

    def _word_ids(self, word: str) -> list[int]:
        return [token.id for token in self._model.tokenize(word)]

    def _encode_chunk(self, chunk: str) -> list[int]:
        return [piece for word in self.words(chunk) for piece in self._pieces[word]]

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """The ids of words as they stand, which are not normalized."""
        pieces = self._pieces
        return [piece for word in words for piece in pieces[word]]

    def encode_with_offsets(self, text: str) -> Pieces:
        """The ids that `encode_batch` gives for a text, and where in the text each came from."""
        words = self.words(text)
        pieces = [self._pieces[word] for word in words]
        ids = np.array([piece for word in pieces for piece in word], np.int32)
        widths = self._widths[ids]
        widths[widths == 0] = [len(word) for word, ids in zip(words, pieces, strict=True) if ids == [self.unk_id]]
        # Places in the words written one after the other, and the character of the text that each came from.
        stops = np.cumsum(widths)
        sources, reach = _sources(text, self.lowercase)
        return Pieces(ids, sources[stops - widths], reach[sources[stops - 1]])

    def encode_with_masks(self, text: str) -> list[int]:
        """The ids of a text in which every literal "[MASK]" (in capitals) stands for the mask token."""
        first, *rest = self.encode_batch(text.split(MASK))
        return first + [token for ids in rest for token in (self.mask_id, *ids)]

    def _library_tokenizer(self) -> Tokenizer:
        """The whole tokenizer as the library has it: equal to ours but for the rare text named above."""
        tokenizer = Tokenizer(self._model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
        return tokenizer


def normalize(text: str, lowercase: bool) -> str:
    """Text as words separated by spaces: what google-research/bert's `BasicTokenizer` does.

    >>> normalize("Où est-ce?\\t東京", lowercase=True).split()
    ['ou', 'est', '-', 'ce', '?', '東', '京']
    """
    text = text.translate(_CLEAN)
    if lowercase:
        return unicodedata.normalize("NFD", text.lower()).translate(_SEPARATE_AND_STRIP)
    return separate_punctuation(text)


def separate_punctuation(text: str) -> str:
    """Text with spaces around each punctuation mark, as words of BERT have none beside them; nothing else changes.

    >>> separate_punctuation("A bird's-eye view").split()
    ['A', 'bird', "'", 's', '-', 'eye', 'view']
    """
    return text.translate(_SEPARATE)


def _sources(text: str, lowercase: bool) -> tuple[Int64[np.ndarray, " visible"], Int64[np.ndarray, " chars"]]:
    """Where each character of the normalized words came from.

    What surrounds a character changes which sigma it becomes, and the order of the marks that go with it, but
    never how many characters it becomes. So counting those that each gives by itself is exact.

    Returns:
      The index in `text` of each character of the words; and for each character of `text` the end of the
      combining marks dropped right after it.
    """
    counts = np.fromiter(map(_WIDTHS[lowercase].__getitem__, text), np.int64, len(text))
    reach = np.arange(1, len(text) + 1)
    for index in np.flatnonzero(counts[1:] == 0)[::-1].tolist():
        if unicodedata.category(text[index + 1]) == "Mn":
            reach[index] = reach[index + 1]
    return np.repeat(np.arange(len(text)), counts), reach


def _clean(char: str) -> str | None:
    """Whitespace as one space, control characters dropped, spaces around Chinese characters."""
    category = unicodedata.category(char)
    if char in "\t\n\r" or (char.isspace() and category != "Cc"):
        return " "
    if char == "\ufffd" or category in ("Cc", "Cf"):
        return None
    if category == "Cs":  # half of a surrogate pair cannot reach the library; U+FFFD is [UNK] just as well
        return "\ufffd"
    if any(low <= ord(char) <= high for low, high in _CHINESE):
        return f" {char} "
    return char


def _separate(char: str) -> str:
    """Spaces around punctuation: Unicode's, and every ASCII symbol."""
    if char in string.punctuation or unicodedata.category(char).startswith("P"):
        return f" {char} "
    return char


def _separate_and_strip(char: str) -> str | None:
    """As `_separate`, and combining marks dropped."""
    return None if unicodedata.category(char) == "Mn" else _separate(char)


class _Remembered(dict[str, list[int]]):
    """The ids of words, or of texts without spaces. Text repeats its words, so most are looked up."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, text: str) -> list[int]:
        ids = self._encode(text)
        if len(text) <= _LONGEST_KEPT:
            if len(self) == _KEPT_WORDS:
                self.clear()
            self[text] = ids
        return ids


class _Table(dict[int, str | None]):
    """A rule per character as a table for `str.translate`, filled as characters turn up."""

    def __init__(self, rule: Callable[[str], str | None]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str | None:
        self[code_point] = self._rule(chr(code_point))
        return self[code_point]


class _Widths(dict[str, int]):
    """How many characters of words each character gives by itself, filled as characters turn up."""

    def __init__(self, lowercase: bool) -> None:
        super().__init__()
        self._lowercase = lowercase

    def __missing__(self, char: str) -> int:
        self[char] = len(normalize(char, self._lowercase).replace(" ", ""))
        return self[char]


_CLEAN = _Table(_clean)
_SEPARATE = _Table(_separate)
_SEPARATE_AND_STRIP = _Table(_separate_and_strip)
_WIDTHS = {lowercase: _Widths(lowercase) for lowercase in (False, True)}
