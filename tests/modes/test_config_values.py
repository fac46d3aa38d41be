"""Which values a config has after the command line, weights and the rows to score have changed it."""

from pathlib import Path

import pytest

from bertjax.modes import config_values

DATA = {"source": "t", "target": "u", "valid_source": "v", "test_source": "", "valid_rows": 9, "seq_len": None}
CONFIG = {"num_scored": 5, "threshold": 0.5, "metrics": ["f1"], "data": DATA}


@pytest.mark.parametrize(
    ("overridden", "limits"), [((), (0, 0)), (("data.valid_rows",), (0, 9)), (("num_scored", "seed"), (5, 0))]
)
def test_all_rows_are_scored_except_where_the_command_line_limits_them(overridden, limits):
    found = config_values.without_limits(CONFIG, overridden)
    assert (found["num_scored"], found["data"]["valid_rows"]) == limits
    assert (CONFIG["num_scored"], DATA["valid_rows"]) == (5, 9)
    assert config_values.without_limits({"data": {}}, ()) == {"data": {}}


@pytest.mark.parametrize(
    ("sources", "reads_training", "expected"),
    [
        ({}, True, [("valid", ("t", "u", ""))]),
        ({"valid_source": "a"}, True, [("valid", ("t", "u", "a"))]),
        ({"test_source": "b"}, False, [("test", ("", "", "b"))]),
        ({"test_source": "b", "valid_source": "a"}, False, [("valid", ("", "", "a")), ("test", ("", "", "b"))]),
    ],
)
def test_each_split_is_the_validation_split_of_its_config(sources, reads_training, expected):
    found = config_values.splits_to_score(CONFIG, sources, reads_training=reads_training)
    keys = ("source", "target", "valid_source")
    assert [(split, tuple(map(config["data"].get, keys))) for split, config in found] == expected


def test_settings_of_weights_replace_what_neither_command_line_nor_data_state():
    stated = {"threshold": 0.2, "metrics": ["accuracy"], "num_scored": 1, "data.seq_len": 8, "data.valid_rows": 1}
    free = ("threshold", "metrics", "data.seq_len", "data.valid_rows")
    found = config_values.with_settings(Path("run"), stated, CONFIG, {"metrics"}, free)
    assert found == {**CONFIG, "threshold": 0.2, "data": {**DATA, "seq_len": 8}}
