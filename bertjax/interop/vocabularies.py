"""Vocabularies of a translation model, in the folder of a run or of a MarianMTModel."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

from bertjax.data.text.subword_vocabularies import Vocabularies
from bertjax.data.text.subwords import SentencePieceSubwords
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.interop.marian_subwords import MarianSubwords, read_subwords, save_sentencepiece

_log = logging.getLogger(__name__)

_DIGEST = "vocabulary.sha256"  # the digest of the vocabulary files
# All file names that a vocabulary can have.
_FILES = (
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json", "spm.model"),
    *("vocab.txt", "tokenizer.json", "tokenizer_config.json"),
)


class SavedVocabularies(Vocabularies):
    """Vocabularies that are saved with a digest, also those of Marian."""

    def save(self, folder: Path, *, for_transformers: bool = False) -> None:
        """Writes the vocabularies for `open_vocabularies`, and replaces existing ones.

        Args:
          folder: the folder; created if needed.
          for_transformers: whether `AutoTokenizer.from_pretrained(folder)` must open them too. It decodes translations
            only if the sides share a vocabulary, or are SentencePiece models or Marian's. Otherwise the folder has the
            source's vocabulary, and its subfolder `target` the target's.
        """
        (folder / _DIGEST).unlink(missing_ok=True)
        for path in _files(folder):
            path.unlink()
        for place in (folder / "source", folder / "target"):
            with contextlib.suppress(OSError):  # the folder is missing or has other files
                place.rmdir()
        if isinstance(self.source, MarianSubwords):
            self.source.save(folder)
            self.target.save(folder)
        else:
            super().save(folder)
            if for_transformers:
                _save_for_transformers(self, folder)
        with completed(folder / _DIGEST) as path:
            path.write_text(_digest(folder) + "\n")


def open_vocabularies(
    folder: Path, read: Callable[[], tuple[MarianSubwords, MarianSubwords]] | None = None
) -> SavedVocabularies:
    """Opens the vocabularies in a folder.

    Args:
      folder: the folder of a run or of a MarianMTModel.
      read: reads the vocabularies of a MarianMTModel. Default: `read_subwords`.
    Raises:
      UserError: if there are none, or they were changed after they were saved.
    """
    _check_unchanged(folder)
    is_own = (folder / "source").is_dir() or (folder / "spm.model").exists()  # maybe also files for transformers
    if is_own or not (folder / "source.spm").exists():
        return SavedVocabularies(*Vocabularies.load(folder))
    return SavedVocabularies(*(read() if read else read_subwords(folder)))


def _save_for_transformers(vocabularies: Vocabularies, folder: Path) -> None:
    """Writes the files for `AutoTokenizer` that `Vocabularies.save` does not write."""
    source, target = vocabularies
    are_alike = (source.eos_id, source.unk_id) == (target.eos_id, target.unk_id)
    if isinstance(source, SentencePieceSubwords) and isinstance(target, SentencePieceSubwords) and are_alike:
        save_sentencepiece(source, target, folder)
        return
    for side, place in ((source, folder), (target, folder / "target")) if source is not target else ():
        side.save(place)
        if isinstance(side, SentencePieceSubwords):
            save_sentencepiece(side, side, place)
    if source is not target:
        told = "open %s with AutoTokenizer to encode sources, and %s/target to decode translations"
        _log.warning("source and target have different vocabularies: " + told, folder, folder)


def _files(folder: Path) -> list[Path]:
    """Returns the vocabulary files in a folder, in a fixed order."""
    places = (folder / "source", folder / "target", folder)
    return [place / name for place in places for name in _FILES if (place / name).exists()]


def _digest(folder: Path) -> str:
    """Returns the sha256 of the names and contents of all vocabulary files."""
    files = _files(folder)
    digests = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _check_unchanged(folder: Path) -> None:
    """Raises UserError if the vocabulary files were changed after they were saved: ids would mean other words.

    Older runs and published folders have no digest, so they are not checked.
    """
    path = folder / _DIGEST
    if path.exists() and (saved := path.read_text().strip()) != (found := _digest(folder)):
        raise UserError(
            f"the vocabulary in {folder}",
            got=f"files of sha256 {found[:16]}...",
            expected=f"{saved[:16]}..., the files of training",
            fix="restore them; to use another vocabulary, train a new run with data.vocab_file",
        )
