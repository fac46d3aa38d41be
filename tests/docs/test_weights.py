"""The tables of published encoders match the records of families."""

from docs import build_weights


def test_the_tables_are_up_to_date():
    found = build_weights.PAGE.read_text(), build_weights.README.read_text()
    assert found == (build_weights.page(), build_weights.readme()), "run python -m docs.build_weights"
