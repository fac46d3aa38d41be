"""The articles of a run, and the vocabulary that encodes them."""

import dataclasses
import functools
import itertools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from bertjax.config import Constrained
from bertjax.data.codecs.summarization.articles import Articles, ArticlesConfig
from bertjax.data.codecs.summarization.limits import ArticleLimits
from bertjax.data.codecs.summarization.oracle import OracleConfig
from bertjax.data.text import byte_bpe_trainer, wordpiece_trainer
from bertjax.data.text.normalization import between_spaces
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import BYTE_BPE, TrainedVocabularyConfig, load_named
from bertjax.data.text.wordpiece import WordPiece
from bertjax.files import Fingerprint, completed

_log = logging.getLogger(__name__)

# The validation split depends only on the texts, so that runs with different seeds are comparable.
_SPLIT_SEED = 0
_DONE = "vocabulary_of"  # a file with the fingerprint of the vocabulary's sources


@dataclasses.dataclass(frozen=True)
class LabelsConfig(Constrained, prefix="data"):
    """The labels of articles for training.

    Attributes:
      limits: the limits on articles and sentences.
      oracle: the selection of sentences.
    """

    limits: ArticleLimits
    oracle: OracleConfig


def splits(config: ArticlesConfig) -> tuple[str, ...]:
    """Returns the names of the splits: "train" and "valid", and "test" if `test_source` is set."""
    return ("train", "valid", "test") if config.test_source else ("train", "valid")


def of_split(config: ArticlesConfig, split: str, *, gold_suffices: bool = False) -> Articles:
    """Returns the articles of a split, which need summaries. Raises UserError if `Articles` does."""
    return Articles(config, split, _SPLIT_SEED, needs_summary=True, gold_suffices=gold_suffices)


def fingerprints(config: ArticlesConfig) -> list[dict[str, Any]]:
    """Returns JSON-serializable descriptions of the articles of each split. Raises UserError for missing sources."""
    return [of_split(config, split).fingerprint() for split in splits(config)]


@dataclasses.dataclass(frozen=True)
class ArticleText:
    """The articles of a run, and its vocabulary, which is trained on them if necessary.

    Attributes:
      folder: the folder of the vocabulary.
      articles: the articles.
      vocabulary: the vocabulary.
      words: the kind of words that a trained vocabulary is trained on; see `ArticleRowsConfig`.
      more: additional tokens of a trained vocabulary.
    """

    folder: Path
    articles: ArticlesConfig
    vocabulary: TrainedVocabularyConfig
    words: str
    more: tuple[str, ...]

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """A digest of everything that rows and their encoding depend on. Raises UserError for missing sources."""
        config = self.vocabulary
        trained = [[config.vocab_size, self.words, *config.unlike_bert], config.lowercase]
        vocabulary = load_named(config).content if config.vocab_file else trained
        return Fingerprint.of([fingerprints(self.articles), *vocabulary])

    def is_finished(self) -> bool:
        """Returns whether the folder has the vocabulary."""
        done = self.folder / _DONE
        return done.exists() and self.fingerprint.is_of(done.read_text())

    def run(self) -> None:
        """Writes the vocabulary to the folder, unless it is there already."""
        fingerprint = self.fingerprint
        if self.is_finished():
            return
        vocabulary = load_named(self.vocabulary) if self.vocabulary.vocab_file else self._trained()
        vocabulary.save(self.folder)
        with completed(self.folder / _DONE) as path:
            path.write_text(fingerprint)

    def _trained(self) -> EncoderTokenizer:
        _log.info("training a vocabulary of %d tokens", self.vocabulary.vocab_size)
        # A task that needs summaries finds the articles without them when it makes its rows.
        texts = of_split(self.articles, "train", gold_suffices=True).articles()
        sentences = itertools.chain.from_iterable((*text.sentences, *(text.summary or ())) for text in texts)
        config = self.vocabulary
        if config.tokenizer == BYTE_BPE:
            counts = byte_bpe_trainer.count_words(sentences, config.lowercase)
            return byte_bpe_trainer.train(counts, config.vocab_size, config.lowercase, self.more)
        if self.words == "bert":
            counts = wordpiece_trainer.count_words(sentences, config.chain)
        else:
            counts = Counter(word for text in sentences for word in between_spaces(text, config.chain))
            counts = wordpiece_trainer.morpheme_counts(counts) if config.chain.morphemes else counts
        size = config.vocab_size - len(self.more)
        vocab = wordpiece_trainer.train(counts, size, coverage=config.character_coverage)
        return WordPiece.of((*vocab, *self.more), config.chain)
