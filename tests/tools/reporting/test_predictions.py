import sys

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting import predictions
from tests.tools.reporting import whole
from tests.tools.reporting.pages import Page


def test_records_are_a_table(monkeypatch):
    monkeypatch.setattr(predictions, "_MOST", 3)
    record = {"text": "뜨거운 <b>", "label": "ja", "probabilities": {"ja": 0.75, "nein": 0.25}}
    records = [{"error": "line 1: empty"}, record, {**record, "truncated": True, "entities": [{"type": "PER"}]}, record]
    content = Page("".join(predictions.write(records)))
    header, bad, good, long = content.tables["records"]
    assert header == ["error", "text", "label", "probabilities.ja", "probabilities.nein", "truncated", "entities"]
    assert bad == ["line 1: empty", *[""] * 6] and good == ["", "뜨거운 <b>", "ja", "0.75", "0.25", "", ""]
    assert long[5:] == ["true", '[{"type": "PER"}]']
    assert "The table has the first 3 of 4 records." in content.sections["verdict"]


def test_rows_beyond_those_that_are_drawn_are_data():
    records = [{"text": f"text </script> {n}", "score": n / 4} for n in range(450)]
    content = Page("".join(predictions.write(records)))
    assert content.tables["records"][200:] == [["text </script> 199", "49.75"]]
    assert content.data["records"] == [[record["text"], str(record["score"])] for record in records[200:]]
    assert "records" not in Page("".join(predictions.write(records[:200]))).data


def test_missing_libraries_are_an_error_before_anything_is_predicted(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    records = iter([{"label": "a"}])
    with pytest.raises(UserError, match="the libraries of reports"):
        next(predictions.write(records))
    assert next(records) == {"label": "a"}


@pytest.mark.parametrize("errors", [0, 2])
def test_extractive_summaries_are_marked_in_their_articles(errors):
    extract = next(sample for sample in whole.SAMPLES if sample["kind"] == "extract")
    content = Page("".join(predictions.write([*[{"error": "bad"}] * errors, extract])))
    assert content.sentences and "records" not in content.tables
