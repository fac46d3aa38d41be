"""The interface to tokenizers, and what those of encoders have in addition.

`wordpiece`, `library_encoders`, `library_tokenizers`, `sentencepiece_models` and `interop.marian_tokenizers` implement
them.
"""

import abc
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

from bertjax.data.text.templates import Template
from bertjax.data.text.vocabularies import SPECIALS, Added

_SURROGATES = re.compile("[\ud800-\udfff]")


class Pieces(NamedTuple):
    """The tokens of a text, and for each the half-open range of characters that it came from.

    Starts and ends never decrease. Neighboring ranges overlap if one character gives several tokens (a Hangul
    syllable). Spaces around a word are in no range; a token of spaces alone has an empty range (start >= end), unless
    a character gives it together with others.
    Characters that normalization drops are in no range or within one. Combining marks dropped after a token belong to
    it.
    """

    ids: Int32[np.ndarray, " pieces"]
    starts: Int64[np.ndarray, " pieces"]
    ends: Int64[np.ndarray, " pieces"]


class Tokenizer(abc.ABC):
    """A vocabulary and an algorithm that convert text to ids and back.

    Names of the special tokens in a text are ordinary text. Added tokens are found in a text before it is split.

    Attributes:
      vocab_size: V; all ids are below it.
      pad_id: the id of padding.
      unk_id: the id of unknown text; None if every text can be encoded.
      cls_id: the id of the start token. It equals `pad_id` in a vocabulary without one, because decoders of Marian and
        T5 start with padding.
      sep_id: the id of the separator, which is also the end token.
      template: the special tokens around texts, and which end of a long text is truncated.
      normalization: the steps of `normalized`, such as "nfkc+lowercase"; empty if it changes nothing.
      newline: the token that stands for the end of a line in targets, such as PEGASUS's "<n>"; "\\n" if there is none.
    """

    vocab_size: int
    pad_id: int
    unk_id: int | None
    cls_id: int
    sep_id: int
    template: Template
    normalization: str
    newline: str = "\n"

    @abc.abstractmethod
    def __reduce__(self) -> tuple[Any, ...]:
        """A function and its arguments, with which worker processes build the tokenizer."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest of the vocabulary, for the rows of encoder-decoders."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the vocabulary to a folder, which is created if necessary."""

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special tokens."""
        (ids,) = self.encode_batch([text])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids. Padding, start and separator tokens are skipped."""
        silent = (self.pad_id, self.cls_id, self.sep_id)
        return self._text([int(token) for token in ids if token not in silent])

    @abc.abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Returns the text of ids without padding, start and separator tokens."""

    @abc.abstractmethod
    def normalized(self, text: str) -> str:
        """Returns the normalized text: the result of decoding its ids if the vocabulary has all of its characters."""

    def unknown(self, text: str) -> list[str]:
        """Returns the characters of a text that become the unknown token, and words that do so only as a whole."""
        unknown: list[str] = []
        words = text.split()
        for word, is_unknown in zip(words, self._are_unknown(words), strict=True):
            characters = [c for c, alone in zip(word, self._are_unknown(list(word)), strict=True) if alone]
            unknown += (characters or [word]) if is_unknown else ()
        return unknown

    def _are_unknown(self, texts: list[str]) -> list[bool]:
        return [self.unk_id in ids for ids in self.encode_batch(texts)]


class EncoderTokenizer(Tokenizer):
    """A tokenizer of a BERT: it also has a mask token, and maps tokens to characters and words.

    Tokenizers with the same results are equal.

    Attributes:
      vocab: the V tokens as the vocabulary's file writes them, in the order of their ids.
      lowercase: whether text is lowercased (an "uncased" model).
      special: the names of the special tokens in the vocabulary, in the order of `SPECIALS`.
      mask_id: the id of the mask token.
      is_continuation: [V] bool, whether the token continues a word. Other tokens start one.
    """

    vocab: tuple[str, ...]
    lowercase: bool
    special: tuple[str, ...]
    unk_id: int
    mask_id: int
    is_continuation: Bool[np.ndarray, " V"]

    @property
    def _unlike_bert(self) -> list[Any]:
        """The template if it is not that of BERT, for `key`, which is otherwise that of earlier versions."""
        is_usual = self.template == Template.of_bert(self.cls_id, self.sep_id)
        *special, truncates_left = dataclasses.astuple(self.template)
        return [] if is_usual else [(*special, *["left"] * truncates_left)]

    @functools.cached_property
    def _bert_names(self) -> dict[int, str]:
        """BERT's names of the special tokens, by id."""
        ids = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        return dict(zip(reversed(ids), reversed(SPECIALS), strict=True))  # a shared id has the first name

    @abc.abstractmethod
    def __reduce__(self) -> tuple[Any, ...]:
        """The class and its arguments, the template last."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncoderTokenizer) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    @property
    @abc.abstractmethod
    def content(self) -> list[Any]:
        """The vocabulary and the casing, JSON-serializable, for digests. A run keeps the template it started with."""

    @property
    @abc.abstractmethod
    def key(self) -> list[Any]:
        """A short JSON-serializable description, a digest of the vocabulary first; only equal tokenizers share it."""

    def with_template(self, template: Template) -> "EncoderTokenizer":
        """Returns the same tokenizer with another template."""
        cls, arguments = self.__reduce__()
        tokenizer: EncoderTokenizer = cls(*arguments[:-1], template)
        return tokenizer

    @abc.abstractmethod
    def with_added(self, tokens: Sequence[Added]) -> "EncoderTokenizer":
        """Returns the tokenizer with further added tokens. New ones have the next ids."""

    @abc.abstractmethod
    def save(self, folder: str | Path, max_length: int | None = None, *, token_types: bool = True) -> None:
        """Writes the files from which `vocabulary_config.load_saved` and `transformers.AutoTokenizer` open it.

        Args:
          folder: the folder; created if necessary.
          max_length: the maximum number of tokens of the model, to which `truncation=True` truncates; None to omit it.
          token_types: whether the model has token types, so that transformers returns them.
        """

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each part of one text: its words or its sentences, which single spaces separate.

        The ids are those of the part within the text, if the vocabulary encodes spaces.
        """
        return self.encode_batch(parts)

    def encode_spaced(self, text: str) -> list[int]:
        """Returns the ids of a text that was tokenized before: spaces separate its words and punctuation marks."""
        return self.encode_batch([" ".join(text.split())])[0]

    @abc.abstractmethod
    def encode_with_offsets(self, text: str) -> Pieces:
        """Returns the ids of a text, as `encode_batch` does, and the characters that each id came from."""

    @abc.abstractmethod
    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of a text in which every literal "[MASK]" (in capitals) is the mask token."""

    @abc.abstractmethod
    def names(self, ids: Sequence[int]) -> list[str]:
        """Returns readable tokens, in BERT's notation: "##" before a continuation, [CLS] and so on for special ones."""


def settings_json(settings: Mapping[str, Any], template: Template, max_length: int | None) -> str:
    """Returns the content of tokenizer_config.json; see `EncoderTokenizer.save`."""
    limits: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
    limits |= {"truncation_side": "left"} if template.truncates_left else {}
    return json.dumps({**settings, **limits}, indent=2) + "\n"


def encodable(text: str) -> str:
    """Replaces halves of surrogate pairs, which the library rejects, by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)
