"""Documents of a few sentences, and functions that return the instances and tokens of each."""

import itertools

import numpy as np
from hypothesis import strategies as st

from bertjax.data.pretraining.sentence_pairs import PairsConfig, Sentences, make_instances

Token = tuple[int, int]  # a document, and a position in it
Lengths = list[list[int]]  # for each document, the number of tokens of each sentence

BERT = PairsConfig(seq_len=128, next_sentence=True, whole_sentences=False, short_seq_prob=0.1, random_next_prob=0.5)
LENGTHS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=10), min_size=2, max_size=6)
PROBABILITIES = st.sampled_from([0.0, 0.1, 0.5, 1.0])
DRAWS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))  # seed and epoch
# Plain values, because the type checker draws random numbers, which a Hypothesis strategy must not do.
SETTINGS = st.tuples(st.integers(8, 60), PROBABILITIES, PROBABILITIES)
MANY = 40_000


def pairs(seq_len: int, short: float, random_next: float) -> PairsConfig:
    return PairsConfig(seq_len, True, False, short, random_next)


def instances_of(text: Sentences, config: PairsConfig, seed: int, epoch: int) -> np.ndarray:
    return make_instances(text, np.arange(text.num_documents), config, 1 + config.num_texts, seed, epoch)


def sentences(lengths: Lengths) -> Sentences:
    return Sentences(np.array(list(itertools.chain(*lengths)), np.int32), np.array([len(d) for d in lengths], np.int32))


def tokens(row: np.void, side: str) -> list[Token]:
    document, start = int(row[f"document_{side}"]), int(row[f"start_{side}"])
    return [(document, start + i) for i in range(row[f"length_{side}"])]


def one_segment(seq_len: int, short: float) -> PairsConfig:
    return PairsConfig(seq_len, False, True, short, 0.0)
