"""Prepared text: the documents of a source, split into sentences and tokenized, written once.

`Preparation` makes a folder named after the fingerprint of all that determines its content:

    manifest.json          the fingerprint's parts, and what was counted
    vocab.txt              the vocabulary, trained here if none was given
    records/               token ids of each document: ArrayRecord, by a TFDS builder
    {train,valid}.*        sentence lengths, and the number of sentences in each document
    unigrams.npy           how often each token occurs in the training documents
    plans/                 how many rows epochs have (see `plan.py`)

The folder appears under its name only when all of it is written; until then it is NAME.partial, with the finished
parts of the work in it, from which an interrupted preparation goes on.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from jaxtyping import Int, Int32, Int64

from bertjax.config import Constrained, Count, above, one_of
from bertjax.data import beam
from bertjax.data.beam import BeamConfig
from bertjax.data.parts import Parts
from bertjax.data.pretraining import preparation, shares
from bertjax.data.pretraining.preparation import Tokenized
from bertjax.data.pretraining.sentence_pairs import Sentences
from bertjax.data.readers.lines import OnBadRow
from bertjax.data.readers.sources import TextSource
from bertjax.data.text import word_counts
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.vocabulary_config import load_wordpiece
from bertjax.data.text.wordpiece_trainer import MIN_VOCAB_SIZE
from bertjax.errors import UserError
from bertjax.files import PARTS, completed, made_once

_log = logging.getLogger(__name__)

T = TypeVar("T")

SPLITS = ("train", "valid")
# Part of every fingerprint: raise it when the same text would be prepared to other bytes.
_FORMAT = 3
_MANIFEST = "manifest.json"
_NO_BEAM = BeamConfig()
# Above these fractions a warning tells of duplicates. Short sentences recur in any text ("Yes."), documents do not.
_MANY_DUPLICATES = {"documents": 0.05, "lines": 0.25}


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Constrained, prefix="data"):
    """What text to prepare, and how.

    Attributes:
      source: training text (see `sources.TextSource`); empty where `valid_source` is only evaluated.
      valid_source: held-out text; empty to hold out documents of `source`.
      valid_fraction: which fraction of the documents is held out where `valid_source` is empty, chosen by a hash of
        their text, so that copies of a document never stand on both sides.
      text_field: the field that holds the text, in JSONL rows and TFDS records.
      on_bad_row: "stop" at a malformed row, or "skip" and count it.
      lines: whether a line is a "sentence", or a "paragraph" that is to be split into sentences.
      vocab_file: a published vocab.txt, or a folder with one; empty to train one on the training text.
      vocab_size: how many tokens to train (at most).
      lowercase: whether the vocabulary is uncased.
      workers: processes that split and tokenize; 0 for one each core. The result does not depend on it.
      prepared_dir: where prepared text is kept and found again; empty for the run's own folder.
      beam: whether, and where, Apache Beam does the work. The result does not depend on it.
    """

    source: str
    valid_source: str
    valid_fraction: Annotated[float, above(0, below=1)]
    text_field: str
    on_bad_row: OnBadRow
    lines: Annotated[str, one_of("sentence", "paragraph")]
    vocab_file: str
    vocab_size: int
    lowercase: bool
    workers: Count
    prepared_dir: str
    beam: BeamConfig = _NO_BEAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.vocab_file and self.vocab_size < MIN_VOCAB_SIZE:
            raise UserError(
                "config key data.vocab_size",
                got=self.vocab_size,
                expected=f"at least {MIN_VOCAB_SIZE}: the special tokens and some characters",
                fix="raise it; BERT has 30522",
            )

    def check_source(self) -> None:
        """Raises UserError if no text is named that a vocabulary and tokens could be made of."""
        if not self.source and not (self.valid_source and self.vocab_file):
            fix = "set --config.data.source=FILE"
            raise UserError("config key data.source", got="nothing", expected="text to train on", fix=fix)


def _splits(config: CorpusConfig) -> tuple[str, ...]:
    return SPLITS if config.source else SPLITS[1:]


class Split:
    """The documents of one split."""

    def __init__(self, folder: Path, name: str) -> None:
        """Args: the prepared folder; "train" or "valid"."""
        from bertjax.data.readers import records  # slow to import, and prediction does without

        sizes = np.fromfile(folder / f"{name}.document_sizes.int32", np.int32)
        lengths = np.memmap(folder / f"{name}.sentence_lengths.int32", np.int32, "r")
        self.sentences = Sentences(lengths, sizes)
        self._records = records.TokenRecords(folder / "records", name, _document_lengths(folder, name))

    def read(
        self, documents: Int[np.ndarray, " n"], starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
    ) -> list[Int[np.ndarray, " _"]]:
        """So many token ids of each of some documents, whose sentences are in a row, from a place in it on."""
        return self._records.read(documents, starts, lengths)


def _document_lengths(folder: Path, split: str) -> Int[np.ndarray, " documents"]:
    return np.fromfile(folder / f"{split}.document_lengths.int32", np.int32)


class Corpus:
    """A prepared folder, opened.

    Attributes:
      folder: where it is.
      tokenizer: the vocabulary.
      splits: "train" and "valid", or "valid" alone.
      unigrams: how often each token occurs in the training documents; None without these.
    """

    def __init__(self, folder: Path) -> None:
        """Args: the folder of a finished `Preparation`."""
        self.folder = folder
        self.tokenizer = WordPiece.load(folder)
        counted = folder / "unigrams.npy"
        self.unigrams: Int64[np.ndarray, " V"] | None = np.load(counted) if counted.exists() else None
        names = SPLITS[1:] if self.unigrams is None else SPLITS
        self.splits = {name: Split(folder, name) for name in names}


class Preparation:
    """The text of a config, to be prepared or found prepared.

    Attributes:
      fingerprint: of all that determines the prepared bytes; the same on every machine.
      folder: where they are once `is_finished`; if a vocabulary is given that was trained on this very text, as the
        second phase of pretraining has it, that may be where it was.
    """

    def __init__(self, config: CorpusConfig, default_dir: Path) -> None:
        """Args: what text; where to keep it unless the config says. Raises UserError if it cannot be read."""
        config.check_source()
        self._config, parts = config, _fingerprint_parts(config)
        home = Path(config.prepared_dir or default_dir).absolute()
        every = [{**parts, "splitter": splitter} for splitter in _splitters(config.lines)]
        options = [(each, *_place(home, each, bool(config.vocab_file))) for each in every]
        finished = (option for option in options if _is_finished(option[2]))
        self._parts, self.fingerprint, self.folder = next(finished, options[0])  # what is prepared stays in use

    def is_finished(self) -> bool:
        """Whether the text has been prepared."""
        return _is_finished(self.folder)

    def run(self) -> None:
        """Prepares the text unless that has been done.

        A second process that prepares the same text waits for the first. What was interrupted, be it by a kill, goes
        on after its last finished part, to the same bytes. A `UserError` leaves nothing: its remedy is another text or
        config.
        """
        if self.is_finished():
            return
        if self._config.beam.runner:
            beam.check(self._config.beam)
        made_once(self.folder, _MANIFEST, self._write)
        _report(self.folder)

    def _write(self, folder: Path) -> None:
        """Writes everything, the manifest last."""
        counts, duplicates = _write(self._config, folder)
        manifest = {
            "fingerprint": self.fingerprint,
            "parts": self._parts,
            "counts": counts,
            "duplicate_fractions": duplicates,
        }
        with completed(folder / _MANIFEST) as path:
            path.write_text(json.dumps(manifest, indent=2) + "\n")


def _is_finished(folder: Path) -> bool:
    return (folder / _MANIFEST).exists()


def _place(home: Path, parts: Mapping[str, Any], is_given: bool) -> tuple[str, Path]:
    """The fingerprint and the folder of a text.

    If the vocabulary is given, the folder may be a finished one of the same text in which this vocabulary was trained.
    """
    fingerprint, ours = _digest(parts), parts["vocabulary"]
    if is_given and not _is_finished(home / fingerprint):
        for path in sorted(home.glob(f"{'[0-9a-f]' * len(fingerprint)}/{_MANIFEST}")):
            is_same = _digest({**json.loads(path.read_text())["parts"], "vocabulary": ours}) == fingerprint
            if is_same and _vocabulary_digest(WordPiece.load(path.parent)) == ours:
                return fingerprint, path.parent
    return fingerprint, home / fingerprint


def _fingerprint_parts(config: CorpusConfig) -> dict[str, Any]:
    """All that determines the prepared bytes but the splitter, and nothing else."""
    vocabulary = f"{config.vocab_size} trained tokens"
    if config.vocab_file:
        vocabulary = _vocabulary_digest(load_wordpiece(Path(config.vocab_file), config.lowercase))
    return {
        "format": _FORMAT,
        "source": _open(config, config.source).fingerprint() if config.source else "",
        "valid": _open(config, config.valid_source).fingerprint() if config.valid_source else config.valid_fraction,
        "on_bad_row": config.on_bad_row,
        "lines": config.lines,
        "unicode": unicodedata.unidata_version,
        "lowercase": config.lowercase,
        "vocabulary": vocabulary,
    }


def _splitters(lines: str) -> list[str]:
    """What splits paragraphs into sentences, and what did before."""
    nltk = f"nltk {metadata.version('nltk')}"
    return [f"{nltk}, quotations within sentences", nltk] if lines == "paragraph" else ["none"]


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _vocabulary_digest(tokenizer: WordPiece) -> str:
    return hashlib.sha256("\n".join(tokenizer.vocab).encode()).hexdigest()


def _open(config: CorpusConfig, source: str) -> TextSource:
    return TextSource(source, config.text_field, config.on_bad_row)


def _write(config: CorpusConfig, folder: Path) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Writes everything but the manifest; returns what was counted, and the fractions that are duplicates."""
    tokenizer = _vocabulary(config, folder)
    counts, fractions, files, unigrams = {}, {}, {}, {}
    tokenize = functools.partial(preparation.tokenize, vocab_dir=folder, lines=config.lines)
    for name in _splits(config):
        paths, source_counts = _parts(config, name, tokenize, folder / PARTS / name, ".npz")
        counter = preparation.SplitCounter(folder, name, tokenizer.vocab_size)
        files[name] = [path for path in paths if counter.add(Tokenized.load(path))]
        if not files[name]:
            raise _no_documents(config, name)
        counts[name], fractions[name] = counter.finish()
        unigrams[name] = counter.unigrams
        # Without text of its own, the held-out split has read the same rows again.
        if name == "train" or config.valid_source:
            counts[name]["skipped_rows"] = source_counts["bad_rows"]
            counts[name]["empty_documents"] += source_counts["empty_documents"]
        else:
            counts[name]["skipped_rows"] = 0
    from bertjax.data.readers import records

    if "train" in unigrams:
        np.save(folder / "unigrams.npy", unigrams["train"])
    shutil.rmtree(folder / "records", ignore_errors=True)  # an interrupted process may have begun them
    pipeline = beam.pipeline_of(config.beam, config.workers) if config.beam.runner else None
    records.write_tokens(
        folder / "records", {name: [_Documents(path) for path in paths] for name, paths in files.items()}, pipeline
    )
    if pipeline:
        _check_records(folder, _splits(config))
    return counts, fractions


