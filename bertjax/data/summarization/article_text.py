"""The articles of a run, and the vocabulary that they are encoded with."""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from bertjax.data.summarization.article_rows import between_spaces
from bertjax.data.summarization.articles import Articles, ArticlesConfig
from bertjax.data.summarization.limits import ArticleLimits
from bertjax.data.summarization.oracle import OracleConfig
from bertjax.data.text import wordpiece_trainer
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.vocabulary_config import VocabularyConfig, load_wordpiece
from bertjax.files import completed

# Articles are held out by their texts alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0
_DONE = "vocabulary_of"  # a file with the fingerprint of what the vocabulary was made for


@dataclasses.dataclass(frozen=True)
class TrainedVocabularyConfig(VocabularyConfig):
    """Which vocabulary.

    Attributes:
      vocab_size: of one that is trained on the articles, where neither `vocab_file` nor `init_from` gives one.
    """

    vocab_size: int


@dataclasses.dataclass(frozen=True)
class LabelsConfig:
    """What is to be learned of articles.

    Attributes:
      limits: what is taken of them.
      oracle: which sentences are chosen.
    """

    limits: ArticleLimits
    oracle: OracleConfig


def splits(config: ArticlesConfig) -> tuple[str, ...]:
    """Those that there are."""
    return ("train", "valid", "test") if config.test_source else ("train", "valid")


def of_split(config: ArticlesConfig, split: str) -> Articles:
    """The articles of a split, which need summaries. Raises UserError as `Articles`."""
    return Articles(config, split, _SPLIT_SEED, needs_summary=True)


def fingerprints(config: ArticlesConfig) -> list[dict[str, Any]]:
    """JSON-serializable descriptions of the articles of each split. Raises UserError for missing sources."""
    return [of_split(config, split).fingerprint() for split in splits(config)]


@dataclasses.dataclass(frozen=True)
class ArticleText:
    """What a run reads: articles as they stand, and a vocabulary, which may have to be trained on them.

    Attributes:
      folder: where the vocabulary is kept.
      articles: which articles.
      vocabulary: which vocabulary.
      words: that one is trained on, see `ArticleRowsConfig`.
      more: tokens of one that is trained, beside its own.
    """

    folder: Path
    articles: ArticlesConfig
    vocabulary: TrainedVocabularyConfig
    words: str
    more: tuple[str, ...]

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the rows and their encoding depend on. Raises UserError for sources that are not there."""
        texts = fingerprints(self.articles)
        config = self.vocabulary
        vocabulary: Any = given(config).vocab if config.vocab_file else [config.vocab_size, self.words]
        return hashlib.sha256(json.dumps([texts, vocabulary, config.lowercase]).encode()).hexdigest()

    def is_finished(self) -> bool:
        """Whether the folder has the vocabulary."""
        done = self.folder / _DONE
        return done.exists() and done.read_text() == self.fingerprint

    def run(self) -> None:
        """Puts the vocabulary into the folder, unless that has been done."""
        fingerprint = self.fingerprint
        if self.is_finished():
            return
        vocabulary = given(self.vocabulary) if self.vocabulary.vocab_file else self._trained()
        vocabulary.save(self.folder)
        with completed(self.folder / _DONE) as path:
            path.write_text(fingerprint)

    def _trained(self) -> WordPiece:
        texts = of_split(self.articles, "train").articles()
        sentences = itertools.chain.from_iterable((*text.sentences, *(text.summary or ())) for text in texts)
        if self.words == "bert":
            counts = wordpiece_trainer.count_words(sentences, self.vocabulary.lowercase)
        else:
            counts = Counter(word for text in sentences for word in between_spaces(text, self.vocabulary.lowercase))
        vocab = wordpiece_trainer.train(counts, self.vocabulary.vocab_size - len(self.more))
        return WordPiece((*vocab, *self.more), self.vocabulary.lowercase)


def given(config: VocabularyConfig) -> WordPiece:
    """The vocabulary in `vocab_file`. Raises UserError if it cannot be read."""
    return load_wordpiece(Path(config.vocab_file), config.lowercase)
