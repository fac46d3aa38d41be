"""The vocabularies of a source and a target language: one for both or one for each, given or trained."""

import dataclasses
import functools
import hashlib
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from bertjax.config import Constrained, above, one_of
from bertjax.data.parts import Parts
from bertjax.data.text import bpe_trainer, subwords, word_counts, wordpiece_trainer
from bertjax.data.text.subwords import SPECIALS, Splitter, Subwords
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.word_counts import Frequent
from bertjax.errors import UserError
from bertjax.progress import track

_log = logging.getLogger(__name__)

_BLOCK = 4096  # texts that are counted at once


@dataclasses.dataclass(frozen=True)
class SubwordConfig(Constrained, prefix="data"):
    """Which vocabularies.

    Attributes:
      subwords: what is trained where no file is given: "bpe" (see `subwords.Splitter`), "wordpiece" (as BERT's) or
        "characters" (every code point, so many as there are).
      joint: whether both languages have one vocabulary.
      vocab_file: a given vocabulary of the source, or of both (see `subwords.given`); empty to train.
      target_vocab_file: a given vocabulary of the target, where it has its own.
      vocab_size: the most tokens of a trained vocabulary.
      lowercase: whether text is lowercased; "wordpiece" strips its accents too. Not for "characters", nor for a given
        vocabulary but a vocab.txt.
      normalization: "nfc" or "nfkc", of "bpe".
      character_coverage: the fraction of the training text's characters that become tokens of "bpe" and
        "characters"; 1.0 for all. Others are unknown.
    """

    subwords: Annotated[str, one_of("bpe", "wordpiece", "characters")]
    joint: bool
    vocab_file: str
    target_vocab_file: str
    vocab_size: int
    lowercase: bool
    normalization: Annotated[str, one_of("nfc", "nfkc")]
    character_coverage: Annotated[float, above(0, at_most=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lowercase and self.subwords == "characters" and not self.vocab_file:
            fix = "lowercase the text beforehand, or set --config.data.subwords=bpe"
            expected = "False with data.subwords=characters, each of which is a token as it is"
            raise UserError("config key data.lowercase", got=self.lowercase, expected=expected, fix=fix)
        if bool(self.target_vocab_file) != (bool(self.vocab_file) and not self.joint):
            raise UserError(
                "config keys data.{vocab_file,target_vocab_file,joint}",
                got=f"{self.vocab_file!r}, {self.target_vocab_file!r} and {self.joint}",
                expected="no file, one for joint=True, or two for joint=False",
                fix="give both files, or set --config.data.joint=True and give data.vocab_file alone",
            )


class Vocabularies(NamedTuple):
    """Of the source and of the target; one object if they have one."""

    source: Subwords
    target: Subwords

    @property
    def fingerprint(self) -> str:
        """What tells them apart from all others."""
        return hashlib.sha256(f"{self.source.fingerprint} {self.target.fingerprint}".encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes one vocabulary into the folder, two into `source` and `target` in it."""
        if self.source is self.target:
            self.source.save(folder)
        else:
            self.source.save(folder / "source")
            self.target.save(folder / "target")

    @classmethod
    def load(cls, folder: Path) -> "Vocabularies":
        """Reads what `save` wrote. Raises UserError if there is nothing."""
        if (folder / "source").is_dir():
            return cls(subwords.load(folder / "source"), subwords.load(folder / "target"))
        joint = subwords.load(folder)
        return cls(joint, joint)


def make(config: SubwordConfig, pairs: Callable[[], Iterable[tuple[str, str]]]) -> Vocabularies:
    """Reads or trains the vocabularies.

    Args:
      config: which.
      pairs: gives the texts to train on, as often as it is called.
    Raises:
      UserError: a vocabulary that cannot be read; text or `vocab_size` too small to train one.
    """
    if config.vocab_file:
        source = subwords.given(Path(config.vocab_file), config.lowercase)
        if config.joint:
            return Vocabularies(source, source)
        return Vocabularies(source, subwords.given(Path(config.target_vocab_file), config.lowercase))
    if config.joint:
        joint = train(config, itertools.chain.from_iterable(pairs()))
        return Vocabularies(joint, joint)
    return Vocabularies(
        train(config, (source for source, _ in pairs())), train(config, (target for _, target in pairs()))
    )


def train(config: SubwordConfig, texts: Iterable[str]) -> Subwords:
    """Trains one vocabulary, in bounded memory; the same bytes for the same texts in any order.

    Raises:
      UserError: no text, or a `vocab_size` without room for its characters.
    """
    if config.subwords == "characters":
        frequency = Counter(itertools.chain.from_iterable(texts))
        return subwords.characters(bpe_trainer.alphabet(frequency, config.character_coverage))
    if config.subwords == "wordpiece":
        counts = _count(texts, functools.partial(wordpiece_trainer.count_words, lowercase=config.lowercase))
        vocab = wordpiece_trainer.train(counts.words, config.vocab_size, counts.characters)
        trained: Subwords = subwords.WordPieceSubwords(WordPiece(vocab, config.lowercase))
    else:
        splitter = Splitter(config.normalization, config.lowercase)
        counts = _count(texts, splitter.count_words)
        bpe = bpe_trainer.train(*counts, config.vocab_size, SPECIALS, config.character_coverage)
        trained = subwords.byte_pair(bpe, config.normalization, config.lowercase)
    _log.info("trained a vocabulary of %d tokens on %d different words", trained.vocab_size, len(counts.words))
    if trained.vocab_size < config.vocab_size:
        _log.warning("the text gives only %d of the %d tokens asked for", trained.vocab_size, config.vocab_size)
    return trained


def _count(texts: Iterable[str], count_words: Callable[[list[str]], Counter[str]]) -> Frequent:
    """How often the most frequent words occur, and all characters."""
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(Path(folder) / "counts", ".txt")
        counted = ((len(block), count_words(block)) for block in track(_blocks(texts), "counting words", "blocks"))
        word_counts.write_parts(counted, parts)
        return word_counts.most_frequent(parts.paths, Path(folder))


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    left = iter(texts)
    while block := list(itertools.islice(left, _BLOCK)):
        yield block
