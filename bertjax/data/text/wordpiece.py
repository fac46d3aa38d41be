"""WordPiece: the same ids as `tokenization.py` of google-research/bert.

`normalization` splits text into words, and the `tokenizers` library splits words into pieces.
"""

import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from bertjax import korean
from bertjax.data.text import vocabularies
from bertjax.data.text.normalization import CONTINUATION, Chain, Memo, between_spaces, morphemes, normalize, sources
from bertjax.data.text.templates import Template, joined_by
from bertjax.data.text.tokenizers import EncoderTokenizer, Pieces, encodable, settings_json
from bertjax.data.text.vocabularies import GOOGLE_WORD_CHARS, MASK, ROLES, SPECIALS, Added
from bertjax.files import write_files
from bertjax.progress import log_once
from bertjax.words import composed

# The number of words whose pieces are cached; English has this many in 20 MB of text.
_MAX_CACHED = 1 << 16
_MAX_CACHED_CHARS = 100  # longer words are not cached


class WordPiece(EncoderTokenizer):
    """A vocabulary with BERT's algorithm to convert text to ids.

    Attributes:
      chain: the normalization of text.
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
        strip_accents: bool | None = None,
        nfc: bool = False,
        morphemes: str = "",
        template: Template | None = None,
    ) -> None:
        """Builds the tokenizer.

        Args:
          vocab: the tokens, without added ones.
          lowercase: whether text is lowercased.
          max_word_chars: see the class.
          special: the names of the special tokens, in the order of `SPECIALS`.
          added: the added tokens, in the order of the ids of those that are not pieces.
          strip_accents: see `Chain`. Default: `lowercase`.
          nfc: see `Chain`.
          morphemes: see `Chain`.
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
        self.chain = Chain.of(lowercase, strip_accents, nfc=nfc, morphemes=morphemes)
        self.max_word_chars = max_word_chars
        self.vocab_size = len(self.vocab)
        self.special = tuple(special)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in self.special)
        self.normalization = "wordpiece" + "+lowercase" * lowercase
        if self.chain.strip_accents != lowercase:
            self.normalization += f"+strip_accents={self.chain.strip_accents}"
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
        lowercase, *chain = self.chain
        return WordPiece, (vocab, lowercase, self.max_word_chars, self.special, self.added, *chain, self.template)

    def with_added(self, tokens: Sequence[Added]) -> "WordPiece":
        vocab, lowercase, most, special, added, *others = self.__reduce__()[1]
        return WordPiece(vocab, lowercase, most, special, (*added, *tokens), *others)

    def with_words(self, words: Sequence[str]) -> "WordPiece":
        """Returns the tokenizer with normalized words as further pieces, whose ids follow those of all tokens."""
        _, *others = self.__reduce__()[1]
        return WordPiece((*self.vocab, *words), *others)

    def with_strip_accents(self, strip_accents: bool) -> "WordPiece":
        """Returns the tokenizer with another `strip_accents`."""
        vocab, lowercase, most, special, added, _, *others = self.__reduce__()[1]
        return WordPiece(vocab, lowercase, most, special, added, strip_accents, *others)

    @property
    def content(self) -> list[Any]:
        """The vocabulary, the normalization and added tokens, but not the maximum word length."""
        return [self.vocab, self.lowercase, *([self.added] if self.added else []), *self.chain.unlike_bert]

    @property
    def _unlike_bert(self) -> list[Any]:
        special = [self.special] if self.special != SPECIALS else []
        return [*special, *self.chain.unlike_bert, *super()._unlike_bert]

    @property
    def key(self) -> list[Any]:
        tokens = [*self.vocab, *map(json.dumps, (*self.added, *self.chain.unlike_bert))]
        vocabulary = hashlib.sha256("\n".join(tokens).encode()).hexdigest()
        return [vocabulary, self.lowercase, self.max_word_chars, *self._unlike_bert]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([self.vocab, self.lowercase, *self.chain.unlike_bert]).encode()).hexdigest()

    @classmethod
    def of(cls, vocab: Sequence[str], chain: Chain) -> "WordPiece":
        """Returns a tokenizer with BERT's special tokens."""
        return cls(vocab, chain.lowercase, strip_accents=chain.strip_accents, nfc=chain.nfc, morphemes=chain.morphemes)

    @classmethod
    def from_file(cls, path: str | Path, lowercase: bool) -> "WordPiece":
        """Reads a vocab.txt (see `vocabularies.read_vocab`). The id of a token is its line number, from 0 on."""
        return cls(vocabularies.read_vocab(Path(path)), lowercase)

    @classmethod
    def load(cls, folder: str | Path, default_lowercase: bool | None = None) -> "WordPiece":
        """Reads the tokenizer of a Hugging Face folder; see `vocabularies.read_folder`."""
        tokenizer = cls(*vocabularies.read_folder(Path(folder), default_lowercase))
        if tokenizer.chain.morphemes:
            korean.check_version(tokenizer.chain.morphemes)
        return tokenizer

    def save(self, folder: str | Path, max_length: int | None = None, *, token_types: bool = True) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json; see `EncoderTokenizer.save`.

        The `BertTokenizer` of transformers encodes words of more than 100 characters as [UNK], and ignores the
        `max_word_chars` in tokenizer.json.
        """
        settings = {
            # `BertTokenizer` would have the special tokens and the normalization of BERT, and has token types.
            "tokenizer_class": "PreTrainedTokenizerFast" if self._unlike_bert else "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": None if self.chain.strip_accents == self.lowercase else self.chain.strip_accents,
            "tokenize_chinese_chars": True,
            **{f"{role}_token": name for role, name in zip(ROLES, self.special, strict=True)},
            **({"morphemes": self.chain.morphemes} if self.chain.morphemes else {}),
        }
        names = ["input_ids", *["token_type_ids"] * token_types, "attention_mask"]
        inputs = {"model_input_names": names} if self._unlike_bert or not token_types else {}
        files = {
            # In this order, because a folder with the first file opens.
            "tokenizer.json": self._library_tokenizer().to_str(pretty=True),
            "tokenizer_config.json": settings_json({**settings, **inputs}, self.template, max_length),
            "vocab.txt": "".join(f"{token}\n" for token in self.vocab[: self._num_pieces]),
        }
        write_files(Path(folder), files)
        if self.chain.morphemes:
            log_once(
                "transformers does not split words into morphemes: split them before its tokenizer, by kiwipiepy",
                logging.WARNING,
            )

    def words(self, text: str) -> list[str]:
        """Returns the normalized words of a text, before they are split into pieces."""
        return normalize(text, self.chain).split()

    def normalized(self, text: str) -> str:
        return composed(" ".join(self.words(text)))

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
        finder.normalizer = self.chain.of_library
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
        if not self.chain.morphemes or len(word) > self.max_word_chars:
            return [token.id for token in self._model.tokenize(word)]
        ids = [token.id for part in morphemes(word) for token in self._model.tokenize(part)]
        return [self.unk_id] if self.unk_id in ids else ids

    def _encode_chunk(self, chunk: str) -> list[int]:
        return [piece for word in self.words(chunk) for piece in self._pieces[word]]

    def encode_spaced(self, text: str) -> list[int]:
        """Words are not normalized except for the case and composition, and not split further."""
        pieces = self._pieces

        def encode(text: str) -> list[int]:
            return [piece for word in between_spaces(text, self.chain) for piece in pieces[word]]

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
        # `stops` are positions in the concatenated words, which `sources` maps to characters of the text.
        stops = np.cumsum(widths)
        starts, ends = sources(text, self.chain, sum(map(len, words)))
        return Pieces(ids, first + starts[stops - widths], first + ends[stops - 1])

    def encode_with_masks(self, text: str) -> list[int]:
        return joined_by((self.mask_id,), self.encode_batch(text.replace(self.special[-1], MASK).split(MASK)))

    def _text(self, ids: list[int]) -> str:
        # Spaces separate words and punctuation marks.
        return composed(" ".join(self.vocab[token] for token in ids).replace(f" {CONTINUATION}", ""))

    def names(self, ids: Sequence[int]) -> list[str]:
        return [composed(self._bert_names.get(token) or self.vocab[token]) for token in ids]

    def _library_tokenizer(self) -> Library:
        """Returns the tokenizer as the library implements it; equal to ours except on the rare text named above."""
        tokenizer = Library(self._model)
        tokenizer.normalizer = self.chain.of_library
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
        tokenizer.post_processor = self.template.processor(self.vocab.__getitem__)
        tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in self.special])
        tokenizer.add_tokens([token.of_library for token in self.added])
        return tokenizer


class _Cache(Memo[str, list[int]]):
    """A cache of the ids of words, or of texts without spaces. Most words of a text occur repeatedly."""

    def __missing__(self, text: str) -> list[int]:
        if len(text) > _MAX_CACHED_CHARS:
            return self._rule(text)
        if len(self) == _MAX_CACHED:
            self.clear()
        return super().__missing__(text)
