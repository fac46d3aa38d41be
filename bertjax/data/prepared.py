"""Prepared rows: read and encoded once, by worker processes or Beam, then memory-mapped.

`PreparedRows` writes a folder whose name is a digest of everything that determines its content. An example is what is
read as one row, and may be several rows of the model; see `data.codecs.codec`.

    manifest.json     facts about the rows, and counts for the report
    train/            the fields of the training rows, see `rows.stored`
    valid.jsonl       the validation examples, one JSON value per line; likewise for each split other than "train"

The folder gets this name only when it is complete.
"""

import array
import dataclasses
import functools
import itertools
import json
import logging
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from bertjax.config import Constrained, Count
from bertjax.data import beam, workers
from bertjax.data.beam import BeamConfig
from bertjax.data.codecs.codec import Survey, TrainingCodec, TrainingRows
from bertjax.data.rows import stored
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.rows.stored import Fields, Ragged
from bertjax.data.splits import TRAIN, VALID
from bertjax.errors import UserError, restored
from bertjax.files import MANIFEST, PARTS, Fingerprint, completed, made_once, read_manifest
from bertjax.progress import track

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=tuple[Any, ...])  # an example
_NO_BEAM = BeamConfig()
_BLOCK_CHARACTERS = 1 << 18
# Below this number of characters, encoding takes less time than starting worker processes.
_FEW_CHARACTERS = 1 << 22
_LENGTHS = bucket_lengths(8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparationConfig(Constrained, prefix="data"):
    """The preparation of rows. It does not affect the result.

    Attributes:
      workers: the number of processes that prepare the data; 0 for one per core. It does not affect the result.
      prepared_dir: the folder of prepared text or rows, which later runs reuse; "" for the run's own folder.
      beam: the Apache Beam runner that encodes the rows, if any.
    """

    workers: Count = 0
    prepared_dir: str = ""
    beam: BeamConfig = _NO_BEAM


class PreparedRows(Generic[R]):
    """The rows of a codec, prepared in a folder.

    Attributes:
      folder: the folder; complete once `is_finished`.
    """

    def __init__(self, codec: TrainingCodec[R], default_dir: Path, config: PreparationConfig) -> None:
        """Initializes the rows.

        Args:
          codec: the reading and encoding of the rows.
          default_dir: the parent of the folder if `prepared_dir` is empty.
          config: the preparation settings. A small amount of text is always encoded in this process.
        """
        self._codec = codec
        self._num_workers = config.workers
        self._beam = config.beam
        home = Path(config.prepared_dir or default_dir).absolute()
        self._digest, *earlier = _digests(codec)
        folders = [home / digest for digest in (self._digest, *earlier)]
        self.folder = next((folder for folder in folders if (folder / MANIFEST).exists()), folders[0])

    @property
    def is_finished(self) -> bool:
        """Whether the rows are prepared already."""
        return (self.folder / MANIFEST).exists()

    def run(self) -> None:
        """Prepares the rows, unless they are prepared already. A second process waits for the first.

        Raises:
          UserError: if a row is bad, in which case nothing is kept; or if files of prepared rows are damaged.
        """
        is_new = not self.is_finished
        if is_new:
            if self._beam.runner:
                beam.check(self._beam)
            made_once(self.folder, self._write)
        report = self.report  # checks the files
        if is_new:
            _log_report(report)

    @functools.cached_property
    def _manifest(self) -> Mapping[str, Any]:
        return read_manifest(self.folder)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts of the survey."""
        return self._manifest["facts"]

    @property
    def report(self) -> Mapping[str, Any]:
        """Counts of rows, duplicates, lengths and others; see `_Census.report`."""
        return self._manifest["report"]

    @property
    def fields(self) -> Fields:
        """The fields of the training rows, memory-mapped."""
        return stored.load(self.folder / TRAIN)

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """The names that fields stand for; see `TrainingRows`. Folders of earlier versions have none."""
        return stored.load_names(self.folder / TRAIN)

    def held_out(self, split: str) -> Iterator[R]:
        """Yields the examples of a split other than "train"."""
        with (self.folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                yield self._codec.restored(json.loads(line))

    def _write(self, folder: Path) -> Mapping[str, Any]:
        for path in folder.iterdir():  # files of an interrupted preparation
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        census = _Census()
        survey = self._codec.survey()
        writer = stored.Writer(folder / TRAIN)
        (folder / f"{VALID}.jsonl").touch()
        for part in self._encoded(self._training_blocks(folder, census, survey), folder, census):
            writer.add(part.fields, part.names)
            census.add(part)
        facts = survey.facts()
        writer.finish()
        manifest = {"facts": facts, "report": census.report()}
        self._codec.check(**manifest)
        if _digests(self._codec)[0] != self._digest:
            got = "files that changed while they were read"
            fix = "run the same command again"
            raise UserError("the rows to prepare", got=got, expected="files that do not change", fix=fix)
        return manifest

    def _training_blocks(self, folder: Path, census: "_Census", survey: Survey[R]) -> Iterator[list[R]]:
        """Reads all rows. Yields the training rows, and appends the others to the files of their splits.

        Logs a warning if the vocabulary does not fit the first training rows.
        """
        sample = self._codec.sample()
        for split, rows in track(_blocks(self._codec, census), "reading", "block"):
            survey.add(split, rows)
            if split == TRAIN:
                sample.add(map(self._codec.text, rows))
                yield rows
            else:
                with (folder / f"{split}.jsonl").open("a", encoding="utf-8") as file:
                    file.writelines(_dumped(self._codec.scored(row)) for row in rows)
        sample.check()

    def _encoded(self, blocks: Iterator[list[R]], folder: Path, census: "_Census") -> Iterator[TrainingRows]:
        """Encodes blocks in order: by Beam, by workers, or in this process if there is little text."""
        if self._beam.runner:
            return _by_beam(blocks, self._codec, folder, self._beam, self._num_workers)
        first = []
        for rows in blocks:
            first.append(rows)
            if census.characters >= _FEW_CHARACTERS:
                plain = (list(map(tuple, rows)) for rows in itertools.chain(first, blocks))
                return workers.map_blocks(functools.partial(_encode, self._codec), plain, self._num_workers)
        return map(self._codec.training, first)


def _blocks(codec: TrainingCodec[R], census: "_Census") -> Iterator[tuple[str, list[R]]]:
    """Reads and counts the rows, and yields them in blocks, each of one split."""
    blocks = defaultdict[str, list[R]](list)
    limit = _BLOCK_CHARACTERS
    for split, row in codec.splits():
        census.note(split, codec.text(row))
        blocks[split].append(row)
        if census.characters >= limit:
            yield from blocks.items()
            blocks.clear()
            limit = census.characters + _BLOCK_CHARACTERS
    yield from blocks.items()


def _encode(codec: TrainingCodec[R], rows: Iterable[Any]) -> TrainingRows:
    """Encodes rows given as plain tuples or as lists from JSON. Tuples pickle in half the time of a NamedTuple."""
    return codec.training(list(map(codec.restored, rows)))


def _digests(codec: TrainingCodec[Any]) -> list[str]:
    """Returns the digest of a codec, and those of folders of earlier versions, which are still read."""
    key = codec.key()
    digests: list[str] = []
    for version in range(codec.version, 0, -1):
        content = [version, codec.kind, unicodedata.unidata_version, key]
        digest = Fingerprint.of(content, length=16, sort_keys=True)
        digests += digest, digest.earlier
    return digests


class ValidRows(Generic[R]):
    """The rows of a codec without training rows, held in memory."""

    def __init__(self, codec: TrainingCodec[R]) -> None:
        """Reads the rows. Raises UserError if `TrainingCodec.splits` or `Survey.add` does."""
        survey = codec.survey()
        self._rows = defaultdict[str, list[R]](list)
        for split, rows in _blocks(codec, _Census()):
            survey.add(split, rows)
            self._rows[split] += map(codec.scored, rows)
        self.facts: Mapping[str, Any] = survey.facts()

    def held_out(self, split: str) -> Iterator[R]:
        """Yields the rows of a split."""
        return iter(self._rows[split])


def _dumped(row: Any) -> str:
    return json.dumps(row) + "\n"


def _by_beam(
    blocks: Iterable[list[R]], codec: TrainingCodec[R], folder: Path, config: BeamConfig, num_workers: int
) -> Iterator[TrainingRows]:
    """Yields the encoded blocks in order. Beam's workers read blocks from files in the folder and write files there."""
    (folder / PARTS).mkdir()
    paths = []
    for number, rows in enumerate(blocks):
        paths.append(str(folder / PARTS / f"{number:08d}"))
        Path(paths[-1]).write_text("".join(map(_dumped, rows)), encoding="utf-8")
    beam.for_each(config, num_workers, functools.partial(_encode_file, encode=functools.partial(_encode, codec)), paths)
    return map(_load, paths)


def _encode_file(path: str, encode: Callable[[Sequence[Any]], TrainingRows]) -> None:
    """Encodes a block. Runs in a worker of Beam."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        fields, *counted = encode(list(map(json.loads, text.splitlines())))
        outcome: Mapping[str, Any] = {"counted": counted}
    except UserError as error:  # Beam would hide the message in a traceback
        fields = {}
        outcome = {"error": str(error)}
    with completed(_fields_path(path)) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **stored.flat(fields))
    with completed(_outcome_path(path)) as partial:
        partial.write_text(json.dumps(outcome))


def _load(path: str) -> TrainingRows:
    """Reads the result of `_encode_file`. Raises UserError if the worker failed, or cannot access this folder."""
    if not _outcome_path(path).exists():
        expected = "a folder that all workers of Beam can access"
        fix = "set --config.data.prepared_dir to such a folder"
        raise UserError("rows to encode by Beam", got=f"no {_outcome_path(path)}", expected=expected, fix=fix)
    outcome = json.loads(_outcome_path(path).read_text())
    if "error" in outcome:
        raise restored(outcome["error"])
    with np.load(_fields_path(path)) as arrays:
        return TrainingRows(stored.grouped(dict(arrays)), *outcome["counted"])


def _fields_path(path: str) -> Path:
    return Path(f"{path}.npz")


def _outcome_path(path: str) -> Path:
    return Path(f"{path}.json")


class _Census:
    """Counts rows, duplicates and lengths.

    Attributes:
      characters: the number of characters of all texts.
    """

    def __init__(self) -> None:
        self.characters = 0
        self._hashes = {split: array.array("q") for split in (TRAIN, VALID)}
        self._counts = Counter[str]()
        self._left_out = Counter[str]()
        self._lengths = np.zeros(len(_LENGTHS), np.int64)

    def note(self, split: str, text: str) -> None:
        """Counts a row by its text."""
        self.characters += len(text)
        if split not in self._hashes:
            self._hashes[split] = array.array("q")
        self._hashes[split].append(hash(text))

    def add(self, encoded: TrainingRows) -> None:
        """Adds the lengths and counts of encoded training rows."""
        self._counts.update(encoded.counts)
        self._left_out.update(encoded.left_out)
        if encoded.fields:
            buckets = np.searchsorted(_LENGTHS[:-1], cast(Ragged, encoded.fields["input_ids"]).lengths)
            self._lengths += np.bincount(buckets, minlength=len(_LENGTHS))

    def report(self) -> dict[str, Any]:
        """Returns rows by split, duplicates, row lengths, and the counts of the encoder.

        "rows" excludes training rows that are left out; "left_out" is their number by config key. "duplicates" is the
        number of training rows with the text of an earlier one. "leaked" is the number of validation rows with the text
        of a training row. Both numbers include rows that are left out. "lengths" is the number of training rows by
        length: a key is an upper bound in tokens, and the next lower key is an exclusive lower bound.
        """
        train, valid = (np.frombuffer(self._hashes[split], np.int64) for split in (TRAIN, VALID))
        distinct = np.unique(train)
        rows = {split: len(hashes) for split, hashes in self._hashes.items()}
        return {
            "rows": {**rows, TRAIN: rows[TRAIN] - self._left_out.total()},
            "left_out": {key: count for key, count in self._left_out.items() if count},
            "duplicates": len(train) - len(distinct),
            "leaked": int(np.isin(valid, distinct).sum()),
            "lengths": {str(length): int(n) for length, n in zip(_LENGTHS, self._lengths, strict=True) if n},
            **self._counts,
        }


def _log_report(report: Mapping[str, Any]) -> None:
    """Logs a report, with a warning if validation rows are also training rows."""
    rows = report["rows"]
    others = [f", {count} left out by {key}" for key, count in report["left_out"].items()]
    others += [
        f", {value} {name.replace('_', ' ')}" for name, value in report.items() if isinstance(value, int) and value
    ]
    _log.info("prepared %d training and %d validation rows%s", rows[TRAIN], rows[VALID], "".join(others))
    if report["leaked"]:
        share = 100 * report["leaked"] / rows[VALID]
        _log.warning("%d validation rows (%.1f %%) are also training rows", report["leaked"], share)
