"""Loads or trains the vocabularies of a source and a target language, joint or separate."""

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

from bertjax.config import Constrained, above, always, one_of
from bertjax.data.parts import Parts
from bertjax.data.text import bpe_trainer, subwords, word_counts, wordpiece_trainer
from bertjax.data.text.subwords import SPECIALS, Splitter, Subwords
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.word_counts import TrainingCounts
from bertjax.progress import track

_log = logging.getLogger(__name__)

_BLOCK = 4096  # texts per block of word counts


@dataclasses.dataclass(frozen=True)
class SubwordConfig(Constrained, prefix="data"):
    """The vocabularies of the source and the target language.

    Attributes:
      subwords: the kind of vocabulary to train if no file is set: "bpe" (see `subwords.Splitter`), "wordpiece" (like
        BERT's) or "characters" (every code point; `vocab_size` is ignored).
      joint: whether both languages share one vocabulary.
      vocab_file: the vocabulary file of the source, or of both (see `subwords.open_vocabulary`); empty to train.
      target_vocab_file: the vocabulary file of the target, if it is separate.
      vocab_size: the maximum number of tokens of a trained vocabulary.
      lowercase: whether text is lowercased; "wordpiece" also strips accents. Not allowed for "characters", nor for a
        vocabulary file other than vocab.txt.
      normalization: the normalization of "bpe": "nfc" or "nfkc".
      character_coverage: the fraction of the training text's characters that become tokens of "bpe" and
        "characters"; 1.0 for all. Other characters are unknown.
    """

    subwords: Annotated[str, one_of("bpe", "wordpiece", "characters")] = always("bpe")
    joint: bool = always(True)
    vocab_file: str = always("")
    target_vocab_file: str = always("")
    vocab_size: int = always(32_000)
    lowercase: bool = always(False)
    normalization: Annotated[str, one_of("nfc", "nfkc")] = always("nfc")
    character_coverage: Annotated[float, above(0, at_most=1)] = always(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = not self.lowercase or self.subwords != "characters" or bool(self.vocab_file)
        expected = "False with data.subwords=characters, which does not normalize text"
        fix = "lowercase the text beforehand, or set --config.data.subwords=bpe"
        self.check(ok, "lowercase", expected, fix=fix)
        ok = bool(self.target_vocab_file) == (bool(self.vocab_file) and not self.joint)
        got = f"{self.vocab_file!r}, {self.target_vocab_file!r} and {self.joint}"
        expected = "no file, one file with joint=True, or two files with joint=False"
        fix = "set both files, or set --config.data.joint=True and only data.vocab_file"
        self.check(ok, "{vocab_file,target_vocab_file,joint}", expected, got=got, fix=fix)


class Vocabularies(NamedTuple):
    """The vocabularies of the source and of the target; the same object if they are joint."""

    source: Subwords
    target: Subwords

    @property
    def fingerprint(self) -> str:
        """A digest that identifies both vocabularies."""
        return hashlib.sha256(f"{self.source.fingerprint} {self.target.fingerprint}".encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes a joint vocabulary to the folder, or separate ones to its subfolders `source` and `target`."""
        if self.source is self.target:
            self.source.save(folder)
        else:
            self.source.save(folder / "source")
            self.target.save(folder / "target")

    @classmethod
    def load(cls, folder: Path) -> "Vocabularies":
        """Reads the vocabularies that `save` wrote. Raises UserError if there are none."""
        if (folder / "source").is_dir():
            return cls(subwords.load(folder / "source"), subwords.load(folder / "target"))
        joint = subwords.load(folder)
        return cls(joint, joint)


def make(config: SubwordConfig, pairs: Callable[[], Iterable[tuple[str, str]]]) -> Vocabularies:
    """Loads or trains the vocabularies.

    Args:
      config: the kind of vocabularies.
      pairs: returns the texts to train on; it may be called several times.
    Raises:
      UserError: if a vocabulary cannot be read, or the text or `vocab_size` is too small for training.
    """
    if config.vocab_file:
        source = subwords.open_vocabulary(Path(config.vocab_file), config.lowercase)
        if config.joint:
            return Vocabularies(source, source)
        return Vocabularies(source, subwords.open_vocabulary(Path(config.target_vocab_file), config.lowercase))
    if config.joint:
        joint = train(config, itertools.chain.from_iterable(pairs()))
        return Vocabularies(joint, joint)
    return Vocabularies(
        train(config, (source for source, _ in pairs())), train(config, (target for _, target in pairs()))
    )


def train(config: SubwordConfig, texts: Iterable[str]) -> Subwords:
    """Trains one vocabulary in bounded memory. The order of the texts has no influence.

    Raises:
      UserError: if there is no text, or `vocab_size` has no room for its characters.
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
        _log.warning("the text gives only %d of the %d requested tokens", trained.vocab_size, config.vocab_size)
    return trained


def _count(texts: Iterable[str], count_words: Callable[[list[str]], Counter[str]]) -> TrainingCounts:
    """Returns the counts of the most frequent words and of all characters."""
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(Path(folder) / "counts", ".txt")
        counted = ((len(block), count_words(block)) for block in track(_blocks(texts), "counting words", "block"))
        word_counts.write_parts(counted, parts)
        return word_counts.most_frequent(parts.paths, Path(folder))


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    left = iter(texts)
    while block := list(itertools.islice(left, _BLOCK)):
        yield block
