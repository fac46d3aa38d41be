import numpy as np
import pytest

from benchmarks import gpu_tasks

LAYER = {"num_layers": 1, "hidden_size": 2, "intermediate_size": 8}


def batch(rows, source, target):
    return {"input_ids": np.zeros((rows, source)), "labels": np.zeros((rows, target))}


def test_the_operations_of_pairs_by_hand():
    # A multiply-add is two operations, forward once and backward twice. One row of one token on each side.
    encoder = 4 * 2 * 2 + 2 * 2 * 8  # query, key, value, output; the feed-forward layer
    memory = 2 * 2 * 2  # keys and values for the decoder
    decoder = 6 * 2 * 2 + 2 * 2 * 8  # those of self-attention, query and output of the other; feed-forward
    attention = (1 + 1 + 1) * 2 * 2  # three queries, of a key each; the product and the sum of values
    output = 2 * 10
    expected = 6 * (encoder + memory + decoder + attention + output)
    model = {**LAYER, "num_decoder_layers": 1}
    assert gpu_tasks.pair_flops(model, 10, batch(1, 1, 1)) == expected
    assert gpu_tasks.pair_flops(model, 10, batch(7, 1, 1)) == 7 * expected
    summarizer = {**LAYER, "decoder_layers": 1, "decoder_intermediate": 16}
    assert gpu_tasks.pair_flops(summarizer, 10, batch(1, 1, 1)) == expected + 6 * 2 * 2 * 8


def test_the_base_model_is_the_papers():
    """Vaswani et al. 2017, table 3: 65 M parameters, of which 37,000 x 512 are embeddings; without attention."""
    model = {"num_layers": 6, "num_decoder_layers": 6, "hidden_size": 512, "intermediate_size": 2048}
    without = gpu_tasks.pair_flops(model, 37_000, batch(1, 1, 1)) - 6 * 3 * 12 * 512
    assert without / 6 == pytest.approx(63e6, rel=0.01)


def test_articles_are_counted_where_they_begin():
    segment_ids = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]])  # the last row fills the batch
    first_sentences = np.array([0, 5, 0, 0])
    assert gpu_tasks.count_articles({"segment_ids": segment_ids, "first_sentences": first_sentences}) == 2


def test_every_question_has_a_case(tmp_path):
    names = [case.name for case in gpu_tasks.cases(gpu_tasks.FULL, tmp_path)]
    models = ("translation base", "translation big", "BertSum base", "BertSumAbs base")
    assert names == [f"{model}, {work}" for model in models for work in ("training", "prediction")]


def test_a_case_that_fails_is_told(tmp_path):
    case = next(gpu_tasks.cases(gpu_tasks.SMOKE, tmp_path))  # there is no text
    result = gpu_tasks.attempt(case, gpu_tasks.SMOKE, tmp_path)
    assert "source.txt" in result["error"]
    line = gpu_tasks.row({"name": case.name, "batch_size": 4, "unit": "x", **result}, 1e12)
    assert line[:3] == ["translation tiny, training", "4", "x"]
    assert len(line) == len(gpu_tasks._HEADER)
