"""WordPiece: text to the very ids that google-research/bert's `tokenization.py` gives.

Normalization and word splitting are ours, on the interpreter's Unicode tables as in Google's code: the
`tokenizers` library follows older tables and another order of steps, so rare text comes out otherwise there
(private use, newer scripts, part of CJK extension E, a Greek final sigma). Splitting words into pieces is the
library's. On English this is also faster than the library's own normalizer.
"""

import json
import string
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertjax.errors import UserError
from bertjax.files import completed

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
MAX_WORD_CHARS = 200  # a longer word is [UNK]

# Words whose pieces are remembered: 20 MB of English ones.
_KEPT_WORDS = 1 << 16

# The blocks that Google's code calls Chinese: Hangul, kana and later extensions are not among them.
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """A vocabulary with the text-to-ids algorithm of BERT.

    Attributes:
      vocab: the V tokens, at their ids.
      lowercase: whether text is lowercased and stripped of accents first (an "uncased" model).
      vocab_size: V.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      is_continuation: [V] bool, whether the token continues a word ("##...").
    """

    def __init__(self, vocab: Sequence[str], lowercase: bool) -> None:
        """Raises UserError if a special token is missing or a token is there twice."""
        self.vocab = tuple(vocab)
        self.lowercase = lowercase
        self.vocab_size = len(self.vocab)
        ids = _checked_ids(self.vocab, "the vocabulary")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIALS)
        self.is_continuation = np.array([token.startswith(CONTINUATION) for token in self.vocab])
        self._model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=MAX_WORD_CHARS)
        self._pieces = _Pieces(self._model)

    def __reduce__(self) -> tuple[type["WordPiece"], tuple[tuple[str, ...], bool]]:
        return WordPiece, (self.vocab, self.lowercase)

    @classmethod
    def from_file(cls, path: str | Path, lowercase: bool) -> "WordPiece":
        """Reads a vocab.txt: UTF-8, one token a line, the line number (from 0) being its id.

        Raises:
          UserError: no such file, a folder, not UTF-8, empty, a special token missing, a token twice.
        """
        return cls(_read_vocab(Path(path)), lowercase)

    @classmethod
    def load(cls, folder: str | Path) -> "WordPiece":
        """Reads a Hugging Face folder: vocab.txt or else tokenizer.json; tokenizer_config.json for the casing.

        Raises:
          UserError: neither vocabulary nor casing to be found, unreadable files, or a tokenizer that is not
            BERT's (other model, accents stripped without lowercasing or the reverse, Chinese left unsplit).
        """
        folder = Path(folder)
        library = _read_json(folder / "tokenizer.json")
        lowercase = _casing(folder, library, _read_json(folder / "tokenizer_config.json"))
        if (folder / "vocab.txt").exists():
            return cls.from_file(folder / "vocab.txt", lowercase)
        return cls(_library_vocab(folder, library), lowercase)

    def save(self, folder: str | Path) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json, for `transformers.AutoTokenizer`.

        That one takes words over 100 characters as [UNK], whatever tokenizer.json says (200, as here).
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
        }
        text = json.dumps(settings, indent=2) + "\n"
        with completed(folder / "tokenizer_config.json") as path:
            path.write_text(text, encoding="utf-8")

    def words(self, text: str) -> list[str]:
        """The normalized words that are then split into pieces."""
        return normalize(text, self.lowercase).split()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens; a "[MASK]" in a text is ordinary text."""
        pieces = self._pieces
        return [[piece for word in self.words(text) for piece in pieces[word]] for text in texts]

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
    return text.translate(_SEPARATE)


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


class _Pieces(dict[str, list[int]]):
    """The ids of a word's pieces, remembered: text repeats its words, and so most are looked up."""

    def __init__(self, model: models.WordPiece) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> list[int]:
        ids = [token.id for token in self._model.tokenize(word)]
        if len(word) <= MAX_WORD_CHARS:
            if len(self) == _KEPT_WORDS:
                self.clear()
            self[word] = ids
        return ids


