"""WordPiece: the same ids as `tokenization.py` of google-research/bert.

Normalization and word splitting are our own and use the interpreter's Unicode tables, as in Google's code. The
`tokenizers` library uses older tables and another order of steps, so rare text gives different results there (newer
scripts, part of CJK extension E, a Greek final sigma). It also drops characters of private use, as transformers does;
Google's code keeps them, so that their words are [UNK]. The library splits words into pieces. On English this
is also faster than the library's own normalizer.
"""

import functools
import hashlib
import itertools
import json
import string
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from bertjax.data.text import vocabularies
from bertjax.data.text.templates import Template, joined_by
from bertjax.data.text.tokenizers import EncoderTokenizer, Pieces, encodable, settings_json
from bertjax.data.text.vocabularies import CONTINUATION, GOOGLE_WORD_CHARS, MASK, ROLES, SPECIALS, Added
from bertjax.files import write_files

K = TypeVar("K")
V = TypeVar("V")

# The number of words whose pieces are cached; English has this many in 20 MB of text.
_MAX_CACHED = 1 << 16
_MAX_CACHED_CHARS = 100  # longer words are not cached

# The blocks that Google's code calls Chinese. Hangul, kana and later extensions are not included.
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class WordPiece(EncoderTokenizer):
    """A vocabulary with BERT's algorithm to convert text to ids.

    Attributes:
      lowercase: whether text is lowercased and stripped of accents first.
      max_word_chars: the maximum length of a word in characters; a longer word is [UNK].
      added: the added tokens. Those that are not pieces of words follow these in the vocabulary.
    """

    def __init__(
        self,
        vocab: Sequence[str],
        lowercase: bool,
        max_word_chars: int = GOOGLE_WORD_CHARS,
        special: Sequence[str] = SPECIALS,
        added: Sequence[Added] = (),
        template: Template | None = None,
    ) -> None:
        """Builds the tokenizer.

        Args:
          vocab: the tokens, without added ones.
          lowercase: see the class.
          max_word_chars: see the class.
          special: the names of the special tokens, in the order of `SPECIALS`.
          added: the added tokens, in the order of the ids of those that are not pieces.
          template: the special tokens around texts. Default: those of BERT.
        Raises:
          UserError: if a special token is missing or a token occurs twice.
        """
        ids = vocabularies.checked_ids(vocab, "the vocabulary", special)
        self.added = tuple(added)
        self._num_pieces = len(vocab)
        numbers = dict(ids)
        for token in self.added:
            numbers.setdefault(token.content, len(numbers))
        self._added_ids = [0, *(numbers[token.content] for token in self.added)]
        self.vocab = tuple(numbers)
        self.lowercase = lowercase
        self.max_word_chars = max_word_chars
        self.vocab_size = len(self.vocab)
        self.special = tuple(special)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in self.special)
        self.normalization = "wordpiece" + "+lowercase" * lowercase
        self.template = template or Template.of_bert(self.cls_id, self.sep_id)
        self.is_continuation = np.array([token.startswith(CONTINUATION) for token in self.vocab])
        self.is_continuation[self._num_pieces :] = False
        self._model = models.WordPiece(ids, unk_token=self.vocab[self.unk_id], max_input_chars_per_word=max_word_chars)
        self._pieces = _Cache(self._word_ids)
        self._chunks = _Cache(self._encode_chunk)
        self._widths = np.array([len(token.removeprefix(CONTINUATION)) for token in self.vocab])
        self._widths[self.unk_id] = 0  # marks [UNK], whose width is that of its word

    def __reduce__(self) -> tuple[type["WordPiece"], tuple[Any, ...]]:
        vocab = self.vocab[: self._num_pieces]
        return WordPiece, (vocab, self.lowercase, self.max_word_chars, self.special, self.added, self.template)

    def with_added(self, tokens: Sequence[Added]) -> "WordPiece":
        vocab, lowercase, most, special, added, template = self.__reduce__()[1]
        return WordPiece(vocab, lowercase, most, special, (*added, *tokens), template)

    @property
    def content(self) -> list[Any]:
        """The vocabulary, the casing and added tokens, but not the maximum word length."""
        return [self.vocab, self.lowercase, *([self.added] if self.added else [])]

    @property
    def _unlike_bert(self) -> list[Any]:
        return [*([self.special] if self.special != SPECIALS else []), *super()._unlike_bert]

    @property
    def key(self) -> list[Any]:
        tokens = [*self.vocab, *map(json.dumps, self.added)]
        vocabulary = hashlib.sha256("\n".join(tokens).encode()).hexdigest()
        return [vocabulary, self.lowercase, self.max_word_chars, *self._unlike_bert]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([self.vocab, self.lowercase]).encode()).hexdigest()

    @classmethod
    def from_file(cls, path: str | Path, lowercase: bool) -> "WordPiece":
        """Reads a vocab.txt (see `vocabularies.read_vocab`). The id of a token is its line number, from 0 on."""
        return cls(vocabularies.read_vocab(Path(path)), lowercase)

    @classmethod
    def load(cls, folder: str | Path, default_lowercase: bool | None = None) -> "WordPiece":
        """Reads the tokenizer of a Hugging Face folder; see `vocabularies.read_folder`."""
        return cls(*vocabularies.read_folder(Path(folder), default_lowercase))

    def save(self, folder: str | Path, max_length: int | None = None, *, token_types: bool = True) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json; see `EncoderTokenizer.save`.

        The `BertTokenizer` of transformers encodes words of more than 100 characters as [UNK], and ignores the
        `max_word_chars` in tokenizer.json.
        """
        settings = {
            # `BertTokenizer` would have the special tokens of BERT, and has token types.
            "tokenizer_class": "PreTrainedTokenizerFast" if self._unlike_bert else "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            **{f"{role}_token": name for role, name in zip(ROLES, self.special, strict=True)},
        }
        names = ["input_ids", *["token_type_ids"] * token_types, "attention_mask"]
        inputs = {"model_input_names": names} if self._unlike_bert or not token_types else {}
        files = {
            "vocab.txt": "".join(f"{token}\n" for token in self.vocab[: self._num_pieces]),
            "tokenizer.json": self._library_tokenizer().to_str(pretty=True),
            "tokenizer_config.json": settings_json({**settings, **inputs}, self.template, max_length),
        }
        write_files(Path(folder), files)

    def words(self, text: str) -> list[str]:
        """Returns the normalized words of a text, before they are split into pieces."""
        return normalize(text, self.lowercase).split()

    def normalized(self, text: str) -> str:
        return " ".join(self.words(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not self.added:
            return list(map(self._encode, texts))
        return list(map(self._encoded, texts, self._added_spans(texts), itertools.repeat(self._encode)))

    def _added_spans(self, texts: Sequence[str]) -> list[list[tuple[int, int, int]]]:
        """Returns the id, the start and the end of each added token in each text."""
        if not self.added:
            return [[]] * len(texts)
        encodings = self._finder.encode_batch(list(map(encodable, texts)), add_special_tokens=False)
        ids = self._added_ids
        return [[(ids[n], *span) for n, span in zip(one.ids, one.offsets, strict=True) if n] for one in encodings]

    @functools.cached_property
    def _finder(self) -> Library:
        """The library's tokenizer that encodes the added tokens as 1, 2, ... and the text between them as 0."""
        finder = Library(models.WordLevel({"": 0}, unk_token=""))
        finder.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        # The normalizer puts spaces around Chinese characters: a token that included one would include the character.
        finder.add_tokens([token._replace(lstrip=False, rstrip=False).of_library for token in self.added])
        return finder

    def _encoded(
        self, text: str, spans: Sequence[tuple[int, int, int]], encode: Callable[[str], list[int]]
    ) -> list[int]:
        """Returns the ids of the added tokens in a text, and those of the text between them by `encode`."""
        ids = []
        position = 0
        for token, start, end in spans:
            ids += [*encode(text[position:start]), token]
            position = end
        return ids + encode(text[position:])

    def _encode(self, text: str) -> list[int]:
        """Returns the ids of a text without added tokens."""
        # It is split at spaces first, because normalization never depends on characters across a space.
        chunks = self._chunks
        return [piece for chunk in text.split(" ") for piece in chunks[chunk]]

    def _word_ids(self, word: str) -> list[int]:
        return [token.id for token in self._model.tokenize(word)]

    def _encode_chunk(self, chunk: str) -> list[int]:
        return [piece for word in self.words(chunk) for piece in self._pieces[word]]

    def encode_spaced(self, text: str) -> list[int]:
        """Words are not normalized except for the case, and not split further."""
        pieces = self._pieces

        def encode(text: str) -> list[int]:
            return [piece for word in between_spaces(text, self.lowercase) for piece in pieces[word]]

        (spans,) = self._added_spans([text])
        return self._encoded(text, spans, encode)

    def encode_with_offsets(self, text: str) -> Pieces:
        """No range is empty."""
        parts = []
        position = 0
        for token, start, end in self._added_spans([text])[0]:
            parts.append(self._with_offsets(text[position:start], position))
            parts.append(Pieces(np.array([token], np.int32), np.array([start]), np.array([end])))
            position = end
        parts.append(self._with_offsets(text[position:], position))
        return Pieces(*map(np.concatenate, zip(*parts, strict=True)))

    def _with_offsets(self, text: str, first: int) -> Pieces:
        """Returns the tokens of a text without added tokens, whose first character has the number `first`."""
        words = self.words(text)
        pieces = [self._pieces[word] for word in words]
        ids = np.array([piece for word in pieces for piece in word], np.int32)
        widths = self._widths[ids]
        widths[widths == 0] = [len(word) for word, ids in zip(words, pieces, strict=True) if ids == [self.unk_id]]
        # `stops` are positions in the concatenated words; `sources` maps them to characters of the text.
        stops = np.cumsum(widths)
        sources, reach = _sources(text, self.lowercase)
        return Pieces(ids, first + sources[stops - widths], first + reach[sources[stops - 1]])

    def encode_with_masks(self, text: str) -> list[int]:
        return joined_by((self.mask_id,), self.encode_batch(text.replace(self.special[-1], MASK).split(MASK)))

    def _text(self, ids: list[int]) -> str:
        # Spaces separate words and punctuation marks.
        return " ".join(self.vocab[token] for token in ids).replace(f" {CONTINUATION}", "")

    def names(self, ids: Sequence[int]) -> list[str]:
        return [self._bert_names.get(token) or self.vocab[token] for token in ids]

    def _library_tokenizer(self) -> Library:
        """Returns the tokenizer as the library implements it; equal to ours except on the rare text named above."""
        tokenizer = Library(self._model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
        tokenizer.post_processor = self.template.processor(self.vocab)
        tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in self.special])
        tokenizer.add_tokens([token.of_library for token in self.added])
        return tokenizer


