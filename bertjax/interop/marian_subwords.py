"""Reads and writes the vocabularies of a Marian folder: SentencePiece models, and JSON files with the ids of pieces.

Each side has its own SentencePiece model. Both use the ids of `vocab.json`, unless the target has a
`target_vocab.json`. Pieces and ids equal those of `MarianTokenizer` of transformers, except that names of special
tokens in a text are ordinary text.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from bertjax.data.text import subwords
from bertjax.data.text.subwords import SentencePieceSubwords, Special, Subwords
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.interop.formats.reading import shown
from bertjax.interop.json_files import read_json

_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"
_JOINT_FILE, _TARGET_FILE, _CONFIG_FILE = "vocab.json", "target_vocab.json", "tokenizer_config.json"
_FIX = "download the folder again, with all files of its tokenizer"

Ids = Int32[np.ndarray, " tokens"]


class MarianSubwords(Subwords):
    """The vocabulary of one side. The decoder starts with padding. An unknown piece is decoded as " \u2047 ".

    A text may begin with the token of the language to translate into, such as `>>deu<<`.
    """

    def __init__(self, model: bytes, ids: dict[str, int], names: tuple[str, str], where: str) -> None:
        """Initializes from the contents of the two files, their names, and the folder, which messages name.

        Raises:
          UserError: see `read_subwords`.
        """
        _check_ids(ids, f"{where}/{names[1]}")
        self._arguments = (model, ids, names, where)
        self._processor, self._ids = subwords.sentencepiece_processor(model, f"{where}/{names[0]}"), ids
        self._pieces = {number: piece for piece, number in ids.items()}
        special = Special(pad=ids[_PAD], begin=ids[_PAD], end=ids[_END], unknown=ids[_UNKNOWN])
        super().__init__(max(self._pieces) + 1, special, "sentencepiece")

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes rebuild the processor, which cannot be pickled.
        return MarianSubwords, self._arguments

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, without special tokens except that of the language."""
        split = [_split_language(text) for text in texts]
        pieces = self._processor.encode([text for _, text in split], out_type=str)
        return [
            np.array([self._ids.get(piece, self.unk_id) for piece in (*code, *rest)], np.int32)
            for (code, _), rest in zip(split, pieces, strict=True)
        ]

    def normalized(self, text: str) -> str:
        """Returns the normalized text: the result of decoding its ids if the vocabulary has all of its characters."""
        return subwords.sentencepiece_normalized(self._processor, text)

    def _text(self, ids: list[int]) -> str:
        pieces = [self._pieces.get(token, _UNKNOWN) for token in ids]
        return self._processor.decode_pieces(pieces).replace("▁", " ").strip()

    def _content(self) -> bytes:
        model, ids, *_ = self._arguments
        return model + json.dumps(ids, sort_keys=True).encode()

    def save(self, folder: Path) -> None:
        """Writes the side's two files and the tokenizer config of transformers. Save both sides into one folder."""
        model, ids, (model_file, ids_file), _ = self._arguments
        separate = ids_file == _TARGET_FILE or (folder / _TARGET_FILE).exists()
        _write(folder, {model_file: model, ids_file: _json(ids), _CONFIG_FILE: _config(separate)})


def save_sentencepiece(source: SentencePieceSubwords, target: SentencePieceSubwords, folder: Path) -> None:
    """Writes the files of `transformers.MarianTokenizer`: both models, and the ids of their pieces.

    It gives the same ids as the vocabularies, with two exceptions. It reads `>>...<<` at the beginning of a text as one
    token, and pads sources with the target's padding id, because it has only one. The other special ids of both sides
    must be equal.
    """
    sides = (source.names(), target.names())
    names = {"eos_token": sides[0][source.eos_id], "pad_token": sides[0][source.pad_id]}
    if source.unk_id is not None:
        names["unk_token"] = sides[0][source.unk_id]
    ids, target_ids = ({piece: number for number, piece in enumerate(side)} for side in sides)
    ids[names["pad_token"]] = target.pad_id
    files = {"source.spm": source.model, "target.spm": target.model, _JOINT_FILE: _json(ids)}
    if source is not target:
        files[_TARGET_FILE] = _json(target_ids)
    _write(folder, {**files, _CONFIG_FILE: _config(source is not target, **names)})


def read_subwords(folder: Path) -> tuple[MarianSubwords, MarianSubwords]:
    """Returns the vocabularies of source and target.

    Raises:
      UserError: if a file is missing or damaged, two pieces have the same id, a special token is missing, or the
        package `sentencepiece` is not installed.
    """
    target_file = _TARGET_FILE if (folder / _TARGET_FILE).exists() else _JOINT_FILE
    return _side(folder, "source.spm", _JOINT_FILE), _side(folder, "target.spm", target_file)


def _side(folder: Path, model_file: str, ids_file: str) -> MarianSubwords:
    try:
        model = (folder / model_file).read_bytes()
    except OSError as error:
        expected = "a SentencePiece model"
        raise UserError(str(folder / model_file), got=error.strerror, expected=expected, fix=_FIX) from None
    return MarianSubwords(model, read_json(folder / ids_file, dict), (model_file, ids_file), str(folder))


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


def _config(separate: bool, **special: str) -> bytes:
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, **special}
    return _json({**config, "split_special_tokens": True})


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, indent=2).encode()


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with completed(folder / name) as path:
            path.write_bytes(content)
