"""Text that is read as it stands, and the vocabulary that it is encoded with: nothing needs to be prepared."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data.readers import tables
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.vocabulary_config import VocabularyConfig, load_wordpiece
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class GivenText:
    """What a run reads, in the place of a preparation.

    Attributes:
      folder: where the vocabulary is kept.
      sources: by the config key that names them: paths and globs, or `tfds:NAME`; "" for none.
      vocabulary: what it is encoded with.
    """

    folder: Path
    sources: Mapping[str, str]
    vocabulary: VocabularyConfig

    @classmethod
    def of(cls, data: Mapping[str, Any], folder: Path) -> "GivenText":
        """That of the keys `data` of a config: rows to train on, rows held out, and the vocabulary."""
        sources = {f"data.{key}": data[key] for key in ("source", "valid_source")}
        return cls(folder, sources, VocabularyConfig(data["vocab_file"], data["lowercase"]))

    @property
    def fingerprint(self) -> str:
        """What the rows and their encoding depend on. Raises UserError if the training rows are not given."""
        self._check_source()
        sources = {key: tables.fingerprint(source, key) for key, source in self.sources.items() if source}
        vocab = self.tokenizer().vocab
        return hashlib.sha256(json.dumps([sources, vocab, self.vocabulary.lowercase]).encode()).hexdigest()

    def run(self) -> None:
        """Copies the vocabulary into the folder, unless it has the same tokens and casing already.

        So a run keeps the longest word that it began with; the fingerprint leaves it out.
        """
        self._check_source()
        if self._kept() is None:
            self.tokenizer().save(self.folder)

    def kept_tokenizer(self) -> WordPiece:
        """The vocabulary that the folder has after `run`."""
        return self._kept() or self.tokenizer()

    def _kept(self) -> WordPiece | None:
        """The vocabulary in the folder if it is the given one."""
        if not (self.folder / "vocab.txt").exists():
            return None
        ours, kept = self.tokenizer(), WordPiece.load(self.folder)
        return kept if (kept.vocab, kept.lowercase) == (ours.vocab, ours.lowercase) else None

    def _check_source(self) -> None:
        if not self.sources["data.source"]:
            fix = "set --config.data.source=FILE"
            raise UserError("config key data.source", got="nothing", expected="rows to train on", fix=fix)

    def tokenizer(self) -> WordPiece:
        """The vocabulary. Raises UserError if it is not given or cannot be read."""
        if not self.vocabulary.vocab_file:
            raise UserError(
                "config key data.vocab_file",
                got="nothing, and no init_from to take a vocabulary from",
                expected="a vocab.txt, or a folder with a vocabulary",
                fix="set --config.data.vocab_file, or --config.init_from",
            )
        return load_wordpiece(Path(self.vocabulary.vocab_file), self.vocabulary.lowercase)