def between_spaces(text: str, lowercase: bool) -> list[str]:
    """Returns the words between spaces, optionally lower-cased. Punctuation is not split and accents are kept."""
    return (text.lower() if lowercase else text).split()


def normalize(text: str, lowercase: bool) -> str:
    """Returns text as words separated by spaces, like `BasicTokenizer` of google-research/bert.

    >>> normalize("Où est-ce?\\t東京", lowercase=True).split()
    ['ou', 'est', '-', 'ce', '?', '東', '京']
    """
    text = text.translate(_CLEAN)
    if lowercase:
        return unicodedata.normalize("NFD", text.lower()).translate(_SEPARATE_AND_STRIP)
    return separate_punctuation(text)


def separate_punctuation(text: str) -> str:
    """Returns text with spaces around each punctuation mark and no other change.

    >>> separate_punctuation("A bird's-eye view").split()
    ['A', 'bird', "'", 's', '-', 'eye', 'view']
    """
    return text.translate(_SEPARATE)


def _sources(text: str, lowercase: bool) -> tuple[Int64[np.ndarray, " visible"], Int64[np.ndarray, " chars"]]:
    """Maps each character of the normalized words to its source.

    The neighbors of a character decide which sigma it becomes and the order of its marks, but never the number of
    characters that it becomes. So counting the characters that each gives alone is exact.

    Returns:
      for each character of the words, its index in `text`; and for each character of `text`, the end of the combining
      marks that are dropped directly after it.
    """
    counts = np.fromiter(map(_WIDTHS[lowercase].__getitem__, text), np.int64, len(text))
    reach = np.arange(1, len(text) + 1)
    for index in np.flatnonzero(counts[1:] == 0)[::-1].tolist():
        if unicodedata.category(text[index + 1]) == "Mn":
            reach[index] = reach[index + 1]
    return np.repeat(np.arange(len(text)), counts), reach


