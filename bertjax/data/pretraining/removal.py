"""The training documents that a run leaves out: duplicates, copies of evaluation texts, and those of two filters.

Prepared text does not change. `Removal` writes a folder in the same parent folder. Its name has the fingerprint of
everything that determines the removed documents:

    manifest.json          the parts of the fingerprint, counts, and samples
    removal.jsonl          the documents that a filter or comparison names, and the documents that stay in their place
    SOURCE.documents.npy   the numbers of the removed documents of each source, by the number of the source
    SOURCE.unigrams.npy    the number of occurrences of each token in these documents
"""

import dataclasses
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt64

from bertjax.config import Constrained, Count, above, at_least, one_of
from bertjax.data.parts import Parts
from bertjax.data.pretraining import containment, duplicates, shingles
from bertjax.data.pretraining.containment import TextIndex
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.pretraining.duplicates import Comparison, Documents
from bertjax.data.readers import lines
from bertjax.errors import UserError
from bertjax.files import MANIFEST, PARTS, Fingerprint, made_once, read_manifest

_log = logging.getLogger(__name__)

# Part of every fingerprint. Raise it when the same text and settings would remove other documents.
_FORMAT = 1
_LIST = "removal.jsonl"
_SHOWN_CHARACTERS = 100
_NUM_SAMPLES = 5
# The config keys that remove documents, in this order. A document has the first that applies.
_KEYS = ("", "min_words", "max_words", "max_repeated_lines", "evaluation_texts", "duplicates")
_CONTAINS = _KEYS.index("evaluation_texts")
_IS_DUPLICATE = _KEYS.index("duplicates")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemovalConfig(Constrained, prefix="data"):
    """The training documents to leave out.

    Attributes:
      duplicates: "drop" near duplicates and documents that contain an evaluation text or validation document, or "keep"
        them; `--mode=prepare` reports them.
      duplicate_similarity: the minimum Jaccard similarity of the word 5-grams of duplicates.
      evaluation_texts: files whose lines or columns of text no training document should contain.
      evaluation_containment: the minimum share of a text's word 8-grams in a document that contains it.
      min_words: the minimum number of words of a document; punctuation marks are words.
      max_words: the maximum number; 0 for none.
      max_repeated_lines: the maximum share of a document's sentences that are copies of earlier ones.
      max_removed: the maximum share of documents that may be left out; more is an error.
    """

    duplicates: Annotated[str, one_of("keep", "drop")] = "keep"
    duplicate_similarity: Annotated[float, at_least(0.5, at_most=1)] = 0.8
    evaluation_texts: str = ""
    evaluation_containment: Annotated[float, above(0, at_most=1)] = 0.8
    min_words: Count = 0
    max_words: Count = 0
    max_repeated_lines: Annotated[float, at_least(0, at_most=1)] = 1.0
    max_removed: Annotated[float, above(0, at_most=1)] = 0.5

    @property
    def removes(self) -> bool:
        """Whether any documents may be left out."""
        return self.duplicates == "drop" or bool(self.min_words or self.max_words) or self.max_repeated_lines < 1


class Removal:
    """The documents of several sources that are left out, found or not.

    Attributes:
      fingerprint: a digest of the prepared text and of all settings that determine the documents.
      folder: the folder of the results.
    """

    def __init__(self, config: RemovalConfig, prepared: Sequence[str], home: Path, workers: int) -> None:
        """Computes the fingerprint.

        Args:
          config: the settings.
          prepared: the fingerprint of the prepared text, and the names of the sources in order of priority: of
            duplicates in two sources, that of the first stays.
          home: the parent of the prepared folders.
          workers: the number of processes; 0 for one per core.
        Raises:
          UserError: if the evaluation texts cannot be read.
        """
        self._config = config
        self._workers = workers
        texts = config.evaluation_texts
        self._parts: dict[str, Any] = {
            "format": _FORMAT,
            "prepared": list(prepared),
            **{key: value for key, value in dataclasses.asdict(config).items() if key != "max_removed"},
            "evaluation_texts": [lines.fingerprint(path) for path in containment.files(texts)],
        }
        self.fingerprint = Fingerprint.of(self._parts, length=16, sort_keys=True)
        self.folder = home / f"removal-{self.fingerprint}"

    def is_finished(self) -> bool:
        """Whether the documents have been found."""
        return (self.folder / MANIFEST).exists()

    def run(self, corpora: Mapping[str, Corpus]) -> None:
        """Finds the documents unless they have been found. An interrupted process resumes after its last finished part.

        Args:
          corpora: the prepared text of each source, with one vocabulary.
        Raises:
          UserError: if an evaluation text is bad, or a source would lose more than `max_removed` of its documents.
        """
        is_new = not self.is_finished()
        made_once(self.folder, lambda folder: self._write(folder, corpora))
        for name, counts in self._manifest["documents"].items():
            if is_new:
                listed = ", ".join(f"{key} {count:,}" for key, count in counts.items())
                _log.info("documents%s: %s", f" of {name}" if name else "", listed)
            share = counts["removed"] / counts["all"]
            if share > self._config.max_removed:
                fix = "correct the text, change the filters, set --config.data.duplicates=keep, or raise "
                raise UserError(
                    f"the source {name!r}" if name else "config key data.source",
                    got=f"{100 * share:.2f} % of its documents to leave out; see {self.folder / _LIST}",
                    expected=f"at most {100 * self._config.max_removed:g} % (data.max_removed)",
                    fix=f"{fix}--config.data.max_removed",
                )

    def apply(self, corpora: Mapping[str, Corpus]) -> None:
        """Leaves the removed documents out of the training documents of each source, and of the counts of tokens."""
        for source, corpus in enumerate(corpora.values()):
            train = corpus.splits["train"]
            train.sentences = train.sentences.without(np.load(self.folder / f"{source}.documents.npy"))
            if corpus.unigrams is not None:
                corpus.unigrams = corpus.unigrams - np.load(self.folder / f"{source}.unigrams.npy")

    def report(self) -> dict[str, Any]:
        """Returns counts of documents by source and config key, and samples of those that a filter removes."""
        return {"removal": self._manifest["documents"], "removal_samples": self._manifest["samples"]}

    @property
    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    def _write(self, folder: Path, corpora: Mapping[str, Corpus]) -> dict[str, Any]:
        """Writes all files, and returns the manifest."""
        documents = Documents(corpora, "train")
        config = self._config
        texts = folder / PARTS / "texts"
        labels = TextIndex.write(texts, _texts(config.evaluation_texts, documents, Documents(corpora, "valid")))
        comparison = Comparison(
            texts, config.evaluation_containment, shingles.rows_per_band(config.duplicate_similarity)
        )
        scans = Parts(folder / PARTS / "scans", ".npz")
        duplicates.scan({name: corpus.folder for name, corpus in corpora.items()}, comparison, self._workers, scans)
        findings = _find(config, documents, scans, folder / PARTS)
        counts = {name: Counter(all=0, removed=0) for name in documents.names}
        samples: dict[str, list[str]] = {}
        with (folder / _LIST).open("w", encoding="utf-8") as file:
            for record in _records(findings, documents, labels):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                counts[record["source"]].update({"removed": int(record["removed"]), record["key"]: 1})
                samples.setdefault(record["key"], []).extend([record["words"]])
                del samples[record["key"]][_NUM_SAMPLES:]
        size = documents.tokenizer.vocab_size
        for source, name in enumerate(documents.names):
            begin, end = documents.first[source : source + 2]
            counts[name]["all"] = end - begin
            numbers = np.flatnonzero(findings.is_removed[begin:end])
            batches = documents.batches((begin + numbers).tolist())
            tokens = (np.bincount(np.concatenate(documents.read(batch)), minlength=size) for batch in batches)
            np.save(folder / f"{source}.documents.npy", numbers)
            np.save(folder / f"{source}.unigrams.npy", sum(tokens, np.zeros(size, np.int64)))
        return {"fingerprint": self.fingerprint, "parts": self._parts, "documents": counts, "samples": samples}


