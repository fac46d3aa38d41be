"""Fixtures of the data tests: a tiny corpus, and the comparison of measured rates with expected ones."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation
from bertjax.data.text.vocabularies import SPECIALS

STEMS = ("walk", "talk", "jump", "the", "a", "cat", "dog", "tree", "house", "river", "old", "new", "under", "we", ".")
PIECES = ("##s", "##ed", "##ing")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    """Relative paths are in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def check_rate() -> Callable[..., None]:
    """Checks that `count` of `total` independent trials agrees with probability `expected` to 3 standard errors."""

    def check(name: str, count: int, total: int, expected: float) -> None:
        rate, error = count / total, (expected * (1 - expected) / total) ** 0.5
        print(f"RATE {name}: {rate:.5f} of {total}, expected {expected:.5f}, {(rate - expected) / error:+.2f} SE")
        assert abs(rate - expected) <= 3 * error

    return check


@pytest.fixture
def check_uniform() -> Callable[..., None]:
    """Checks by a chi-squared statistic that counts are of equally likely outcomes, to 3 standard errors."""

    def check(name: str, counts: np.ndarray) -> None:
        mean, freedom = counts.mean(), len(counts) - 1
        error = (((counts - mean) ** 2).sum() / mean - freedom) / (2 * freedom) ** 0.5
        print(f"RATE {name}: uniform over {len(counts)}, {counts.sum()} draws, chi-squared {error:+.2f} SE")
        assert abs(error) <= 3

    return check


@pytest.fixture
def check_mean() -> Callable[..., None]:
    """Checks the mean of samples of known variance, to 3 standard errors."""

    def check(name: str, samples: np.ndarray, expected: float, variance: float) -> None:
        mean, error = float(samples.mean()), (variance / len(samples)) ** 0.5
        deviation = (mean - expected) / error
        print(f"RATE {name}: {mean:.5f} of {len(samples)}, expected {expected:.5f}, {deviation:+.2f} SE")
        assert abs(deviation) <= 3

    return check


@pytest.fixture(scope="session")
def tiny_documents() -> list[list[str]]:
    """Thirty documents of one to nine sentences; many words have more than one piece."""
    rng = random.Random(0)

    def word() -> str:
        stem = rng.choice(STEMS)
        return stem if stem == "." else stem + rng.choice(("", "", "s", "ed", "ing", "inged"))

    return [[" ".join(word() for _ in range(rng.randint(1, 14))) for _ in range(rng.randint(1, 9))] for _ in range(30)]


def write_text(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory, tiny_documents) -> Path:
    """The documents as a text file, one sentence per line."""
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", tiny_documents)


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory) -> Path:
    """A vocabulary that covers every word of the documents in one to three pieces."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in (*SPECIALS, *STEMS, *PIECES)))
    return path


@pytest.fixture(scope="session")
def tiny_values(tiny_text, vocab_file) -> dict[str, object]:
    """The config values of the tiny corpus, without `prepared_dir`."""
    return {
        "source": str(tiny_text),
        "valid_source": "",
        "valid_fraction": 0.3,
        "text_field": "text",
        "on_bad_row": "stop",
        "lines": "sentence",
        "vocab_file": str(vocab_file),
        "vocab_size": 100,
        "lowercase": True,
        "workers": 1,
    }


@pytest.fixture
def make_config(tiny_values, tmp_path) -> Callable[..., CorpusConfig]:
    """Makes a config of the tiny corpus, prepared under `tmp_path`, with the given keys changed."""

    def make(**changes: object) -> CorpusConfig:
        values = {**tiny_values, "prepared_dir": str(tmp_path / "prepared"), **changes}
        return CorpusConfig(**values)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def tiny_corpus(tiny_values, tmp_path_factory) -> Path:
    """The folder of the prepared tiny corpus. Tests copy it."""
    config = CorpusConfig(**tiny_values, prepared_dir=str(tmp_path_factory.mktemp("tiny")))
    preparation = Preparation(config, Path("unused"))
    preparation.run()
    return preparation.folder


@pytest.fixture
def corpus(tiny_corpus, tmp_path) -> Corpus:
    """The tiny corpus in a folder of the test's own, because readers write counts into it."""
    return Corpus(shutil.copytree(tiny_corpus, tmp_path / "corpus"))


@pytest.fixture
def prepare(tmp_path) -> Callable[[CorpusConfig], Corpus]:
    """Prepares the text of a config and opens it."""

    def run(config: CorpusConfig) -> Corpus:
        preparation = Preparation(config, tmp_path / "unused")
        preparation.run()
        return Corpus(preparation.folder)

    return run
