"""Loads or trains the vocabularies of a source and a target language, joint or separate."""

import dataclasses
import functools
import hashlib
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from tokenizers import Tokenizer as Library
from tokenizers import decoders

from bertjax.config import Constrained, above, always, one_of
from bertjax.data import workers
from bertjax.data.parts import Parts
from bertjax.data.text import bpe_trainer, sentencepiece_models, subwords, word_counts, wordpiece_trainer
from bertjax.data.text.library_tokenizers import FILE, SILENT, LibraryTokenizer, save_library
from bertjax.data.text.normalization import CONTINUATION, Chain
from bertjax.data.text.sentencepiece_models import SentencePiece
from bertjax.data.text.subwords import SPECIALS, Splitter
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabularies import read_bytes, read_json, read_special_names
from bertjax.data.text.vocabulary_config import load_wordpiece
from bertjax.data.text.word_counts import TrainingCounts
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from bertjax.progress import track

_log = logging.getLogger(__name__)

_SENTENCEPIECE = (".model", ".spm")  # suffixes of models
_BLOCK = 4096  # texts per block of word counts


@dataclasses.dataclass(frozen=True)
class SubwordConfig(Constrained, prefix="data"):
    """The vocabularies of the source and the target language.

    Attributes:
      subwords: the kind of vocabulary to train if no file is set: "bpe" (see `subwords.Splitter`), "wordpiece" (like
        BERT's) or "characters" (every code point; `vocab_size` is ignored).
      joint: whether both languages share one vocabulary.
      vocab_file: the vocabulary file of the source, or of both (see `open_vocabulary`); empty to train.
      target_vocab_file: the vocabulary file of the target, if it is separate.
      vocab_size: the maximum number of tokens of a trained vocabulary.
      lowercase: whether text is lowercased; "wordpiece" also strips accents. Not allowed for "characters", nor for a
        vocabulary file other than vocab.txt.
      normalization: the normalization of "bpe": "nfc" or "nfkc".
      character_coverage: the fraction of the training text's characters that become tokens of "bpe",
        "characters" and "wordpiece"; 1.0 for all. Other characters are unknown.
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

    source: Tokenizer
    target: Tokenizer

    @property
    def fingerprint(self) -> str:
        """A digest that identifies both vocabularies."""
        return hashlib.sha256(f"{self.source.fingerprint} {self.target.fingerprint}".encode()).hexdigest()


def save_side(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes one vocabulary to a folder, from which `load_side` and `transformers.AutoTokenizer` open it."""
    tokenizer.save(folder)
    if isinstance(tokenizer, WordPiece):  # which writes files for BERT
        library = Library.from_file(str(folder / FILE))
        library.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
        save_library(library, _for_translation(tokenizer), folder)


def load_side(folder: Path) -> Tokenizer:
    """Returns the vocabulary that `save_side` wrote. Raises UserError if the folder has none."""
    model = folder / sentencepiece_models.FILE
    if model.exists():
        return SentencePiece(_read(model), str(model))
    if (folder / "vocab.txt").exists():
        return _for_translation(WordPiece.load(folder))
    silent = read_json(folder / "tokenizer_config.json").get(SILENT, ())
    names = read_special_names(folder)
    of_encoder = {"bos": names["cls"], "eos": names["sep"]} if {"cls", "sep"} <= names.keys() else {}
    return _library(folder / FILE, {**of_encoder, **names}, silent)


def open_vocabulary(path: Path, lowercase: bool) -> Tokenizer:
    """Opens the vocabulary at a path that a config names.

    Args:
      path: a tokenizer.json, a SentencePiece model (`.model` or `.spm`), a vocab.txt, or a folder with a
        tokenizer.json, a vocab.txt or a `spm.model`.
      lowercase: the casing of a vocab.txt. Must be False for the other kinds, which define their own casing.
    Raises:
      UserError: if the file does not exist or cannot be read, or `lowercase` is not allowed.
    """
    if (path / "vocab.txt").exists() or not (path.is_dir() or path.suffix in (*_SENTENCEPIECE, ".json")):
        return _for_translation(load_wordpiece(path, lowercase))
    if lowercase:
        expected = f"False, because {path} defines its own casing"
        fix = "remove the key, and lowercase the text beforehand if necessary"
        raise UserError("config key data.lowercase", got=lowercase, expected=expected, fix=fix)
    if path.is_dir():
        model = path / sentencepiece_models.FILE
        path = model if model.exists() else path / FILE
    return SentencePiece(_read(path), str(path)) if path.suffix in _SENTENCEPIECE else _library(path)


def _for_translation(tokenizer: WordPiece) -> Tokenizer:
    """Returns the tokenizer with the template of encoder-decoders, which the folders of a BERT do not state."""
    return tokenizer.with_template(Template.of_marian(tokenizer.sep_id))


def _library(path: Path, names: Mapping[str, str] | None = None, silent: Sequence[str] = ()) -> LibraryTokenizer:
    """Opens a tokenizer.json; see `LibraryTokenizer.from_json`."""
    try:
        return LibraryTokenizer.from_json(_read(path).decode("utf-8"), str(path), names, silent)
    except UnicodeDecodeError as error:
        got = f"a byte that is not UTF-8 ({error.reason})"
        raise UserError(str(path), got=got, expected="a tokenizer.json in UTF-8", fix="copy the file again") from None


def _read(path: Path) -> bytes:
    fix = "give a tokenizer.json, a SentencePiece model or a vocab.txt"
    return read_bytes(path, fix, "a readable vocabulary")


def make(config: SubwordConfig, pairs: Callable[[], Iterable[tuple[str, str]]]) -> Vocabularies:
    """Loads or trains the vocabularies.

    Args:
      config: the kind of vocabularies.
      pairs: returns the texts to train on; it may be called several times.
    Raises:
      UserError: if a vocabulary cannot be read, or the text or `vocab_size` is too small for training.
    """
    if config.vocab_file:
        source = open_vocabulary(Path(config.vocab_file), config.lowercase)
        if config.joint:
            return Vocabularies(source, source)
        return Vocabularies(source, open_vocabulary(Path(config.target_vocab_file), config.lowercase))
    if config.joint:
        joint = train(config, itertools.chain.from_iterable(pairs()))
        return Vocabularies(joint, joint)
    return Vocabularies(
        train(config, (source for source, _ in pairs())), train(config, (target for _, target in pairs()))
    )


def train(config: SubwordConfig, texts: Iterable[str]) -> Tokenizer:
    """Trains one vocabulary in bounded memory. The order of the texts has no influence.

    Raises:
      UserError: if there is no text, or `vocab_size` has no room for its characters.
    """
    if config.subwords == "characters":
        frequency = Counter(itertools.chain.from_iterable(texts))
        return subwords.characters(bpe_trainer.alphabet(frequency, config.character_coverage))
    if config.subwords == "wordpiece":
        chain = Chain.of(config.lowercase, nfc=True)
        counts = _count(texts, functools.partial(wordpiece_trainer.count_words, chain=chain))
        vocab = wordpiece_trainer.train(counts.words, config.vocab_size, counts.characters, config.character_coverage)
        trained: Tokenizer = _for_translation(WordPiece.of(vocab, chain))
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
        blocks = workers.gather(texts, lambda _: 1, _BLOCK)
        counted = ((len(block), count_words(block)) for block in track(blocks, "counting words", "block"))
        word_counts.write_parts(counted, parts)
        return word_counts.most_frequent(parts.paths, Path(folder))
