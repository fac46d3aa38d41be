"""Tokenizers of the `tokenizers` library for text generation: any tokenizer.json."""

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from bertjax.data.text.templates import Template, read_template
from bertjax.data.text.tokenizers import Tokenizer, encodable
from bertjax.errors import UserError
from bertjax.files import write_files

FILE = "tokenizer.json"
SILENT = "bertjax_silent_tokens"  # a key of tokenizer_config.json
SPACE = "\u2581"  # SentencePiece's symbol
_NEWLINE = "<n>"  # PEGASUS's symbol of the end of a line

# The names of special tokens in published vocabularies. The first name that exists is used.
PADS = ("<pad>", "[PAD]", "<|pad|>", "<PAD>")
_UNKS = ("<unk>", "[UNK]", "<UNK>")
_STARTS = ("<s>", "[CLS]", "<bos>", "[BOS]", "<BOS>")
_ENDS = ("</s>", "[SEP]", "<eos>", "[EOS]", "<EOS>", "<|endoftext|>")
_USUAL: Mapping[str, Sequence[str]] = {"pad": PADS, "unk": _UNKS, "bos": _STARTS, "eos": _ENDS}


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library with a padding and an end token.

    An unknown character is decoded as the name of the unknown token, unless that is silent.

    Attributes:
      silent: the names of tokens that are skipped in decoding, besides padding, start and end tokens.
    """

    silent: tuple[str, ...] = ()
    _silent_ids: frozenset[int] = frozenset()

    def __init__(
        self, library: Library, vocab_size: int, special: tuple[int, int | None, int, int], ordinary: Container[str]
    ) -> None:
        """Initializes the tokenizer.

        Args:
          library: the tokenizer of the library.
          vocab_size: V, which is above all ids.
          special: the ids of the padding, unknown, start and end tokens.
          ordinary: the names of special tokens that are ordinary text.
        """
        self.pad_id, self.unk_id, self.cls_id, self.sep_id = special
        self.template = Template.of_marian(self.sep_id)
        self.vocab_size = vocab_size
        self.normalization = _steps(state(library.normalizer))
        self._library = with_ordinary(library, ordinary)
        if library.token_to_id(_NEWLINE) is not None:
            self.newline = _NEWLINE

    @classmethod
    def from_json(
        cls,
        content: str,
        where: str = "the vocabulary",
        names: Mapping[str, str] | None = None,
        silent: Sequence[str] = (),
    ) -> "LibraryTokenizer":
        """Opens a tokenizer by the names of its special tokens.

        Args:
          content: the content of a tokenizer.json.
          where: the name of the file, for messages.
          names: the names of the special tokens, by "pad", "unk", "bos" and "eos"; padding is the start token if there
            is no "bos". The post_processor of the content is then the template. Default: the usual names, and the
            template of Marian.
          silent: see the attribute.
        Raises:
          UserError: if it is not a tokenizer.json, has no padding or end token, or its post_processor is no template.
        """
        library = open_library(content, where)
        library.no_truncation()
        post_processor = state(library.post_processor) if names else None
        library.post_processor = None
        ids = library.get_vocab(with_added_tokens=True)
        candidates = {role: [names[role]] if role in names else [] for role in _USUAL} if names else _USUAL
        pad, unk, start, end = (_first(candidates[role], ids) for role in _USUAL)
        if pad is None:
            raise without(where, f"a padding token ({', '.join(candidates['pad'])})")
        if end is None:
            raise without(where, f"an end token ({', '.join(candidates['eos'])})")
        special = (pad, unk, pad if start is None else start, end)
        size = max(ids.values()) + 1
        tokenizer = cls(library, size, special, {name for name in ids if ids[name] in special})
        template = read_template(post_processor, size, where)
        if template and template != tokenizer.template:
            tokenizer.template = template
            tokenizer._library.post_processor = template.processor(library.id_to_token)  # for the fingerprint
        tokenizer.silent = tuple(name for name in silent if name in ids)
        tokenizer._silent_ids = frozenset(ids[name] for name in tokenizer.silent)
        return tokenizer

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_json, (self._library.to_str(), special_names(self._library, self), self.silent)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._library.to_str(pretty=True).encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._library.encode_batch_fast(list(map(encodable, texts)), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def normalized(self, text: str) -> str:
        normalizer = self._library.normalizer
        plain = without_marks(normalizer.normalize_str(text)) if normalizer else text
        return plain.replace(self.newline, "\n")

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which `transformers.AutoTokenizer` can also open."""
        save_library(Library.from_str(self._library.to_str()), self, folder, self.silent)

    def _text(self, ids: list[int]) -> str:
        audible = [token for token in ids if token not in self._silent_ids]
        return self._library.decode(audible, skip_special_tokens=False).replace(self.newline, "\n")


