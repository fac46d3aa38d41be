"""Loads the WordPiece vocabulary that a config names."""

import dataclasses
from pathlib import Path

from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """The vocabulary of a BERT model.

    Attributes:
      vocab_file: a vocab.txt, or a folder with a vocabulary. Ignored if `init_from` has a vocabulary.
      lowercase: whether the vocabulary is uncased.
    """

    vocab_file: str
    lowercase: bool


def load_wordpiece(path: Path, lowercase: bool) -> WordPiece:
    """Loads the vocabulary of a vocab.txt, a Hugging Face folder, or a folder or checkpoint of google-research/bert.

    Raises:
      UserError: if there is no readable vocabulary, or the folder states another casing.
    """
    path = path.parent if Path(f"{path}.index").is_file() else path
    inside = path / "0_Transformer"  # the subfolder of older sentence-transformers
    path = inside if inside.is_dir() else path
    if not path.is_dir():
        return WordPiece.from_file(path, lowercase)
    if (path / "bert_config.json").exists():  # Google's folders do not state the casing
        return WordPiece.from_file(path / "vocab.txt", lowercase)
    tokenizer = WordPiece.load(path, default_lowercase=lowercase)
    if tokenizer.lowercase != lowercase:
        raise UserError(
            "config key data.lowercase",
            got=lowercase,
            expected=f"{tokenizer.lowercase}, the casing of the tokenizer in {path}",
            fix=f"set --config.data.lowercase={tokenizer.lowercase}",
        )
    return tokenizer
