"""Reads TFDS datasets without TensorFlow. The only module that imports tensorflow_datasets."""

import contextlib
import dataclasses
import functools
import importlib
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from jaxtyping import Int, Int32, Int64

from bertjax.data.readers.lines import named
from bertjax.errors import UserError

# `tfds.builder` finds builders of these subpackages only after they are imported.
_PARTS = ("question_answering", "summarization", "text", "translate")

# The maximum size of a record. A long document has several records, so that a row can be read without all of it.
_RECORD_TOKENS = 2**12
_Example = tuple[int, dict[str, np.ndarray]]


class TextRecords:
    """The texts of one field of `tfds:NAME:SPLIT`, in stored order.

    Args:
      name: the name for `tfds.builder`, NAME[/CONFIG][:VERSION]. The dataset must be prepared as array_record.
      split: a split, or a slice of one such as `train[:1%]`.
      text_field: the field that holds the text.
    Raises:
      UserError: if the dataset, the split or the field is unknown, the dataset is not prepared, or the field has no
        text.
    """

    def __init__(self, name: str, split: str, text_field: str) -> None:
        self._split = _Split(name, split, "data.source")
        self._text_field = text_field
        _check_text_field(self._split.features, name, text_field)

    def __len__(self) -> int:
        return len(self._split)

    def __iter__(self) -> Iterator[str | bytes]:
        """Yields the texts: bytes from files, str from `tfds.testing.mock_data`.

        Raises:
          UserError: if a file of the dataset is damaged or missing.
        """
        return (record[self._text_field] for record in self._split.records())

    def fingerprint(self) -> dict[str, Any]:
        """Returns the name with config and version, the split, and the number of records."""
        return self._split.fingerprint()


