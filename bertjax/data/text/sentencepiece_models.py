"""SentencePiece models, encoded by the package sentencepiece.

The `Precompiled` normalizer of the `tokenizers` library gives other results on rare Unicode.
"""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.data.text.library_tokenizers import PADS, without, without_marks
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError
from bertjax.files import write_files

FILE = "spm.model"


class SentencePiece(Tokenizer):
    """A SentencePiece model. An unknown character is decoded as " \u2047 ", SentencePiece's default.

    Attributes:
      model: the content of the model file.
    """

    normalization = "sentencepiece"

    def __init__(self, model: bytes, where: str) -> None:
        """Opens a model.

        Args:
          model: the content of the model file.
          where: its name, for messages.

        Raises:
          UserError: if the content is not a model, the model has no end token, or `sentencepiece` is not installed.
        """
        self.model = model
        self._where = where
        self._processor = processor = open_processor(model, where)
        size = processor.get_piece_size()
        self.sep_id = processor.eos_id()
        if self.sep_id < 0:
            raise without(where, "an end token (eos)")
        # Most models have no padding token, so padding gets an additional id.
        self.pad_id = size if processor.pad_id() < 0 else processor.pad_id()
        self.cls_id = self.pad_id if processor.bos_id() < 0 else processor.bos_id()
        self.unk_id = processor.unk_id()
        self.vocab_size = size + (self.pad_id == size)
        self.template = Template.of_marian(self.sep_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePiece, (self.model, self._where)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(texts))
        return ids

    def normalized(self, text: str) -> str:
        return normalized(self._processor, text)

    def save(self, folder: Path) -> None:
        """Writes a copy of the model to spm.model."""
        write_files(folder, {FILE: self.model})

    def pieces(self) -> list[str]:
        """Returns the V pieces in the order of their ids. An additional padding token gets an unused name."""
        pieces: list[str] = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        free = next(name for name in itertools.chain(PADS, map(str, itertools.count())) if name not in pieces)
        return pieces + [free] * (self.vocab_size - len(pieces))

    def _text(self, ids: list[int]) -> str:
        return str(self._processor.decode(ids))


def open_processor(model: bytes, where: str) -> Any:
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


def normalized(processor: Any, text: str) -> str:
    """Returns a text as a SentencePiece processor normalizes it."""
    return without_marks(processor.normalize(text))
