"""Looking into the folders of preparations."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertjax.data.pretraining import corpus
from bertjax.data.pretraining.corpus import CorpusConfig, Preparation

TRAINED = {"vocab_file": "", "vocab_size": 60}


def digests(folder: Path) -> dict[str, str]:
    """Of every file of a prepared folder: none of them tells of time or place."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def fingerprint(config: CorpusConfig) -> str:
    return Preparation(config, Path("unused")).fingerprint


def left_behind(config: CorpusConfig) -> list[str]:
    """What stands beside the locks."""
    return sorted(path.name for path in Path(config.prepared_dir).iterdir() if path.suffix != ".lock")


def read_whole(split: corpus.Split, documents: Sequence[int] | None = None) -> list[np.ndarray]:
    """The token ids of documents, or of all, by the lengths of their sentences."""
    first, lengths = split.sentences.first, np.asarray(split.sentences.lengths)
    numbers = np.arange(split.sentences.num_documents) if documents is None else np.array(documents)
    whole = np.array([lengths[first[i] : first[i + 1]].sum() for i in numbers])
    return split.read(numbers, np.zeros_like(numbers), whole)


def texts_of(prepared: corpus.Corpus, split: str) -> list[str]:
    """The documents of a split, of words whose pieces are all in the vocabulary."""
    tokens = read_whole(prepared.splits[split])
    return [" ".join(prepared.tokenizer.vocab[i] for i in ids).replace(" ##", "") for ids in tokens]


def counts_of(prepared: corpus.Corpus) -> dict[str, dict[str, int]]:
    """What the preparation counted in each split."""
    return json.loads((prepared.folder / "manifest.json").read_text())["counts"]
