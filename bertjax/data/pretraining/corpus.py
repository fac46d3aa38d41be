"""Prepared text: the documents of a source, split into sentences, tokenized, and written once.

`Preparation` writes a folder whose name is the fingerprint of everything that determines its content:

    manifest.json          the parts of the fingerprint, and counts
    vocab.txt or           the vocabulary; trained here if the config names none
    tokenizer.json
    records/               token ids of each document: ArrayRecord, by a TFDS builder
    {train,valid}.*        sentence lengths, and the number of sentences in each document
    unigrams.npy           the number of occurrences of each token in the training documents
    plans/                 the number of rows per epoch (see `epoch_plan.py`)

The folder gets its name only when it is complete. Until then it is named NAME.partial and holds finished parts of the
work, from which an interrupted preparation resumes.
"""

import dataclasses
import functools
import itertools
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

from bertjax import korean
from bertjax.config import Count, above, always, one_of
from bertjax.data import beam
from bertjax.data.beam import BeamConfig
from bertjax.data.parts import Parts
from bertjax.data.pretraining import preparation, shares
from bertjax.data.pretraining.preparation import Tokenized
from bertjax.data.pretraining.sentence_pairs import Sentences
from bertjax.data.readers.lines import OnBadRow
from bertjax.data.readers.sources import TextSource
from bertjax.data.text import added_words, fit, sentences, vocabulary_config, word_counts
from bertjax.data.text.korean_sentences import is_korean
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import LearnedVocabularyConfig
from bertjax.errors import UserError
from bertjax.files import MANIFEST, PARTS, Fingerprint, made_once, read_manifest

_log = logging.getLogger(__name__)

T = TypeVar("T")

SPLITS = ("train", "valid")
# Part of every fingerprint. Raise it when the same text would be prepared to different bytes.
_FORMAT = 3
_NUM_SAMPLED = 1000  # documents that decide whether a source is Korean
_NO_BEAM = BeamConfig()
# Fractions above which duplicates cause a warning. Short sentences such as "Yes." recur in any text.
_MANY_DUPLICATES = {"documents": 0.05, "lines": 0.25}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig(LearnedVocabularyConfig):
    """The text to prepare, and how to prepare it.

    Attributes:
      source: the training data; "" to evaluate `valid_source` only.
      valid_source: the validation data; "" to split them off the training data.
      valid_fraction: the fraction of documents that is split off if `valid_source` is empty; copies of a document are
        in the same split.
      text_field: the column of the text in tables.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
      lines: whether a line is a "sentence", or a "paragraph" that is split into sentences.
      splitter: what splits paragraphs: "punkt", or "kiwi", which is kiwipiepy (extra `korean`) for Korean.
      vocab_size: the maximum number of tokens of a trained vocabulary.
      workers: the number of processes that prepare the data; 0 for one per core. It does not affect the result.
      prepared_dir: the folder of prepared text or rows, which later runs reuse; "" for the run's own folder.
      beam: the Apache Beam runner that does the work, if any. It does not affect the result.
    """

    source: str = always("documentation")
    valid_source: str = always("")
    valid_fraction: Annotated[float, above(0, below=1)] = always(0.02)
    text_field: str = always("text")
    on_bad_row: OnBadRow = always("stop")
    lines: Annotated[str, one_of("sentence", "paragraph")] = always("paragraph")
    splitter: Annotated[str, one_of(*sentences.SPLITTERS)] = sentences.PUNKT
    vocab_size: int = always(30_522)
    workers: Count = always(0)
    prepared_dir: str = always("")
    beam: BeamConfig = _NO_BEAM

    def check_source(self) -> None:
        """Raises UserError unless the config names text to train on, or validation text and a vocabulary."""
        if not self.source and not (self.valid_source and self.vocab_file):
            fix = "set --config.data.source=FILE"
            raise UserError("config key data.source", got="nothing", expected="text to train on", fix=fix)


def _splits(config: CorpusConfig) -> tuple[str, ...]:
    return SPLITS if config.source else SPLITS[1:]


class Split:
    """The documents of one split."""

    def __init__(self, folder: Path, name: str) -> None:
        """Opens the split.

        Args:
          folder: the prepared folder.
          name: "train" or "valid".
        """
        from bertjax.data.readers import records  # a slow import that prediction does not need

        sizes = np.fromfile(folder / f"{name}.document_sizes.int32", np.int32)
        lengths = np.memmap(folder / f"{name}.sentence_lengths.int32", np.int32, "r")
        self.sentences = Sentences(lengths, sizes)
        self._records = records.TokenRecords(folder / "records", name, _document_lengths(folder, name))

    def read(
        self, documents: Int[np.ndarray, " n"], starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
    ) -> list[Int[np.ndarray, " _"]]:
        """Reads `lengths` consecutive token ids of each of `documents`, from the positions `starts` on."""
        return self._records.read(documents, starts, lengths)