def _clean(char: str) -> str | None:
    """Maps whitespace to a space, drops control characters (Cc, Cf), and puts spaces around Chinese characters."""
    category = unicodedata.category(char)
    if char in "\t\n\r" or (char.isspace() and category != "Cc"):
        return " "
    if char == "\ufffd" or category in ("Cc", "Cf"):
        return None
    if category == "Cs":  # the library rejects half of a surrogate pair; U+FFFD is [UNK] as well
        return "\ufffd"
    if any(low <= ord(char) <= high for low, high in _CHINESE):
        return f" {char} "
    return char


def _separate(char: str) -> str:
    """Puts spaces around punctuation: Unicode's, and every ASCII symbol."""
    if char in string.punctuation or unicodedata.category(char).startswith("P"):
        return f" {char} "
    return char


def _separate_and_strip(char: str) -> str | None:
    """Drops combining marks, and otherwise does the same as `_separate`."""
    return None if unicodedata.category(char) == "Mn" else _separate(char)


class _Memo(dict[K, V]):
    """The results of a rule by its argument, computed on first use."""

    def __init__(self, rule: Callable[[K], V]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, key: K) -> V:
        self[key] = self._rule(key)
        return self[key]


class _Cache(_Memo[str, list[int]]):
    """A cache of the ids of words, or of texts without spaces. Most words of a text occur repeatedly."""

    def __missing__(self, text: str) -> list[int]:
        if len(text) > _MAX_CACHED_CHARS:
            return self._rule(text)
        if len(self) == _MAX_CACHED:
            self.clear()
        return super().__missing__(text)


def _width(lowercase: bool, char: str) -> int:
    """Returns the number of characters that a character becomes in normalized words."""
    return len(normalize(char, lowercase).replace(" ", ""))


def _table(rule: Callable[[str], str | None]) -> _Memo[int, str | None]:
    """Returns a table for `str.translate` that applies a rule to each character."""
    return _Memo(lambda code_point: rule(chr(code_point)))


_CLEAN = _table(_clean)
_SEPARATE = _table(_separate)
_SEPARATE_AND_STRIP = _table(_separate_and_strip)
_WIDTHS = {lowercase: _Memo(functools.partial(_width, lowercase)) for lowercase in (False, True)}
