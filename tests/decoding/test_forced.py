"""Scores of given targets."""

import jax
import numpy as np
import pytest

from bertjax.decoding.forced import score_targets
from tests.decoding import toys
from tests.decoding.toys import EOS, config, make_tables, search


@pytest.mark.parametrize("count_eos", [True, False])
def test_hypotheses_get_the_score_of_beam_search(count_eos):
    settings = config(num_beams=3, length_penalty="length", alpha=1.0, count_eos=count_eos)
    tables = make_tables(0, 8, 7)
    found = search(tables, np.zeros(8, int), np.full(8, 6), settings)
    ids = found.ids[:, 0]
    logits = [[toys.logits_after(tables[row], ids[row, :place]) for place in range(6)] for row in range(8)]
    score = jax.jit(score_targets, static_argnums=(3, 4))
    ours = score(np.array(logits), ids, found.lengths[:, 0], settings, EOS)
    assert len(set(found.lengths[:, 0].tolist())) > 2
    np.testing.assert_array_equal(ours.ids, found.ids)
    np.testing.assert_array_equal(ours.lengths, found.lengths)
    np.testing.assert_allclose(ours.log_probabilities, found.log_probabilities, rtol=1e-5)
    np.testing.assert_allclose(ours.scores, found.scores, rtol=1e-5)