def _document_lengths(folder: Path, split: str) -> Int[np.ndarray, " documents"]:
    return np.fromfile(folder / f"{split}.document_lengths.int32", np.int32)


class Corpus:
    """An opened prepared folder.

    Attributes:
      folder: the folder.
      tokenizer: the vocabulary.
      splits: the splits "train" and "valid", or only "valid".
      counts: the numbers of documents, sentences, tokens and others of each split.
      unigrams: the number of occurrences of each token in the training documents; None if there are none.
    """

    def __init__(self, folder: Path, template: Template | None = None) -> None:
        """Opens the folder of a finished `Preparation`. Raises UserError if its files are damaged.

        Args:
          folder: the folder.
          template: the special tokens of instances. Default: those that the folder's vocabulary states.
        """
        self.counts: Mapping[str, Mapping[str, int]] = read_manifest(folder)["counts"]
        self.folder = folder
        self.tokenizer = vocabulary_config.load_saved(folder)
        if template and template != self.tokenizer.template:  # runs of several templates share the folder
            self.tokenizer = self.tokenizer.with_template(template)
        counted = folder / "unigrams.npy"
        self.unigrams: Int64[np.ndarray, " V"] | None = np.load(counted) if counted.exists() else None
        names = SPLITS[1:] if self.unigrams is None else SPLITS
        self.splits = {name: Split(folder, name) for name in names}


class Preparation:
    """The preparation of the text of a config, finished or not.

    Attributes:
      fingerprint: a digest of everything that determines the prepared bytes; the same on every machine.
      folder: the folder of the prepared text once `is_finished`. If `vocab_file` was trained on this same text, as in
        the second phase of pretraining, it may be the folder of the first preparation.
    """

    def __init__(self, config: CorpusConfig, default_dir: Path) -> None:
        """Computes the fingerprint.

        Args:
          config: the text and its preparation.
          default_dir: the parent folder if `config.prepared_dir` is empty.
        Raises:
          UserError: if the text cannot be read.
        """
        config.check_source()
        self._config = config
        self._default_dir = default_dir
        parts = _fingerprint_parts(config)
        home = Path(config.prepared_dir or default_dir).absolute()
        candidates = [{**parts, "splitter": splitter} for splitter in _splitters(config)]
        options = [(candidate, *_locate(home, candidate, bool(config.vocab_file))) for candidate in candidates]
        finished = (option for option in options if _is_finished(option[2]))
        self._parts, self.fingerprint, self.folder = next(finished, options[0])  # finished text is reused

    def is_finished(self) -> bool:
        """Whether the text has been prepared."""
        return _is_finished(self.folder)

    def corpus(self) -> Corpus:
        """Opens the prepared text. The template is that of the run's vocabulary, or else of the given one."""
        path = str(self._default_dir) if vocabulary_config.saved_file(self._default_dir) else self._config.vocab_file
        tokenizer = vocabulary_config.load_tokenizer(Path(path), self._config.lowercase) if path else None
        return Corpus(self.folder, tokenizer.template if tokenizer else None)

    def run(self) -> None:
        """Prepares the text unless it is prepared already.

        A second process that prepares the same text waits for the first. An interrupted or killed preparation resumes
        after its last finished part, and gives the same bytes. After a `UserError` nothing is kept, because a retry
        needs another text or config.
        """
        if self.is_finished():
            return
        if self._config.beam.runner:
            beam.check(self._config.beam)
        made_once(self.folder, self._write)
        _report(self.folder)

    def _write(self, folder: Path) -> Mapping[str, Any]:
        """Writes all files, and returns the manifest."""
        counts, duplicates = _write(self._config, folder)
        return {
            "fingerprint": self.fingerprint,
            "parts": self._parts,
            "counts": counts,
            "duplicate_fractions": duplicates,
        }


