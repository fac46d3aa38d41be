"""Text that is read as it stands, and the vocabulary that it is encoded with: nothing needs to be prepared."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data.readers import tables
from bertjax.data.text.given_vocabulary import VocabularyConfig, given_vocabulary
from bertjax.data.text.tokenizers import WordPiece
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
        """What the rows and their encoding depend on."""
        sources = {key: tables.fingerprint(source, key) for key, source in self.sources.items() if source}
        vocab = self.tokenizer().vocab
        return hashlib.sha256(json.dumps([sources, vocab, self.vocabulary.lowercase]).encode()).hexdigest()

    def run(self) -> None:
        """Copies the vocabulary into the folder, unless it has the same tokens and casing already.

        So a run keeps the longest word that it began with; the fingerprint leaves it out.
        """
        ours = self.tokenizer()
        if (self.folder / "vocab.txt").exists():
            kept = WordPiece.load(self.folder)
            if (kept.vocab, kept.lowercase) == (ours.vocab, ours.lowercase):
                return
        ours.save(self.folder)

    def tokenizer(self) -> WordPiece:
        """The vocabulary. Raises UserError if it or the training rows are not given, or it cannot be read."""
        key = "data.source"
        if not self.sources[key]:
            fix = f"set --config.{key}=FILE"
            raise UserError(f"config key {key}", got="nothing", expected="rows to train on", fix=fix)
        if not self.vocabulary.vocab_file:
            raise UserError(
                "config key data.vocab_file",
                got="nothing, and no init_from to take a vocabulary from",
                expected="a vocab.txt, or a folder with a vocabulary",
                fix="set --config.data.vocab_file, or --config.init_from",
            )
        return given_vocabulary(Path(self.vocabulary.vocab_file), self.vocabulary.lowercase)
