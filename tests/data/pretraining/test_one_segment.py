import dataclasses
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.cutting import DRAWS, LENGTHS, PROBABILITIES, instances_of, one_segment, sentences, tokens


@settings(max_examples=50)
@given(LENGTHS, st.integers(8, 60), PROBABILITIES, st.booleans(), DRAWS)
def test_one_segment_covers_each_token_once(lengths, seq_len, short, whole, draws):
    config = dataclasses.replace(one_segment(seq_len, short), whole_sentences=whole)
    rows = instances_of(sentences(lengths), config, *draws)
    np.testing.assert_array_equal(rows["document_a"], rows["document_b"])
    assert not rows["length_b"].any()
    assert not rows["is_random_next"].any()
    assert ((rows["length_a"] >= 1) & (rows["length_a"] <= seq_len - 2)).all()
    for document, sizes in enumerate(lengths):
        own = rows[rows["document_a"] == document]
        text = [token for row in own for token in tokens(row, "a")]
        assert text == [(document, place) for place in range(sum(sizes))]
        ends = {*itertools.accumulate(sizes)}
        assert not whole or all(
            n == seq_len - 2 or start + n in ends for start, n in own[["start_a", "length_a"]].tolist()
        )


@settings(max_examples=50)
@given(LENGTHS, st.integers(8, 60), DRAWS)
def test_full_sentences_fill_the_row_and_only_long_ones_are_cut(lengths, seq_len, draws):
    rows, room = instances_of(sentences(lengths), one_segment(seq_len, 0.0), *draws), seq_len - 2
    for document, sizes in enumerate(lengths):
        bounds = [0, *itertools.accumulate(sizes)]
        for row in rows[rows["document_a"] == document]:
            start, stop = int(row["start_a"]), int(row["start_a"] + row["length_a"])
            after = [bound for bound in bounds if bound > stop]
            if stop in bounds:
                assert not after or after[0] - start > room
            else:
                before = max(bound for bound in bounds if bound <= start)
                assert stop - start == room
                assert after[0] - before > room
                assert not any(start < bound < stop for bound in bounds)


@settings(max_examples=50)
@given(LENGTHS, st.integers(8, 60), DRAWS)
def test_pieces_are_full_except_the_last_of_a_document(lengths, seq_len, draws):
    config = dataclasses.replace(one_segment(seq_len, 0.0), whole_sentences=False)
    rows, room = instances_of(sentences(lengths), config, *draws), seq_len - 2
    for document, sizes in enumerate(lengths):
        own = rows[rows["document_a"] == document]["length_a"].tolist()
        assert own[:-1] == [room] * (len(own) - 1)
        assert own[-1] == (sum(sizes) - 1) % room + 1
