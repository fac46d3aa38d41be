"""The text sources of a run, and the vocabulary that encodes them, without preparation of rows."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import part
from bertjax.data.readers import tables
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import VocabularyConfig, load_saved, load_tokenizer, saved_file
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class RawText:
    """The text sources of a run, and its vocabulary.

    Attributes:
      folder: the folder of the vocabulary.
      sources: paths and globs, or `tfds:NAME`, by config key; "" for none.
      vocabulary: the vocabulary.
    """

    folder: Path
    sources: Mapping[str, str]
    vocabulary: VocabularyConfig

    @classmethod
    def of(cls, data: Any, folder: Path) -> "RawText":
        """Builds it from the config `data`: the training rows, the validation rows, and the vocabulary."""
        sources = {"data.source": data.source, "data.valid_source": data.valid_source}
        return cls(folder, sources, part(VocabularyConfig, data))

    @property
    def fingerprint(self) -> str:
        """A digest of the rows and their vocabulary. Raises UserError if there are no training rows."""
        self._check_source()
        sources = {key: tables.fingerprint(source, key) for key, source in self.sources.items() if source}
        return hashlib.sha256(json.dumps([sources, *self.tokenizer().content]).encode()).hexdigest()

    def run(self) -> None:
        """Copies the vocabulary to the folder, unless the folder has the same tokens and casing already.

        A run therefore keeps the maximum word length that it started with, which is not part of the fingerprint.
        """
        self._check_source()
        if self._kept() is None:
            self.tokenizer().save(self.folder)

    def kept_tokenizer(self) -> Tokenizer:
        """Returns the vocabulary that the folder has after `run`."""
        return self._kept() or self.tokenizer()

    def _kept(self) -> Tokenizer | None:
        """Returns the vocabulary in the folder if it has the tokens and casing of the configured one, else None."""
        if saved_file(self.folder) is None:
            return None
        kept = load_saved(self.folder)
        return kept if kept.content == self.tokenizer().content else None

    def _check_source(self) -> None:
        if not self.sources["data.source"]:
            fix = "set --config.data.source=FILE"
            raise UserError("config key data.source", got="nothing", expected="rows to train on", fix=fix)

    def tokenizer(self) -> Tokenizer:
        """Returns the configured vocabulary. Raises UserError if it is not set or cannot be read."""
        if not self.vocabulary.vocab_file:
            raise UserError(
                "config key data.vocab_file",
                got="nothing, and no init_from with a vocabulary",
                expected="a vocab.txt, or a tokenizer.json, or a folder with a vocabulary",
                fix="set --config.data.vocab_file or --config.init_from",
            )
        return load_tokenizer(Path(self.vocabulary.vocab_file), self.vocabulary.lowercase)
