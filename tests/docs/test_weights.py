"""The tables of published encoders match the records of families."""

from docs import build_weights


def test_the_tables_are_up_to_date():
    assert build_weights.PAGE.read_text() == build_weights.page(), "run python -m docs.build_weights"
    assert build_weights.README.read_text() == build_weights.readme(), "run python -m docs.build_weights"
