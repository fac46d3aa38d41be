import logging
import random
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.parts import Parts
from bertjax.data.text import word_counts

WORD = st.text("ab\u00e9\u6771\U0001f600#-", min_size=1, max_size=3)


def counted(blocks: list[Counter[str]], folder: Path) -> tuple[word_counts.TrainingCounts, Parts]:
    parts = Parts(folder / "words", ".txt")
    word_counts.write_parts(((1, counts) for counts in blocks), parts)
    return word_counts.most_frequent(parts.paths, folder), parts


def by_frequency(item: tuple[str, int]) -> tuple[int, int, str]:
    return -item[1], zlib.crc32(item[0].encode()), item[0]


@given(
    st.lists(st.dictionaries(WORD, st.integers(1, 5), max_size=6), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(2, 4),
    st.integers(1, 20),
)
def test_counts_do_not_depend_on_the_parts(tmp_path_factory, blocks, different, words, files, limit):
    total = sum(map(Counter, blocks), Counter())
    with pytest.MonkeyPatch.context() as patch:
        limits = {"_DIFFERENT_WORDS": different, "_WORDS": words, "_FILES": files, "MAX_WORDS": limit}
        for name, value in limits.items():
            patch.setattr(word_counts, name, value)
        found, parts = counted(list(map(Counter, blocks)), tmp_path_factory.mktemp("counts"))
    assert list(found.words.items()) == sorted(total.items(), key=by_frequency)[:limit]
    assert found.characters == Counter("".join(word * count for word, count in total.items()))
    assert parts.num_documents == len(blocks)


def test_a_part_ends_when_it_has_enough_words(tmp_path, monkeypatch):
    monkeypatch.setattr(word_counts, "_DIFFERENT_WORDS", 3)
    monkeypatch.setattr(word_counts, "_WORDS", 10)
    blocks = [Counter(a=1), Counter(b=1), Counter(c=1), Counter(a=9), Counter(a=1), Counter(z=1)]
    found, parts = counted(blocks, tmp_path)
    assert [path.read_text() for path in parts.paths] == ["a 1\nb 1\nc 1\n", "a 10\n", "z 1\n"]
    assert [int(path.stem) for path in parts.paths] == [3, 5, 6]
    assert found.words == {"a": 11, "b": 1, "c": 1, "z": 1}


def test_words_beyond_the_limit_are_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(word_counts, "MAX_WORDS", 2)
    with caplog.at_level(logging.INFO):
        found, _ = counted([Counter(c=1, b=1, a=1, z=5)], tmp_path)
    first = min("abc", key=lambda word: by_frequency((word, 1)))
    assert found.words == {"z": 5, first: 1} and found.characters == Counter("abczzzzz")
    assert "training on the 2 most frequent words" in caplog.text


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_different_words(tmp_path, monkeypatch):
    for name, value in (("_DIFFERENT_WORDS", 2000), ("_FILES", 4), ("MAX_WORDS", 1000)):
        monkeypatch.setattr(word_counts, name, value)

    def peak(blocks: int) -> int:
        parts = Parts(tmp_path / str(blocks), ".txt")
        words = ((1, Counter(f"{random.getrandbits(60):x}" for _ in range(500))) for _ in range(blocks))
        tracemalloc.start()
        word_counts.write_parts(words, parts)
        assert len(word_counts.most_frequent(parts.paths, tmp_path).words) == 1000
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return memory

    few, many = peak(12), peak(60)
    print(f"MEMORY {few} bytes for 6,000 different words, {many} for 30,000")
    assert many < 1.3 * few