def open_library(content: str, where: str) -> Library:
    """Returns the library's tokenizer of a tokenizer.json, without padding.

    Raises:
      UserError: if the content is not a tokenizer.json; it names `where`.
    """
    try:
        library = Library.from_str(content)
    except Exception as error:  # the library raises no narrower type
        fix = "copy the file again, or save it again with the tokenizers library"
        raise UserError(where, got=str(error), expected="a tokenizer.json", fix=fix) from None
    library.no_padding()
    return library


def with_ordinary(library: Library, ordinary: Container[str]) -> Library:
    """Returns the tokenizer that finds all added tokens in a text except those whose names are ordinary text.

    Other special tokens, such as names of languages, become tokens that a text may contain.
    """
    added = library.get_added_tokens_decoder().values()
    others = {token.content for token in added if token.special and token.content not in ordinary}
    if others:
        values = json.loads(library.to_str())
        for token in values["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in others
        library = Library.from_str(json.dumps(values))
    library.encode_special_tokens = True
    return library


def save_library(library: Library, tokenizer: Tokenizer, folder: Path, silent: Sequence[str] = ()) -> None:
    """Writes tokenizer.json and tokenizer_config.json, with which transformers applies the template.

    Silent tokens are special in the files, so that transformers also omits them from texts. Where there are any, the
    names of other special tokens in a text are tokens in transformers.

    Args:
      library: the tokenizer of the library.
      tokenizer: the tokenizer whose special tokens and template are written.
      folder: the folder; created if necessary.
      silent: see `LibraryTokenizer`; a key that transformers ignores.
    """
    library.post_processor = tokenizer.template.processor(library.id_to_token)
    values = json.loads(library.to_str())
    unknown = special_names(library, tokenizer).get("unk")  # which the files name as a special token anyway
    for token in values["added_tokens"]:
        token["special"] = token["special"] or token["content"] in {*silent} - {unknown}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": name for role, name in special_names(library, tokenizer).items()},
        # As here, names of special tokens in a text are ordinary text; but transformers would also split silent tokens.
        "split_special_tokens": not silent,
        "clean_up_tokenization_spaces": False,
        **({SILENT: list(silent)} if silent else {}),
    }
    config_json = json.dumps(config, indent=2, ensure_ascii=False)
    marked = Library.from_str(json.dumps(values)).to_str(pretty=True)
    write_files(folder, {FILE: marked, "tokenizer_config.json": config_json})


def special_names(library: Library, tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the names of the special tokens by "pad", "eos", "unk" and "bos"; without "bos" if it is the padding."""
    ids = {"pad": tokenizer.pad_id, "eos": tokenizer.sep_id, "unk": tokenizer.unk_id}
    if tokenizer.cls_id != tokenizer.pad_id:
        ids["bos"] = tokenizer.cls_id
    return {role: str(library.id_to_token(token)) for role, token in ids.items() if token is not None}


def without_marks(text: str) -> str:
    """Returns normalized text with `SPACE` replaced by spaces, without the one before the text."""
    return text.replace(SPACE, " ").removeprefix(" ")


def without(where: str, token: str) -> UserError:
    """Returns the error about a vocabulary without a token that text generation needs."""
    fix = "add the token to the vocabulary, or use another vocabulary"
    expected = "a vocabulary for text generation"
    return UserError(where, got=f"a vocabulary without {token}", expected=expected, fix=fix)


def state(step: Any) -> Any:
    """Returns a step of a tokenizer as in a tokenizer.json; None for none."""
    return step and json.loads(step.__getstate__())


def _first(names: Iterable[str], ids: Mapping[str, int]) -> int | None:
    return next((ids[name] for name in names if name in ids), None)


def _steps(normalizer: Mapping[str, Any] | None) -> str:
    """Returns the names of the steps of a normalizer in a tokenizer.json, except those that mark spaces."""
    steps = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
    names = (step["type"].lower() for step in steps if step["type"] not in ("Replace", "Prepend"))
    return "+".join(dict.fromkeys(names))


def _from_json(content: str, names: Mapping[str, str], silent: Sequence[str] = ()) -> LibraryTokenizer:
    """Opens a tokenizer. Beam can pickle a function of a module, but not a method that is checked at run time."""
    return LibraryTokenizer.from_json(content, names=names, silent=silent)
