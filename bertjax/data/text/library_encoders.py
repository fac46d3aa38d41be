"""Tokenizers of the `tokenizers` library for encoders: a tokenizer.json of byte-level BPE or SentencePiece's kinds."""

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from bertjax.data.text import conversion, vocabularies
from bertjax.data.text.bpe_trainer import Bpe, Pair
from bertjax.data.text.library_tokenizers import FILE, SPACE, LibraryTokenizer, open_library, state, with_ordinary
from bertjax.data.text.normalization import CONTINUATION, Chain, normalize
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizers import EncoderTokenizer, Pieces, encodable, settings_json
from bertjax.data.text.vocabularies import MASK, OF_ROBERTA, ROLES, SPECIALS, Added
from bertjax.errors import UserError
from bertjax.file_keys import check_supported
from bertjax.files import write_files

_USUAL = (SPECIALS, OF_ROBERTA)
_MAX_GAPS = 10  # ids per token of a vocabulary, above which the ids are considered wrong
# The classes whose steps transformers 5 makes from tokenizer_config.json, whatever tokenizer.json states.
_REBUILT = ("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer", "DebertaV2Tokenizer")
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's token of a byte
_UNDECODED = "\ufffd"


class LibraryEncoderTokenizer(EncoderTokenizer, LibraryTokenizer):
    """A tokenizer of the library: byte-level BPE (GPT-2, RoBERTa), or BPE or Unigram on "\u2581" (SentencePiece).

    A token starts a word if a space, a punctuation mark or a Chinese character is first in it.
    """

    def __init__(
        self, content: str, special: Sequence[str], template: Template | None = None, where: str = "the vocabulary"
    ) -> None:
        """Opens a tokenizer.

        Args:
          content: the content of a tokenizer.json, whose post_processor and truncation are not applied.
          special: the names of the special tokens, in the order of `ROLES`; "" for the usual name.
          template: the special tokens around texts. Default: those of BERT.
          where: the name of the file, for messages.
        Raises:
          UserError: if the content is not a tokenizer.json of these kinds, or a special token is missing.
        """
        tokenizer = open_library(content, where)
        ids = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = _by_id(ids, where)  # before the library writes, which takes memory for each id that is not used
        self._rows = {"post_processor": state(tokenizer.post_processor), "truncation": tokenizer.truncation}
        tokenizer.no_truncation()
        tokenizer.post_processor = None  # special tokens are added by the caller
        if isinstance(tokenizer.model, models.BPE):
            tokenizer.model.dropout = None  # ids would be random
        if state(tokenizer.pre_tokenizer) == state(_spaced_once()):  # as `save` writes it
            tokenizer.pre_tokenizer = byte_splitter()
        self._content = tokenizer.to_str()
        steps = json.loads(self._content)
        is_byte_level = _is_byte_level(steps, where)
        self.special = _names(special, ids, where, needs_unk=not is_byte_level)
        pad, unk, start, end, self.mask_id = (ids[name] for name in self.special)
        super().__init__(tokenizer, len(self.vocab), (pad, unk, start, end), self._ordinary)
        self.template = template or Template.of_bert(self.cls_id, self.sep_id)
        self.lowercase = any(
            step["type"] == "Lowercase" or step.get("lowercase", False)
            for step in _parts(steps["normalizer"], "normalizers")
        )
        added = {token["id"] for token in steps["added_tokens"]}
        contents = [
            token.encode() if number in added else _bytes(token, is_byte_level)
            for number, token in enumerate(self.vocab)
        ]
        # U+FFFD stands for incomplete characters.
        self._texts = [content.decode("utf-8", "replace") for content in contents]
        self.is_continuation = np.array(list(map(_continues, contents, self._texts)))
        self.is_continuation[sorted(added)] = False
        self._is_blank: Bool[np.ndarray, " V"] = np.array([text.isspace() for text in self._texts])

    def __reduce__(self) -> tuple[type["LibraryEncoderTokenizer"], tuple[Any, ...]]:
        return LibraryEncoderTokenizer, (self._content, self.special, self.template)

    @property
    def _ordinary(self) -> set[str]:
        """The names of special tokens that are ordinary text."""
        return {*self.special, *itertools.chain(*_USUAL)}

    def with_added(self, tokens: Sequence[Added]) -> "LibraryEncoderTokenizer":
        tokenizer = Library.from_str(self._content)
        tokenizer.add_tokens([token.of_library for token in tokens])
        return LibraryEncoderTokenizer(tokenizer.to_str(), self.special, self.template)

    def with_merges(self, pairs: Sequence[Pair], ids: Mapping[str, int]) -> "LibraryEncoderTokenizer":
        """Returns the tokenizer of BPE with further merges, which have the lowest priority.

        Args:
          pairs: the pieces that are merged.
          ids: the ids of the vocabulary, and of the pieces that the pairs become.
        """
        steps = json.loads(self._content)
        steps["model"]["merges"] += pairs
        # Added tokens are among them: the library numbers others by the size of the model.
        steps["model"]["vocab"] = {token: number for token, number in ids.items() if token}
        return LibraryEncoderTokenizer(json.dumps(steps), self.special, self.template)

    @classmethod
    def from_file(cls, path: Path) -> "LibraryEncoderTokenizer":
        """Reads a tokenizer.json, or a file of an older folder; see `conversion`.

        Files of transformers in its folder name the special tokens, and the template if a tokenizer.json has none.

        Raises:
          UserError: if a file cannot be read, or the constructor raises it.
        """
        content = conversion.read(path) if conversion.is_convertible(path) else _read(path)
        folder = path.parent
        of_files = vocabularies.read_special_names(folder)
        names = {"cls": of_files.get("bos", ""), "sep": of_files.get("eos", ""), **of_files}
        tokenizer = cls(content, [names.get(role, "") for role in ROLES], where=str(path))
        added = vocabularies.read_added(folder, tokenizer.special)
        present = {Added(**token) for token in json.loads(tokenizer._content)["added_tokens"]} if added else set()
        if not present.issuperset(added):
            tokenizer = tokenizer.with_added([token for token in added if token not in present])
            vocabularies.check_added(added, tokenizer._library.get_vocab(with_added_tokens=True), str(folder))
        kind = conversion.kind_of(path) if conversion.is_convertible(path) else vocabularies.tokenizer_class(folder)
        if kind in _REBUILT and not conversion.is_convertible(path):
            _check_rebuilt(json.loads(tokenizer._content), folder / "tokenizer_config.json")
        ids = (tokenizer.cls_id, tokenizer.sep_id)
        tokenizer.template = vocabularies.folder_template(folder, kind, tokenizer._rows, *ids, tokenizer.vocab_size)
        return tokenizer

    @property
    def content(self) -> list[Any]:
        return [self._content, self.special]

    @property
    def key(self) -> list[Any]:
        return [hashlib.sha256(json.dumps(self.content).encode()).hexdigest(), *self._unlike_bert]

    def save(self, folder: str | Path, max_length: int | None = None, *, token_types: bool = True) -> None:
        """Writes tokenizer.json and tokenizer_config.json; see `EncoderTokenizer.save`."""
        folder = Path(folder)
        (folder / "vocab.txt").unlink(missing_ok=True)  # of a WordPiece vocabulary that was here before
        tokenizer = self._written()
        tokenizer.post_processor = self.template.processor(self.vocab.__getitem__)
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{role}_token": name for role, name in zip(ROLES, self.special, strict=True)},
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *["token_type_ids"] * token_types, "attention_mask"],
        }
        config = settings_json(settings, self.template, max_length)
        write_files(folder, {FILE: tokenizer.to_str(pretty=True), "tokenizer_config.json": config})

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        return self.encode_batch([f" {part}" if number else part for number, part in enumerate(parts)])

    def encode_with_offsets(self, text: str) -> Pieces:
        encoding = self._library.encode(encodable(text), add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        size = len(text)
        is_space = np.fromiter(map(str.isspace, text), bool, size)
        ends = _after_dropped(starts, ends, is_space)
        visible = np.flatnonzero(~is_space)
        # The first visible character from each position on, and the end of the last one before it.
        following = np.append(visible, size)
        preceding = np.append(0, visible + 1)
        starts = following[np.searchsorted(visible, starts)]
        ends = preceding[np.searchsorted(visible, ends)]
        # A space that the tokenizer puts before the text has the range of the first character.
        ends = np.where(self._is_blank[ids], np.minimum(starts, ends), ends)
        return Pieces(ids, starts, np.maximum.accumulate(ends))

    def encode_with_masks(self, text: str) -> list[int]:
        """The tokenizer's own name of the mask token is also recognized."""
        text = encodable(text).replace(MASK, self.special[-1])
        return list(self._with_masks.encode(text, add_special_tokens=False).ids)

    @functools.cached_property
    def _with_masks(self) -> Library:
        """The tokenizer that finds the mask token in a text, and no other special token."""
        tokenizer = self._written()
        mask = self.special[-1]
        if all(token.content != mask for token in tokenizer.get_added_tokens_decoder().values()):
            tokenizer.add_special_tokens([AddedToken(mask, normalized=False)])
        return with_ordinary(tokenizer, self._ordinary - {mask})

    def _written(self) -> Library:
        """The tokenizer to save. It has the same ids, but adds no space after a mask."""
        tokenizer = Library.from_str(self._content)
        if state(tokenizer.pre_tokenizer) == state(byte_splitter()):
            tokenizer.pre_tokenizer = _spaced_once()
        return tokenizer

    def _text(self, ids: list[int]) -> str:
        return super()._text(ids).strip()

    def names(self, ids: Sequence[int]) -> list[str]:
        """Tokens that are not whole characters are written as in the vocabulary's file."""
        return [self._bert_names.get(token) or self._name(token) for token in ids]

    def _name(self, token: int) -> str:
        text = self._texts[token].strip()
        name = text if text and _UNDECODED not in text else self.vocab[token]
        return f"{CONTINUATION}{name}" if self.is_continuation[token] else name


def _read(path: Path) -> str:
    """Returns the text of a tokenizer.json."""
    expected = "a readable tokenizer.json"
    fix = "correct the path, or copy the file again"
    try:
        return vocabularies.read_bytes(path, fix, expected).decode()
    except UnicodeDecodeError as error:
        got = f"a byte that is not UTF-8 ({error.reason})"
        raise UserError(str(path), got=got, expected=expected, fix=fix) from None


def byte_level(bpe: Bpe, lowercase: bool, special: Sequence[str]) -> LibraryEncoderTokenizer:
    """Returns byte-level BPE. A space is put before each text, so that its first word is like any other.

    Args:
      bpe: the vocabulary and the merges, over the characters that stand for bytes.
      lowercase: whether text is lowercased.
      special: the tokens of `bpe.vocab` that are special, `SPECIALS` first.
    """
    tokenizer = Library(models.BPE({token: i for i, token in enumerate(bpe.vocab)}, bpe.merges))
    tokenizer.normalizer = byte_normalizer(lowercase)
    tokenizer.pre_tokenizer = byte_splitter()
    # Removes the space before the text.
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    # As in RoBERTa and ModernBERT, the mask token includes the space before it.
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == MASK, normalized=False, special=True) for token in special]
    )
    return LibraryEncoderTokenizer(tokenizer.to_str(), SPECIALS)


