"""The vocabulary that a config names."""

import dataclasses
from pathlib import Path

from bertjax.data.text.tokenizers import WordPiece
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