def _parts(
    config: CorpusConfig, split: str, work: Callable[..., None], folder: Path, suffix: str
) -> tuple[list[Path], Mapping[str, int]]:
    """The finished parts of a split's documents, and what their source counted; makes what is not there yet.

    Args:
      config: which text.
      split: which of its documents.
      work: writes documents as parts; see `shares.make_parts`.
      folder: for the parts.
      suffix: how their names end.
    Raises:
      UserError: bad text, or none.
    """
    source = _open(config, _text_of(config, split))
    documents = functools.partial(_documents, config, split)
    if config.beam.runner:
        paths, counts = shares.make_parts(source, documents, work, folder / "beam", config.beam, config.workers)
        if not paths:
            raise _no_documents(config, split)
        return paths, counts
    parts = Parts(folder, suffix)
    work(_some(documents(source), config, split), workers=config.workers, parts=parts)
    return parts.paths, source.counts


def _check_records(folder: Path, splits: Sequence[str]) -> None:
    """Raises UserError unless there are the records of all documents that were counted before Beam wrote them."""
    from bertjax.data.readers import records

    for name in splits:
        written = records.TokenRecords(folder / "records", name, _document_lengths(folder, name))
        found, expected = len(written), written.num_expected
        if found != expected:
            raise UserError(
                f"the {name} records that Beam wrote",
                got=f"{found:,}",
                expected=f"{expected:,}, as many as the documents take",
                fix="prepare again with other data.beam.options, or without data.beam",
            )