def byte_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Returns the normalizer of `byte_level`: NFC, and lowercasing."""
    nfc = normalizers.NFC()
    # Lowercasing can change the normal form, so it is applied again.
    return normalizers.Sequence([nfc, normalizers.Lowercase(), nfc]) if lowercase else nfc


def byte_splitter() -> pre_tokenizers.PreTokenizer:
    """Returns the splitter of `byte_level`, which splits text into words of characters that stand for bytes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)


def _spaced_once() -> pre_tokenizers.PreTokenizer:
    """Returns `byte_splitter` without a space before the text after a special token, where the library splits first.

    Training replaces tokens by masks, so it has no such space.
    """
    space = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
    return pre_tokenizers.Sequence([space, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def _is_byte_level(steps: Mapping[str, Any], where: str) -> bool:
    """Returns whether tokens are bytes. Raises UserError for unsupported kinds of tokenizers."""
    model = steps["model"]["type"]
    splitters = [step["type"] for step in _parts(steps["pre_tokenizer"], "pretokenizers")]
    is_byte_level = "ByteLevel" in splitters
    spaces = [step.get("content") for step in _parts(steps["normalizer"], "normalizers") if step["type"] == "Replace"]
    if model not in ("BPE", "Unigram") or not (is_byte_level or "Metaspace" in splitters or SPACE in spaces):
        raise UserError(
            where,
            got=f"a tokenizer of type {model} with the pre-tokenizer {' and '.join(splitters) or 'none'}",
            expected="byte-level BPE, or BPE or Unigram with the pre-tokenizer Metaspace or spaces replaced by it",
            fix="use such a tokenizer, or a WordPiece vocabulary (vocab.txt)",
        )
    return is_byte_level


def _parts(step: Mapping[str, Any] | None, key: str) -> Sequence[Mapping[str, Any]]:
    """Returns the steps of a sequence in a tokenizer.json, or a single step."""
    if step is None:
        return []
    return [part for inner in step[key] for part in _parts(inner, key)] if step["type"] == "Sequence" else [step]


def _check_rebuilt(steps: Mapping[str, Any], config_file: Path) -> None:
    """Raises UserError if tokenizer_config.json states other steps than tokenizer.json."""
    normalizers = {step["type"] for step in _parts(steps["normalizer"], "normalizers")}
    splitters = {step["type"]: step for step in _parts(steps["pre_tokenizer"], "pretokenizers")}
    schemes: dict[Any, tuple[Any, ...]] = {"always": (True,), "never": (False,), "first": (True, False)}
    scheme = splitters.get("Metaspace", {}).get("prepend_scheme")
    of_bytes = splitters.get("ByteLevel", {}).get("add_prefix_space")
    supported: dict[str, tuple[Any, ...]] = {
        "add_prefix_space": schemes.get(scheme, (of_bytes,)),
        "split_by_punct": ("Punctuation" in splitters,),
        "keep_accents": ("StripAccents" not in normalizers,),
        "do_lower_case": ("Lowercase" in normalizers,),
    }
    config = vocabularies.read_json(config_file)
    check_supported({key: config[key] for key in supported if config.get(key) is not None}, supported, config_file)


def _names(special: Sequence[str], ids: Mapping[str, int], where: str, *, needs_unk: bool) -> tuple[str, ...]:
    """Returns the names of the special tokens, in the order of `ROLES`. Without unknown text, padding stands for it."""
    names: list[str] = []
    missing: list[str] = []
    for role, name, *usual in zip(ROLES, special, *_USUAL, strict=True):
        candidates = [name] if name else usual
        candidates += names[:1] if role == "unk" and not needs_unk else []
        token = next((name for name in candidates if name in ids), "")
        names.append(token)
        if not token:
            missing.append(f"{role}_token ({' or '.join(candidates)})")
    if missing:
        raise UserError(
            where,
            got=f"a vocabulary without {', '.join(missing)}",
            expected="tokens for padding, unknown text, start, separator and mask",
            fix="add the tokens to the vocabulary, or name others in tokenizer_config.json beside the file "
            '({"pad_token": ..., "mask_token": ...})',
        )
    return tuple(names)


def _by_id(ids: Mapping[str, int], where: str) -> tuple[str, ...]:
    """Returns the tokens in the order of their ids; "" for unused ids."""
    size = max(ids.values()) + 1
    if size > _MAX_GAPS * len(ids):
        expected = "ids with few gaps, because each has an embedding"
        fix = "number the tokens from 0 on"
        raise UserError(where, got=f"{len(ids)} tokens with ids up to {size - 1}", expected=expected, fix=fix)
    vocab = [""] * size
    for token, number in ids.items():
        vocab[number] = token
    return tuple(vocab)


def _bytes(token: str, is_byte_level: bool) -> bytes:
    """Returns the bytes of a token, with a space where a word starts."""
    if not is_byte_level:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()
    return bytes(_BYTES[char] for char in token) if all(char in _BYTES for char in token) else token.encode()


def _byte_table() -> dict[str, int]:
    """Returns the byte that each character stands for in byte-level BPE (Radford et al. 2019, GPT-2's encoder.py).

    Visible characters of Latin-1 stand for themselves, and characters from U+0100 on for the remaining bytes.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_table()
BYTE_CHARS = tuple(sorted(_BYTES))


def _continues(content: bytes, text: str) -> bool:
    """Returns whether a token continues a word: it starts with no space, punctuation mark or Chinese character.

    A token of bytes may be the beginning of a character. From U+4000 to U+9FFF, most characters are Chinese.
    """
    if text[:1] == _UNDECODED and 0xE4 <= content[0] <= 0xE9:
        return False
    return bool(text) and " " not in normalize(text[0], Chain.of(lowercase=False))


def _after_dropped(starts: np.ndarray, ends: np.ndarray, is_space: Bool[np.ndarray, " chars"]) -> np.ndarray:
    """Returns the ends of ranges, extended over characters that normalization drops or joins to those before them."""
    size = len(is_space)
    depth = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    anchors = np.flatnonzero((np.cumsum(depth[:size]) > 0) | is_space)
    return np.append(anchors, size)[np.searchsorted(anchors, ends)]
