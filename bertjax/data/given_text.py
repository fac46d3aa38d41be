"""Text that is read as it stands, and the vocabulary that it is encoded with: nothing needs to be prepared."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data import tables
from bertjax.data.tokenizers import SPECIALS, WordPiece
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """Which vocabulary.

    Attributes:
      vocab_file: a vocab.txt, or a folder with a vocabulary; `init_from` brings its own.
      lowercase: whether the vocabulary is uncased.
    """

    vocab_file: str
    lowercase: bool


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


def kept_vocabulary(folder: Path | None, lowercase: bool) -> WordPiece:
    """The vocabulary in a folder; without one the special tokens stand in, where only settings are checked."""
    return given_vocabulary(folder, lowercase) if folder else WordPiece(SPECIALS, lowercase=True)


def given_vocabulary(path: Path, lowercase: bool) -> WordPiece:
    """The vocabulary of a vocab.txt, of a Hugging Face folder or of one of Google's, which its checkpoint may name.

    Raises:
      UserError: no readable vocabulary, or a folder that says another casing.
    """
    path = path.parent if Path(f"{path}.index").is_file() else path
    inside = path / "0_Transformer"  # where older sentence-transformers keep it
    path = inside if inside.is_dir() else path
    if not path.is_dir():
        return WordPiece.from_file(path, lowercase)
    if (path / "bert_config.json").exists():  # Google's, which does not tell the casing
        return WordPiece.from_file(path / "vocab.txt", lowercase)
    tokenizer = WordPiece.load(path, otherwise=lowercase)
    if tokenizer.lowercase != lowercase:
        raise UserError(
            "config key data.lowercase",
            got=lowercase,
            expected=f"{tokenizer.lowercase}, as the tokenizer in {path} has it",
            fix=f"set --config.data.lowercase={tokenizer.lowercase}",
        )
    return tokenizer
