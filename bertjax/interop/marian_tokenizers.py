"""Reads and writes the vocabularies of a Marian folder: SentencePiece models, and JSON files with the ids of pieces.

Each side has its own SentencePiece model. Both use the ids of `vocab.json`, unless the target has a
`target_vocab.json`. Pieces and ids equal those of `MarianTokenizer` of transformers, except that names of special
tokens in a text are ordinary text.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.data.text import sentencepiece_models, vocabularies
from bertjax.data.text.sentencepiece_models import SentencePiece
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizer_keys import TOKENIZER_CONFIG
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabularies import read_bytes
from bertjax.errors import UserError
from bertjax.file_keys import check_fixed
from bertjax.files import write_files
from bertjax.interop.formats.reading import shown
from bertjax.interop.json_files import fields, read_json

_PAD = "<pad>"
_END = "</s>"
_UNKNOWN = "<unk>"
_JOINT_FILE = "vocab.json"
_TARGET_FILE = "target_vocab.json"
_CONFIG_FILE = "tokenizer_config.json"
_FIX = "download the folder again, with all files of its tokenizer"


class Marian(Tokenizer):
    """The vocabulary of one side. The decoder starts with padding. An unknown piece is decoded as " \u2047 ".

    A text may begin with the token of the language to translate into, such as `>>deu<<`.
    """

    normalization = "sentencepiece"
    unk_id: int

    def __init__(self, model: bytes, ids: dict[str, int], names: tuple[str, str], where: str) -> None:
        """Initializes from the contents of the two files, their names, and the folder, which messages name.

        Raises:
          UserError: see `read_tokenizers`.
        """
        _check_ids(ids, f"{where}/{names[1]}")
        self._arguments = (model, ids, names, where)
        self._processor = sentencepiece_models.open_processor(model, f"{where}/{names[0]}")
        self._ids = ids
        self._pieces = {number: piece for piece, number in ids.items()}
        self.pad_id = self.cls_id = ids[_PAD]
        self.sep_id = ids[_END]
        self.unk_id = ids[_UNKNOWN]
        self.vocab_size = max(self._pieces) + 1
        self.template = Template.of_marian(self.sep_id)

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes rebuild the processor, which cannot be pickled.
        return Marian, self._arguments

    @property
    def fingerprint(self) -> str:
        """A digest of the model and the ids."""
        model, ids, *_ = self._arguments
        return hashlib.sha256(model + json.dumps(ids, sort_keys=True).encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens except that of the language."""
        split = [_split_language(text) for text in texts]
        pieces = self._processor.encode([text for _, text in split], out_type=str)
        return [
            [self._ids.get(piece, self.unk_id) for piece in (*code, *rest)]
            for (code, _), rest in zip(split, pieces, strict=True)
        ]

    def normalized(self, text: str) -> str:
        """Returns the normalized text: the result of decoding its ids if the vocabulary has all of its characters."""
        return sentencepiece_models.normalized(self._processor, text)

    def _text(self, ids: list[int]) -> str:
        pieces = [self._pieces.get(token, _UNKNOWN) for token in ids]
        return self._processor.decode_pieces(pieces).replace("▁", " ").strip()

    def save(self, folder: Path) -> None:
        """Writes the side's two files and the tokenizer config of transformers. Save both sides into one folder."""
        model, ids, (model_file, ids_file), _ = self._arguments
        separate = ids_file == _TARGET_FILE or (folder / _TARGET_FILE).exists()
        write_files(folder, {model_file: model, ids_file: _json(ids), _CONFIG_FILE: _config(separate)})


def save_sentencepiece(source: SentencePiece, target: SentencePiece, folder: Path) -> None:
    """Writes the files of `transformers.MarianTokenizer`: both models, and the ids of their pieces.

    It gives the same ids as the vocabularies, with two exceptions. It reads `>>...<<` at the beginning of a text as one
    token, and pads sources with the target's padding id, because it has only one. The other special ids of both sides
    must be equal.
    """
    sides = (source.pieces(), target.pieces())
    names = {"eos_token": sides[0][source.sep_id], "pad_token": sides[0][source.pad_id]}
    if source.unk_id is not None:
        names["unk_token"] = sides[0][source.unk_id]
    ids, target_ids = ({piece: number for number, piece in enumerate(side)} for side in sides)
    ids[names["pad_token"]] = target.pad_id
    files: dict[str, str | bytes] = {"source.spm": source.model, "target.spm": target.model, _JOINT_FILE: _json(ids)}
    if source is not target:
        files[_TARGET_FILE] = _json(target_ids)
    write_files(folder, {**files, _CONFIG_FILE: _config(source is not target, **names)})


def read_tokenizers(folder: Path) -> tuple[Marian, Marian]:
    """Returns the vocabularies of source and target.

    Raises:
      UserError: if a file is missing or damaged, two pieces have the same id, a special token is missing or has another
        name, or the package `sentencepiece` is not installed.
    """
    path = folder / _CONFIG_FILE
    config = {"separate_vocabs": (folder / _TARGET_FILE).exists(), **vocabularies.read_json(path)}
    TOKENIZER_CONFIG.check(config, path)
    is_separate = fields(config, {"value": ("separate_vocabs", bool)}, path)["value"]
    names = {f"{role}_token": name for role, name in vocabularies.read_special_names(folder).items()}
    check_fixed(names, {"pad_token": _PAD, "eos_token": _END, "unk_token": _UNKNOWN}, path)
    target_file = _TARGET_FILE if is_separate else _JOINT_FILE
    return _side(folder, "source.spm", _JOINT_FILE), _side(folder, "target.spm", target_file)


def _side(folder: Path, model_file: str, ids_file: str) -> Marian:
    model = read_bytes(folder / model_file, _FIX, "a SentencePiece model")
    return Marian(model, read_json(folder / ids_file, dict), (model_file, ids_file), str(folder))


def _split_language(text: str) -> tuple[list[str], str]:
    """Splits off the language token at the start of a text, if there is one.

    >>> _split_language(">>deu<< A dog.")
    (['>>deu<<'], ' A dog.')
    """
    end = text.find("<<") + 2 if text.startswith(">>") else 1
    return ([text[:end]], text[end:]) if end > 1 else ([], text)


def _check_ids(ids: dict[str, Any], where: str) -> None:
    numbers = set()
    for piece, number in ids.items():
        if type(number) is not int or number < 0 or number in numbers:
            got = f"{shown(number)} for {shown(repr(piece))}"
            raise UserError(where, got=got, expected="a different number of 0 or more for each piece", fix=_FIX)
        numbers.add(number)
    for piece in (_PAD, _END, _UNKNOWN):
        if piece not in ids:
            raise UserError(
                where, got=f"no {piece}", expected=f"{_PAD}, {_END} and {_UNKNOWN} among the pieces", fix=_FIX
            )


def _config(separate: bool, **special: str) -> str:
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, **special}
    return _json({**config, "split_special_tokens": True})


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=2)