def _is_finished(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def _locate(home: Path, parts: Mapping[str, Any], has_vocab: bool) -> tuple[Fingerprint, Path]:
    """Returns the fingerprint and the folder of a text.

    The folder may be a finished one of the same text in files of other names. If the config names a vocabulary, it may
    be one that trained this vocabulary.
    """
    fingerprint = _digest(parts)
    ours = parts["vocabulary"]
    if not _is_finished(home / fingerprint):
        for path in sorted(home.glob(f"{'[0-9a-f]' * len(fingerprint)}/{MANIFEST}")):
            theirs = json.loads(path.read_text())["parts"]
            digest = _digest({**theirs, "vocabulary": ours} if has_vocab else theirs)
            if digest == fingerprint and (not has_vocab or vocabulary_config.load_saved(path.parent).key[0] == ours):
                return digest, path.parent
    return fingerprint, home / fingerprint


def _fingerprint_parts(config: CorpusConfig) -> dict[str, Any]:
    """Returns everything that determines the prepared bytes, except the sentence splitter."""
    return {
        "format": _FORMAT,
        "source": _open(config, config.source).fingerprint() if config.source else "",
        "valid": _open(config, config.valid_source).fingerprint() if config.valid_source else config.valid_fraction,
        "on_bad_row": config.on_bad_row,
        "lines": config.lines,
        "unicode": unicodedata.unidata_version,
        "lowercase": config.lowercase,
        "vocabulary": added_words.vocabulary_key(config),
    }


def _splitters(config: CorpusConfig) -> list[str]:
    """Returns the names of the current sentence splitter and of earlier ones whose results are still valid."""
    if config.lines != "paragraph":
        return ["none"]
    nltk = f"nltk {metadata.version('nltk')}"
    quotations = f"{nltk}, quotations within sentences"
    titles = f"{quotations}, British titles"
    if config.splitter == sentences.KIWI:
        return [f"{titles}, {korean.analyzer_version()}"]
    return [f"{titles}, Korean endings"] if _is_korean(config) else [titles, quotations, nltk]


def _is_korean(config: CorpusConfig) -> bool:
    """Returns whether the first documents of a source have Korean paragraphs."""
    sources = [_open(config, source).documents() for source in (config.source, config.valid_source) if source]
    documents = itertools.chain.from_iterable(itertools.islice(source, _NUM_SAMPLED) for source in sources)
    return any(is_korean(line) for document in documents for line in document.lines)


def _digest(parts: Mapping[str, Any]) -> Fingerprint:
    return Fingerprint.of(parts, length=16, sort_keys=True)


def _open(config: CorpusConfig, source: str) -> TextSource:
    return TextSource(source, config.text_field, config.on_bad_row)


def _write(config: CorpusConfig, folder: Path) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Writes everything except the manifest. Returns the counts and the fractions of duplicates."""
    tokenizer = _vocabulary(config, folder)
    _check_fit(config, tokenizer)
    counts = {}
    fractions = {}
    files = {}
    unigrams = {}
    splitter = config.splitter if config.lines == "paragraph" else ""
    tokenize = functools.partial(preparation.tokenize, vocab_dir=folder, splitter=splitter)
    for name in _splits(config):
        paths, source_counts = _parts(config, name, tokenize, folder / PARTS / name, ".npz")
        counter = preparation.SplitCounter(folder, name, tokenizer.vocab_size)
        files[name] = [path for path in paths if counter.add(Tokenized.load(path))]
        if not files[name]:
            raise _no_documents(config, name)
        counts[name], fractions[name] = counter.finish()
        unigrams[name] = counter.unigrams
        # Without a source of its own, the validation split reads the rows of the training source again.
        if name == "train" or config.valid_source:
            counts[name]["skipped_rows"] = source_counts["bad_rows"]
            counts[name]["empty_documents"] += source_counts["empty_documents"]
        else:
            counts[name]["skipped_rows"] = 0
    from bertjax.data.readers import records

    if "train" in unigrams:
        np.save(folder / "unigrams.npy", unigrams["train"])
    shutil.rmtree(folder / "records", ignore_errors=True)  # an interrupted process may have left it
    pipeline = beam.pipeline_of(config.beam, config.workers) if config.beam.runner else None
    documents = {name: [_Documents(path) for path in paths] for name, paths in files.items()}
    with beam.importable():
        records.write_tokens(folder / "records", documents, pipeline)
    if pipeline:
        _check_records(folder, _splits(config))
    return counts, fractions


def _parts(
    config: CorpusConfig, split: str, work: Callable[..., None], folder: Path, suffix: str
) -> tuple[list[Path], Mapping[str, int]]:
    """Returns the finished parts of a split's documents and the counts of the source. Writes missing parts.

    Args:
      config: the text.
      split: the split.
      work: writes documents as parts; see `shares.make_parts`.
      folder: the folder of the parts.
      suffix: the suffix of their names.
    Raises:
      UserError: if the text is bad or empty.
    """
    source = _open(config, _source_of(config, split))
    documents = functools.partial(_documents, config, split)
    if config.beam.runner:
        paths, counts = shares.make_parts(source, documents, work, folder / "beam", config.beam, config.workers)
        if not paths:
            raise _no_documents(config, split)
        return paths, counts
    parts = Parts(folder, suffix)
    work(_not_empty(documents(source), config, split), workers=config.workers, parts=parts)
    return parts.paths, source.counts


def _check_records(folder: Path, splits: Sequence[str]) -> None:
    """Raises UserError unless Beam wrote the records of all documents that were counted before."""
    from bertjax.data.readers import records

    for name in splits:
        written = records.TokenRecords(folder / "records", name, _document_lengths(folder, name))
        count = len(written)
        expected = written.num_expected
        if count != expected:
            raise UserError(
                f"the {name} records that Beam wrote",
                got=f"{count:,}",
                expected=f"{expected:,}, the number that the documents need",
                fix="prepare again with other data.beam.options, or without data.beam",
            )


def _vocabulary(config: CorpusConfig, folder: Path) -> EncoderTokenizer:
    """Returns the vocabulary (named by the config, found in the folder, or trained), and writes it to the folder."""
    if config.vocab_file and not config.add_words:
        tokenizer = vocabulary_config.load_named(config)
    elif vocabulary_config.saved_file(folder):
        tokenizer = vocabulary_config.load_saved(folder)
    else:
        tokenizer = preparation.train_tokenizer(training_counts(config, folder / PARTS), config)
    tokenizer.save(folder)
    return tokenizer


def training_counts(config: CorpusConfig, folder: Path) -> word_counts.TrainingCounts:
    """Returns the word counts of the training documents, which alone determine a vocabulary. Writes parts."""
    chain, kind = added_words.splitting(config)
    count = functools.partial(preparation.count_words, chain=chain, kind=kind)
    paths, _ = _parts(config, "train", count, folder / "words", ".txt")
    return word_counts.most_frequent(paths, folder)


def _check_fit(config: CorpusConfig, tokenizer: EncoderTokenizer) -> None:
    """Logs a warning if the vocabulary does not fit the first documents."""
    split = _splits(config)[0]
    sample = fit.Sample(tokenizer)
    documents = _documents(config, split, _open(config, _source_of(config, split)))
    sample.add(itertools.chain.from_iterable(documents))
    sample.check()


class _Documents:
    """The documents of a finished part, read when they are iterated over."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Int32[np.ndarray, " tokens"]]:
        return iter(Tokenized.load(self._path).documents())


def _report(folder: Path) -> None:
    """Logs the counts of a finished preparation."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, counts in manifest["counts"].items():
        parts = [f"{value:,} {key.replace('_', ' ')}" for key, value in counts.items() if value]
        _log.info("prepared %s split: %s", name, ", ".join(parts))
        for what, limit in _MANY_DUPLICATES.items():
            percent = 100 * manifest["duplicate_fractions"][name][what]
            if percent > 100 * limit:
                message = "%s split: %.2f %% of %s are duplicates, which a model overfits; remove them from the source"
                _log.warning(message, name, percent, what)


def _not_empty(documents: Iterator[T], config: CorpusConfig, split: str) -> Iterator[T]:
    """Yields the documents of a split. Raises UserError if there are none."""
    first = next(documents, None)
    if first is None:
        raise _no_documents(config, split)
    yield first
    yield from documents


def _no_documents(config: CorpusConfig, split: str) -> UserError:
    return UserError(
        f"the {split} split of {_source_of(config, split)!r}",
        got="no document with text",
        expected="documents in both the training and the validation split; copies of a document share a split",
        fix="add documents (a blank line ends one), change data.valid_fraction, or set data.valid_source",
    )


def _source_of(config: CorpusConfig, split: str) -> str:
    return config.valid_source or config.source if split == "valid" else config.source


def _documents(config: CorpusConfig, split: str, source: TextSource) -> Iterator[preparation.Document]:
    """Yields the lines of each document of a split."""
    for document in source.documents():
        if not config.valid_source:
            fraction = preparation.text_hash("\n".join(document.lines)) / 2**64
            if (fraction < config.valid_fraction) != (split == "valid"):
                continue
        yield document.lines