def _vocabulary(config: CorpusConfig, folder: Path) -> WordPiece:
    """The vocabulary that is given, or is trained now, or was before an interruption; written to the folder."""
    if config.vocab_file:
        tokenizer = load_wordpiece(Path(config.vocab_file), config.lowercase)
    elif (folder / "vocab.txt").exists():
        tokenizer = WordPiece.from_file(folder / "vocab.txt", config.lowercase)
    else:
        # The held-out documents have no part in the vocabulary.
        count = functools.partial(preparation.count_words, lowercase=config.lowercase)
        paths, _ = _parts(config, "train", count, folder / PARTS / "words", ".txt")
        counts = word_counts.most_frequent(paths, folder / PARTS)
        tokenizer = WordPiece(preparation.train_vocabulary(counts, config.vocab_size), config.lowercase)
    tokenizer.save(folder)
    return tokenizer


class _Documents:
    """The documents of a finished part, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Int32[np.ndarray, " tokens"]]:
        return iter(Tokenized.load(self._path).documents())


def _report(folder: Path) -> None:
    """Logs what a finished preparation counted."""
    manifest = json.loads((folder / _MANIFEST).read_text())
    for name, counts in manifest["counts"].items():
        _log.info("prepared %s: %s", name, ", ".join(f"{value} {key}" for key, value in counts.items()))
        for what, limit in _MANY_DUPLICATES.items():
            number, fraction = counts[f"duplicate_{what}"], manifest["duplicate_fractions"][name][what]
            _log.info("%s: %d of its %s, %.2f %%, are duplicates of earlier ones", name, number, what, 100 * fraction)
            if fraction > limit:
                _log.warning(
                    "%s: more than %.0f %% duplicate %s: a model learns them by heart; leave copies out of the source",
                    name,
                    100 * limit,
                    what,
                )


def _some(documents: Iterator[T], config: CorpusConfig, split: str) -> Iterator[T]:
    """Passes the documents of a split on. Raises UserError if there are none."""
    first = next(documents, None)
    if first is None:
        raise _no_documents(config, split)
    yield first
    yield from documents


def _no_documents(config: CorpusConfig, split: str) -> UserError:
    return UserError(
        f"the {split} split of {_text_of(config, split)!r}",
        got="no document with any text",
        expected="some documents to train on, and some held out",
        fix="give more documents (a blank line ends one), another data.valid_fraction or a data.valid_source",
    )


def _text_of(config: CorpusConfig, split: str) -> str:
    return config.valid_source or config.source if split == "valid" else config.source


def _documents(config: CorpusConfig, split: str, source: TextSource) -> Iterator[preparation.Document]:
    """The lines of each document of a split."""
    for document in source.documents():
        if not config.valid_source:
            fraction = preparation.text_hash("\n".join(document.lines)) / 2**64
            if (fraction < config.valid_fraction) != (split == "valid"):
                continue
        yield document.lines