class _Findings(NamedTuple):
    """What names each document."""

    key: Int64[np.ndarray, " n"]  # its number in `_KEYS`, or 0
    of: Int64[np.ndarray, " n"]  # the earlier document that it duplicates, or the text that it contains
    value: Float64[np.ndarray, " n"]  # what is compared with the value of the key
    is_removed: Bool[np.ndarray, " n"]


def _find(config: RemovalConfig, documents: Documents, scans: Parts, folder: Path) -> _Findings:
    """Applies filters and comparisons in the order of `_KEYS`: nothing is the duplicate of a removed document."""
    words = duplicates.load(scans, "words")
    repeated = duplicates.load(scans, "repeated")
    texts = duplicates.load(scans, "text")
    values = [words, words, repeated, duplicates.load(scans, "containment")]
    is_long = (words > config.max_words) & (config.max_words > 0)
    fails = [words < config.min_words, is_long, repeated > config.max_repeated_lines, texts >= 0]
    key = np.select(fails, range(1, _IS_DUPLICATE), 0)
    value = np.select(fails, values, 0.0)
    of = texts.astype(np.int64)
    drops = config.duplicates == "drop"
    takes_part = (key == 0) | ((key == _CONTAINS) & (not drops))
    same = duplicates.find_duplicates(documents, scans, takes_part, config.duplicate_similarity, folder)
    is_duplicate = (same.of >= 0) & (key == 0)
    key[is_duplicate] = _IS_DUPLICATE
    of[is_duplicate] = same.of[is_duplicate]
    value[is_duplicate] = same.similarity[is_duplicate]
    return _Findings(key, of, value, (key > 0) & (drops | (key < _CONTAINS)))


def _records(findings: _Findings, documents: Documents, texts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the lines of the list, in the order of the documents."""
    for batch in documents.batches(np.flatnonzero(findings.key).tolist()):
        earlier = [int(findings.of[number]) for number in batch if findings.key[number] == _IS_DUPLICATE]
        labels = documents.describe([*batch, *earlier])
        for number in batch:
            key = int(findings.key[number])
            other = int(findings.of[number])
            value = round(float(findings.value[number]), 4)
            record = {**labels[number], "removed": bool(findings.is_removed[number]), "key": _KEYS[key]}
            if key == _IS_DUPLICATE:
                yield {**record, "kept": labels[other], "similarity": value}
            elif key == _CONTAINS:
                yield {**record, "text": texts[other], "containment": value}
            else:
                yield {**record, "value": value}


def _texts(
    source: str, documents: Documents, valid: Documents
) -> Iterator[tuple[dict[str, Any], UInt64[np.ndarray, " _"]]]:
    """Yields a label of each evaluation text, then of each validation document, and the hashes of its words."""
    for text, words in containment.hashed(containment.read_texts(source), documents.tokenizer, documents.hasher):
        yield {"source": text.where, "words": text.content[:_SHOWN_CHARACTERS]}, words
    for batch in valid.batches(range(len(valid))):
        labels = valid.describe(batch).values()
        for label, words in zip(labels, documents.hasher.words(valid.read(batch)), strict=True):
            yield {**label, "split": "valid"}, words
