import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import random
from bertjax.data.pretraining import sentence_pairs
from bertjax.data.pretraining.sentence_pairs import INSTANCE, PairsConfig, Sentences, make_instances
from bertjax.data.random import Stream
from bertjax.errors import UserError
from tests.data.cutting import (
    BERT,
    DRAWS,
    LENGTHS,
    MANY,
    SETTINGS,
    Lengths,
    Token,
    instances_of,
    one_segment,
    pairs,
    sentences,
    tokens,
)


def coins(words: list[int], first: int) -> Iterator[int]:
    """Yields the bits of two of every four words."""
    for start in range(first, len(words), 4):
        for word in words[start : start + 2]:
            yield from (word >> bit & 1 for bit in range(32))


class Walk:
    """Cuts one document as google-research/bert does: chunk by chunk, and truncates pairs token by token."""

    def __init__(self, lengths: Lengths, config: PairsConfig, seed: int, epoch: int) -> None:
        places = [itertools.count() for _ in lengths]
        self._documents = [
            [[(d, next(places[d])) for _ in range(length)] for length in document] for d, document in enumerate(lengths)
        ]
        self._config, self._seed, self._epoch = config, seed, epoch

    def rows(self, document: int) -> Iterator[tuple[list[Token], list[Token], bool]]:
        room = self._config.seq_len - 3
        short, length, *_ = self._words(Stream.CHUNKS, document, 0)
        target = 2 + (length * (room - 1) >> 32) if short / 2**32 < self._config.short_seq_prob else room
        rest = list(self._documents[document])
        while rest:
            number = len(self._documents[document]) - len(rest)  # of the chunk's first sentence
            chunk: list[list[Token]] = []
            while rest and sum(map(len, chunk)) < target:
                chunk.append(rest.pop(0))
            split, coin, other, start, *_ = self._words(Stream.CHUNKS, document, number + 1)
            size = 1 + (split * (len(chunk) - 1) >> 32) if len(chunk) > 1 else 1
            a, unused = list(itertools.chain(*chunk[:size])), chunk[size:]
            is_random = not unused or coin / 2**32 < self._config.random_next_prob
            if is_random:
                rest = unused + rest
                others = [text for d, text in enumerate(self._documents) if d != document]
                text = others[other * len(others) >> 32]
                b = []
                for sentence in text[start * len(text) >> 32 :]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
            else:
                b = list(itertools.chain(*unused))
            words = self._words(Stream.TRUNCATION, document, number + 1)
            self._truncate(a, b, room, [coins(words, 0), coins(words, 2)])
            yield a, b, is_random

    def _words(self, stream: Stream, document: int, sub_index: int) -> list[int]:
        return random.bits(self._seed, stream, self._epoch, np.array([document]), 32, sub_index)[0].tolist()

    @staticmethod
    def _truncate(a: list[Token], b: list[Token], room: int, coins: list[Iterator[int]]) -> None:
        while len(a) + len(b) > room:
            longer, coin = (a, coins[0]) if len(a) > len(b) else (b, coins[1])
            longer.pop(0 if next(coin) else -1)


@settings(max_examples=100)
@given(LENGTHS, SETTINGS, DRAWS)
def test_instances_equal_a_walk_chunk_by_chunk(lengths, values, draws):
    config = pairs(*values)
    rows = instances_of(sentences(lengths), config, *draws)
    assert rows.dtype == INSTANCE
    walk = Walk(lengths, config, *draws)
    for document in range(len(lengths)):
        own = rows[rows["document_a"] == document]
        assert [(tokens(row, "a"), tokens(row, "b"), bool(row["is_random_next"])) for row in own] == list(
            walk.rows(document)
        )


@pytest.mark.parametrize(("next_sentence", "whole", "room"), [(True, False, 13), (False, True, 14), (False, False, 14)])
def test_short_documents_have_uniform_targets(next_sentence, whole, room, check_rate, check_uniform):
    # With sentences of one token, every row except a document's last is as long as the document's target.
    text = Sentences(np.full(MANY * room, 1, np.int32), np.full(MANY, room, np.int32))
    config = PairsConfig(16, next_sentence, whole, 0.1, 0.0)
    for probability in (0.1, 1.0):
        rows = instances_of(text, dataclasses.replace(config, short_seq_prob=probability), 0, 0)
        target = (rows["length_a"] + rows["length_b"])[rows["start_a"] == 0]
        assert len(target) == MANY
        # The random target of a short document may also be the maximum.
        check_rate(
            f"targets below the maximum at {probability}, pairs {next_sentence}",
            int((target < room).sum()),
            MANY,
            probability * (room - 2) / (room - 1),
        )
        check_uniform(
            f"short targets at {probability}, pairs {next_sentence}",
            np.bincount(target[target < room], minlength=room)[2:],
        )
    check_uniform(f"all targets, pairs {next_sentence}", np.bincount(target)[2:])
    rows = instances_of(text, dataclasses.replace(config, short_seq_prob=0.0), 0, 0)
    assert len(rows) == MANY


@settings(max_examples=40)
@given(LENGTHS, SETTINGS, st.booleans(), st.booleans(), DRAWS, st.data())
def test_instances_do_not_depend_on_other_documents(lengths, values, next_sentence, whole, draws, data):
    config = dataclasses.replace(pairs(*values), next_sentence=next_sentence, whole_sentences=whole)
    text = sentences(lengths)
    some = sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1))))
    every = instances_of(text, config, *draws)
    few = make_instances(text, np.array(some, np.int64), config, 1 + config.num_texts, *draws)
    assert few.tobytes() == every[np.isin(every["document_a"], some)].tobytes()


def test_the_size_of_parts_does_not_change_instances(monkeypatch):
    text = sentences([[3, 40, 5, 6, 7, 8]] * 50)
    expected = instances_of(text, pairs(16, 0.1, 0.5), 0, 0).tobytes()
    monkeypatch.setattr(sentence_pairs, "_PART", 7)
    assert instances_of(text, pairs(16, 0.1, 0.5), 0, 0).tobytes() == expected


def test_seq_len_can_be_the_maximum_of_its_type():
    rows = instances_of(sentences([[40_000], [40_000]]), pairs(2**15 - 1, 0.0, 0.5), 0, 0)
    assert (rows["length_a"].astype(int) + rows["length_b"]).tolist() == [2**15 - 4] * 2
    # Documents whose total number of tokens exceeds 32 bits.
    text = Sentences(np.full(3, 2**30, np.int32), np.ones(3, np.int32))
    rows = instances_of(text, one_segment(2**15 - 1, 0.0), 0, 0)
    assert rows["length_a"].sum(dtype=np.int64) == 3 * 2**30


@pytest.mark.parametrize("lengths", [[], [[3, 4, 5]]])
def test_a_random_next_sentence_requires_two_documents(lengths):
    with pytest.raises(UserError, match=f"got {len(lengths)} document.*blank lines between documents"):
        instances_of(sentences(lengths), BERT, 0, 0)