class RowRecords:
    """The fields of the records of `tfds:NAME:SPLIT` with text, numbers, labels or lists of these, in stored order.

    Args:
      name: as in `TextRecords`.
      split: as in `TextRecords`.
      key: the config key of the source, for messages.
    Raises:
      UserError: if the dataset or the split is unknown, or the dataset is not prepared.
    """

    def __init__(self, name: str, split: str, key: str) -> None:
        self._split = _Split(name, split, key)
        features = self._split.features.items()
        self._fields = {field: value_of for field, feature in features if (value_of := _value_of(feature)) is not None}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows. Text is bytes or str; a class label is its name, or None for the -1 of unlabeled records.
        A sequence is a list.

        Raises:
          UserError: if a file of the dataset is damaged or missing.
        """
        for record in self._split.records():
            yield {field: value_of(record[field]) for field, value_of in self._fields.items()}

    def class_names(self, field: str) -> tuple[str, ...]:
        """Returns the class names of a label field, by number; empty for other fields."""
        feature = self._split.features.get(field)
        if isinstance(feature, tfds.features.Sequence):
            feature = feature.feature
        return tuple(feature.names) if isinstance(feature, tfds.features.ClassLabel) else ()

    def fingerprint(self) -> dict[str, Any]:
        """Returns the name with config and version, the split, and the number of records."""
        return self._split.fingerprint()


class _Split:
    """A split of a prepared dataset."""

    def __init__(self, name: str, split: str, key: str) -> None:
        where = f"{named(key)}=tfds:{name}"
        self._split = split
        self._builder = _builder(name, where)
        self._records = _records(self._builder, name, split, f"{where}:{split}")
        features = self._builder.info.features
        self.features = dict(features) if isinstance(features, tfds.features.FeaturesDict) else {}

    def __len__(self) -> int:
        return len(self._records)

    def records(self) -> Iterator[dict[str, Any]]:
        # One record at a time: one call for many is faster, but `mock_data` does not support it.
        for index in range(len(self)):
            try:
                record = self._records[index]
            except RuntimeError as error:  # the only type that array_record raises
                raise UserError(
                    f"record {index} of {self._builder.data_dir}",
                    got=f"a file that cannot be read ({_first_line(error)})",
                    expected="the complete array_record files of the dataset",
                    fix="copy or prepare the dataset again",
                ) from None
            yield record

    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": "tfds",
            "dataset": self._builder.info.full_name,
            "split": self._split,
            "num_examples": len(self),
        }


def _builder(name: str, where: str) -> tfds.core.DatasetBuilder:
    for part in _PARTS:
        importlib.import_module(f"tensorflow_datasets.{part}")
    try:
        return tfds.builder(name)
    # TFDS reports unknown names with several types, such as AssertionError for a version.
    except (ValueError, AssertionError, ImportError, OSError) as error:
        expected = f"NAME[/CONFIG][:VERSION] from the TFDS catalog, or a dataset prepared in {_data_dir()}"
        fix = "correct the name, or set the environment variable TFDS_DATA_DIR to the folder of prepared datasets"
        raise UserError(where, got=f"an unknown dataset ({_first_line(error)})", expected=expected, fix=fix) from None


def _records(builder: tfds.core.DatasetBuilder, name: str, split: str, where: str) -> Any:
    """Returns the records of a split as a random-access source."""
    prepare = f"tfds.builder({name!r}, file_format='array_record').download_and_prepare()"
    try:
        return builder.as_data_source(split)
    except (ValueError, KeyError) as error:
        if builder.is_prepared():
            expected = "one of " + ", ".join(sorted(builder.info.splits)) + ", or a slice such as train[:1%]"
            fix = "correct the part after the last colon"
            raise UserError(where, got=f"split {split!r} ({_first_line(error)})", expected=expected, fix=fix) from None
    # TFDS raises these for formats without random access.
    except (NotImplementedError, AssertionError, OSError):
        if builder.is_prepared():
            raise UserError(
                where,
                got=f"data prepared as {builder.info.file_format} in {builder.data_dir}",
                expected="array_record, which is read without TensorFlow",
                fix=f"delete that folder or choose another TFDS_DATA_DIR, then run {prepare}",
            ) from None
    got = f"a dataset that is not prepared on this machine; nothing is in {builder.data_dir}"
    fix = f"run {prepare} (some builders need TensorFlow), or set TFDS_DATA_DIR to the folder of prepared datasets"
    raise UserError(where, got=got, expected="array_record files in this folder", fix=fix)


def _check_text_field(fields: Mapping[str, Any], name: str, text_field: str) -> None:
    texts = sorted(field for field, feature in fields.items() if _is_text(feature))
    if text_field not in texts:
        got = "a field without text" if text_field in fields else "an unknown field"
        expected = "one of " + ", ".join(texts) if texts else "a dataset with a text field at its top level"
        fix = "set --config.data.text_field to the field that holds the text"
        raise UserError(f"config key data.text_field={text_field} of tfds:{name}", got=got, expected=expected, fix=fix)


def _value_of(feature: Any) -> Callable[[Any], Any] | None:
    """Returns the function that converts a value of a field; None for a field that `RowRecords` does not have."""
    if isinstance(feature, tfds.features.Sequence) and (of_element := _value_of(feature.feature)) is not None:
        return functools.partial(_listed, of_element)
    if isinstance(feature, tfds.features.ClassLabel):
        return functools.partial(_label_name, feature)
    if _is_text(feature):
        return _unchanged
    return _number if _is_scalar(feature, "biuf") else None


def _label_name(feature: tfds.features.ClassLabel, number: Any) -> str | None:
    return feature.int2str(int(number)) if number >= 0 else None


def _listed(of_element: Callable[[Any], Any], values: Any) -> list[Any]:
    return [of_element(value) for value in values]


def _unchanged(value: str | bytes) -> str | bytes:
    return value


def _number(value: Any) -> int | float:
    return np.asarray(value).item()


def _is_text(feature: Any) -> bool:
    return _is_scalar(feature, "OSU")


def _is_scalar(feature: Any, kinds: str) -> bool:
    """Returns whether a feature is a single value of one of these NumPy kinds."""
    tensor = feature.get_tensor_info() if isinstance(feature, tfds.features.FeatureConnector) else None
    return (
        isinstance(tensor, tfds.features.TensorInfo) and tensor.shape == () and np.dtype(tensor.np_dtype).kind in kinds
    )


def _data_dir() -> str:
    return str(tfds.core.constants.DATA_DIR)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


class TokenRecords:
    """The token ids of a split's documents, with random access.

    Attributes:
      num_expected: the number of records that the documents should have; `len` is the number found.
    """

    def __init__(self, folder: Path, split: str, lengths: Int[np.ndarray, " documents"]) -> None:
        """Opens the records of a split.

        Args:
          folder: a folder that `write_tokens` wrote.
          split: the split's name.
          lengths: the number of tokens of each document of the split.
        """
        info = _token_builder(folder, {}).info
        files = info.splits[split]
        self._features = info.features
        self._paths = list(map(str, files.filepaths))
        self._ends = np.cumsum(files.shard_lengths)
        self._readers: dict[int, ArrayRecordReader] = {}  # by file, opened when they are read
        counts = _num_records(lengths)
        self._first = np.cumsum(counts) - counts
        self.num_expected = int(counts.sum())

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(
        self, documents: Int[np.ndarray, " n"], starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
    ) -> list[Int32[np.ndarray, " _"]]:
        """Reads `lengths` token ids (at least one each) of documents, from the positions `starts` on, in one read."""
        first = self._first[documents]
        spans = list(map(range, first + starts // _RECORD_TOKENS, first + _num_records(starts + lengths)))
        arrays = self._arrays(np.unique(np.fromiter(itertools.chain.from_iterable(spans), np.int64)))
        parts = []
        for span, start, length in zip(spans, (starts % _RECORD_TOKENS).tolist(), lengths.tolist(), strict=True):
            tokens = arrays[span[0]] if len(span) == 1 else np.concatenate([arrays[number] for number in span])
            parts.append(tokens[start : start + length])
        return parts

    def _arrays(self, numbers: Int64[np.ndarray, " n"]) -> dict[int, Int32[np.ndarray, " _"]]:
        """Returns records by number. A data source of TFDS would start threads in each call, a third of its time."""
        arrays = {}
        files = np.searchsorted(self._ends, numbers, side="right")
        for file in np.unique(files).tolist():
            if file not in self._readers:
                self._readers[file] = ArrayRecordReader(self._paths[file])
            of_file = numbers[files == file]
            first = self._ends[file - 1] if file else 0
            records = self._readers[file].read((of_file - first).tolist())
            for number, record in zip(of_file.tolist(), records, strict=True):
                arrays[number] = self._features.deserialize_example_np(record)["tokens"]
        return arrays


def _num_records(tokens: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    return -(-tokens // _RECORD_TOKENS)


def write_tokens(
    folder: Path,
    splits: Mapping[str, Sequence[Iterable[Int32[np.ndarray, " _"]]]],
    pipeline: Mapping[str, Any] | None = None,
) -> None:
    """Writes the token ids of each split's documents, in order, as ArrayRecord. Long documents have several records.

    Args:
      folder: the parent of the dataset's folder.
      splits: for each split, its files; for each file, its documents. One file at a time is in memory.
      pipeline: runner and options of Beam, whose workers then write the files; see `beam.pipeline_of`.
    """
    tfds.disable_progress_bar()  # the caller shows a progress bar
    builder = _token_builder(folder, splits)
    options = {f"beam_{name}": value for name, value in (pipeline or {}).items()}
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints messages to stdout, which may hold results
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(**options))
    if pipeline:
        _recount(builder)


def _recount(builder: tfds.core.DatasetBuilder) -> None:
    """Writes the number of records of each file.

    TFDS 4.9.10 sorts the counts of Beam's workers by file number as text, 10 before 2. A reader would then look for
    records in the wrong files and miss some.
    """
    infos = [
        dataclasses.replace(info, shard_lengths=[_count_records(path) for path in info.filepaths])
        for info in builder.info.splits.values()
    ]
    builder.info.set_splits(tfds.core.splits.SplitDict(infos))
    builder.info.write_to_directory(builder.data_path)


def _count_records(path: Any) -> int:
    reader = ArrayRecordReader(str(path))
    count: int = reader.num_records()
    reader.close()
    return count


def _token_builder(folder: Path, splits: Mapping[str, Sequence[Iterable[np.ndarray]]]) -> tfds.core.DatasetBuilder:
    return _TokenizedDocuments(splits, data_dir=folder, file_format="array_record")


class _TokenizedDocuments(tfds.core.ShardBasedBuilder):
    """Token ids of documents, in the given order.

    The files are given because a builder without them holds a gigabyte of records in memory, and needs TensorFlow
    for more.
    """

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, splits: Mapping[str, Sequence[Iterable[np.ndarray]]], **options: Any) -> None:
        self._splits = splits
        super().__init__(**options)

    def _info(self) -> tfds.core.DatasetInfo:
        # Bytes take half the time of a list of numbers.
        tokens = tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding=tfds.features.Encoding.BYTES)
        features = tfds.features.FeaturesDict({"tokens": tokens})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, list[Callable[[], Iterator[_Example]]]]:
        return {name: [functools.partial(_examples, file) for file in files] for name, files in self._splits.items()}


def _examples(documents: Iterable[np.ndarray]) -> Iterator[_Example]:
    parts = (
        tokens[start : start + _RECORD_TOKENS]
        for tokens in documents
        for start in range(0, len(tokens), _RECORD_TOKENS)
    )
    for key, part in enumerate(parts):
        yield key, {"tokens": part}
