import dataclasses
import unicodedata

import pytest

from bertjax.data.codecs.evaluation_texts import Sources, SourcesConfig
from bertjax.errors import UserError
from tests.data.files import write
from tests.data.readers import test_beir as beir

CONFIG = SourcesConfig()


def test_positives_of_a_folder_to_mine_are_its_relevant_documents(tmp_path):
    source = str(beir.write(tmp_path / "beir"))
    found = Sources(dataclasses.replace(CONFIG, source=source, qrels="test")).read()
    assert found.relevant == {"cat": {"the cat": 1}}
    assert found.documents == ["dogs the dog", "the bird", "the cat"]


def test_texts_to_mine_are_equal_in_all_normalization_forms():
    stored = unicodedata.normalize("NFD", "한국어")
    write("a.tsv", f"query\tpositive\nq\t{stored}\nr\t한국어\n")
    assert Sources(dataclasses.replace(CONFIG, source="a.tsv")).read().documents == [stored]
    write("a.tsv", f"query\tpositive\n{stored}\t한국어\n")
    with pytest.raises(UserError, match="the same text in both columns"):
        Sources(dataclasses.replace(CONFIG, source="a.tsv")).read()


@pytest.mark.parametrize(
    "changes",
    [
        {"text_columns": ("positive", "query")},
        {"label_column": "label"},
        {"text_field": "query"},
        {"header": False},
        {"separator": ";"},
        {"on_bad_row": "skip"},
    ],
)
def test_the_digest_depends_on_how_a_table_is_read(changes):
    write("a.tsv", "query\tpositive\nthe cat\tcats\n")
    config = dataclasses.replace(CONFIG, valid_source="a.tsv")
    assert Sources(dataclasses.replace(config, **changes)).fingerprint() != Sources(config).fingerprint()