class _Table(dict[int, str | None]):
    """A rule per character as a table for `str.translate`, filled as characters turn up."""

    def __init__(self, rule: Callable[[str], str | None]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str | None:
        self[code_point] = self._rule(chr(code_point))
        return self[code_point]


_CLEAN = _Table(_clean)
_SEPARATE = _Table(_separate)
_SEPARATE_AND_STRIP = _Table(_separate_and_strip)


def _checked_ids(vocab: Sequence[str], what: str) -> dict[str, int]:
    """Token to id. Raises UserError when a special token is missing or a token is there twice."""
    lines = defaultdict(list)
    for number, token in enumerate(vocab, start=1):
        lines[token].append(number)
    missing = [token for token in SPECIALS if token not in lines]
    if missing:
        raise UserError(
            what,
            got=f"{len(vocab)} tokens without {' '.join(missing)}",
            expected="one token a line, among them " + " ".join(SPECIALS),
            fix="use a BERT vocabulary (vocab.txt)",
        )
    twice = {token: numbers for token, numbers in lines.items() if len(numbers) > 1}
    if twice:
        token, numbers = next(iter(twice.items()))
        raise UserError(
            what,
            got=f"{token!r} on lines {', '.join(map(str, numbers))} ({len(twice)} duplicated tokens in all)",
            expected="every token once",
            fix="restore the original file; deleting a line would shift the ids after it",
        )
    return {token: numbers[0] - 1 for token, numbers in lines.items()}


def _read_bytes(path: Path, fix: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(str(path), got=error.strerror, expected="a readable file", fix=fix) from error


def _read_vocab(path: Path) -> list[str]:
    data = _read_bytes(path, fix="give the path of a vocab.txt")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {data.count(10, 0, error.start) + 1}",
            got=f"the byte 0x{data[error.start]:02x} ({error.reason})",
            expected="UTF-8",
            fix="save the file as UTF-8",
        ) from error
    # Not splitlines: U+0085 or U+2028 may be a token.
    vocab = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    _checked_ids(vocab, str(path))
    return vocab


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is no such file."""
    if not path.exists():
        return {}
    fix = "restore the file"
    try:
        value = json.loads(_read_bytes(path, fix))
    except ValueError as error:
        raise UserError(str(path), got=str(error), expected="JSON in UTF-8", fix=fix) from error
    if not isinstance(value, dict):
        raise UserError(str(path), got=f"a JSON {type(value).__name__}", expected="a JSON object", fix=fix)
    return value


def _casing(folder: Path, library: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a Hugging Face folder's tokenizer lowercases."""
    normalizer = library.get("normalizer") or {}
    found = {
        "lowercase": (config.get("do_lower_case"), normalizer.get("lowercase")),
        "strip_accents": (config.get("strip_accents"), normalizer.get("strip_accents")),
        "chinese": (config.get("tokenize_chinese_chars"), normalizer.get("handle_chinese_chars")),
    }
    first = {key: next((v for v in values if v is not None), None) for key, values in found.items()}
    lowercase = first["lowercase"]
    if not isinstance(lowercase, bool):
        raise UserError(
            str(folder),
            got=f"do_lower_case {lowercase}" if lowercase is not None else "nothing that tells the casing",
            expected="do_lower_case in tokenizer_config.json, or a BertNormalizer in tokenizer.json",
            fix='write {"do_lower_case": true} (false for a cased model) to tokenizer_config.json',
        )
    if first["strip_accents"] not in (None, lowercase) or first["chinese"] is False:
        raise UserError(
            str(folder),
            got=f"{first}",
            expected="accents stripped if and only if lowercased, Chinese characters split, as BERT does",
            fix="use another model; this one's text would be encoded otherwise than in its training",
        )
    return lowercase


def _library_vocab(folder: Path, library: dict[str, Any]) -> list[str]:
    """The tokens of a tokenizer.json, in the order of their ids."""
    model = library.get("model", {})
    if model.get("type") != "WordPiece":
        raise UserError(
            str(folder),
            got=f"a tokenizer.json of type {model.get('type')}" if library else "no vocab.txt, no tokenizer.json",
            expected="a WordPiece vocabulary: vocab.txt or tokenizer.json",
            fix="give the folder of a BERT model",
        )
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if [model["vocab"][token] for token in vocab] != list(range(len(vocab))):
        raise UserError(
            str(folder / "tokenizer.json"),
            got="ids with gaps or repeats",
            expected=f"ids 0 to {len(vocab) - 1}",
            fix="restore the file",
        )
    return vocab
