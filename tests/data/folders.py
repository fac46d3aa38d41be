"""Looking into the folders of preparations."""

import hashlib
from pathlib import Path

from bertjax.data import corpus
from bertjax.data.corpus import CorpusConfig, Preparation

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


def texts_of(prepared: corpus.Corpus, split: str) -> list[str]:
    """The documents of a split, of words whose pieces are all in the vocabulary."""
    count = prepared.splits[split].sentences.num_documents
    tokens = prepared.splits[split].read(range(count))
    return [" ".join(prepared.tokenizer.vocab[i] for i in ids).replace(" ##", "") for ids in tokens]
