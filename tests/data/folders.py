"""Functions that read folders of prepared text."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertjax.data.pretraining import corpus
from bertjax.data.pretraining.corpus import CorpusConfig, Preparation

TRAINED = {"vocab_file": "", "vocab_size": 60}


def digests(folder: Path) -> dict[str, str]:
    """Returns the digest of each file of a prepared folder. No file contains a time or a path of this machine."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def fingerprint(config: CorpusConfig) -> str:
    return Preparation(config, Path("unused")).fingerprint


def left_behind(config: CorpusConfig) -> list[str]:
    """Returns the files of `prepared_dir` other than locks."""
    return sorted(path.name for path in Path(config.prepared_dir).iterdir() if path.suffix != ".lock")


def read_whole(split: corpus.Split, documents: Sequence[int] | None = None) -> list[np.ndarray]:
    """Returns the token ids of some documents, or of all, located by the lengths of their sentences."""
    first, lengths = split.sentences.first, np.asarray(split.sentences.lengths)
    numbers = np.arange(split.sentences.num_documents) if documents is None else np.array(documents)
    whole = np.array([lengths[first[i] : first[i + 1]].sum() for i in numbers])
    return split.read(numbers, np.zeros_like(numbers), whole)


def texts_of(prepared: corpus.Corpus, split: str) -> list[str]:
    """Returns the documents of a split as text. All pieces must be in the vocabulary."""
    tokens = read_whole(prepared.splits[split])
    return [" ".join(prepared.tokenizer.vocab[i] for i in ids).replace(" ##", "") for ids in tokens]


def counts_of(prepared: corpus.Corpus) -> dict[str, dict[str, int]]:
    """Returns the counts that the preparation wrote for each split."""
    return json.loads((prepared.folder / "manifest.json").read_text())["counts"]
