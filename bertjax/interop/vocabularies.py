"""Vocabularies of a translation model, in the folder of a run or of a MarianMTModel."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

from bertjax.data.text.sentencepiece_models import SentencePiece
from bertjax.data.text.subword_vocabularies import Vocabularies, load_side, save_side
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.interop.marian_tokenizers import Marian, read_tokenizers, save_sentencepiece

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
        source, target = self
        is_marian = isinstance(source, Marian)
        places = [folder] if source is target else [folder] * 2 if is_marian else [folder / "source", folder / "target"]
        for side, place in zip(self, places, strict=False):
            save_side(side, place)
        if for_transformers and not is_marian:
            _save_for_transformers(source, target, folder)
        with completed(folder / _DIGEST) as path:
            path.write_text(_digest(folder) + "\n")


def open_vocabularies(folder: Path, read: Callable[[], tuple[Tokenizer, Tokenizer]] | None = None) -> SavedVocabularies:
    """Opens the vocabularies in a folder.

    Args:
      folder: the folder of a run or of a published model.
      read: reads the vocabularies of a published model; None for a run.
    Raises:
      UserError: if there are none, or they were changed after they were saved.
    """
    _check_unchanged(folder)
    if (folder / "source").is_dir():
        return SavedVocabularies(load_side(folder / "source"), load_side(folder / "target"))
    # The source.spm beside an spm.model is a file for transformers.
    is_published = read is not None and not (folder / _DIGEST).exists()
    if (folder / "spm.model").exists() or not ((folder / "source.spm").exists() or is_published):
        joint = load_side(folder)
        return SavedVocabularies(joint, joint)
    return SavedVocabularies(*(read() if read else read_tokenizers(folder)))


def _save_for_transformers(source: Tokenizer, target: Tokenizer, folder: Path) -> None:
    """Writes the files for `AutoTokenizer` in addition to those that `open_vocabularies` reads."""
    are_alike = (source.sep_id, source.unk_id) == (target.sep_id, target.unk_id)
    if isinstance(source, SentencePiece) and isinstance(target, SentencePiece) and are_alike:
        save_sentencepiece(source, target, folder)
    elif source is not target:
        for side, place in ((source, folder), (target, folder / "target")):
            save_side(side, place)
            if isinstance(side, SentencePiece):
                save_sentencepiece(side, side, place)
        fix = "open %s with AutoTokenizer to encode sources, and %s/target to decode translations"
        _log.warning("source and target have different vocabularies: " + fix, folder, folder)


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
    if path.exists() and (saved := path.read_text().strip()) != (current := _digest(folder)):
        raise UserError(
            f"the vocabulary in {folder}",
            got=f"files of sha256 {current[:16]}...",
            expected=f"{saved[:16]}..., the files of training",
            fix="restore them; to use another vocabulary, train a new run with data.vocab_file",
        )
