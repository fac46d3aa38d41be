"""Files that a reader of training data does not know are refused by name, instead of read as lines."""

import pytest

from bertjax.data.codecs import minimal_pairs
from bertjax.data.codecs.questions import questions
from bertjax.data.codecs.summarization import article_formats
from bertjax.data.codecs.summarization.article_formats import ArticleFormat
from bertjax.data.codecs.tagging import tagged_words
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.translation.parallel_text import ParallelText, ParallelTextConfig
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows
from bertjax.data.readers.sources import TextSource
from bertjax.errors import UserError

STOP = BadRows("stop")
MARKUP = (".xml", ".sgm", ".xlf", ".docx", ".pdf", ".html.gz")
PAIRS = {"valid_source": "", "valid_target": "", "test_source": "", "test_target": "", "valid_fraction": 0.5}
PAIRS |= {"source_column": "", "target_column": "", "header": True, "separator": "", "on_bad_row": "stop"}
# For each reader, the suffixes of tables and JSON that it does not read.
READERS = {
    "text": (lambda name: TextSource(name, "text", "stop").documents(), ()),
    "tables": (lambda name: tables.read_rows(name, "data.source", True, "\t", STOP), ()),
    "tags": (lambda name: tagged_words.read_sentences(name, "data.source", ColumnsConfig(0, -1), STOP), ()),
    "questions": (
        lambda name: questions.read_questions(name, "data.source", STOP, aligned=True),
        (".csv", ".tsv", ".TMX"),
    ),
    "pairs": (
        lambda name: ParallelText(
            ParallelTextConfig(source="a.en", target=name, source_prefix=(), target_prefix=(), **PAIRS), "train", 0
        ).pairs(),
        (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".TMX"),
    ),
    "minimal pairs": (lambda name: minimal_pairs.read(name, "data.source", None, 0, "stop"), ()),
    "articles": (
        lambda name: article_formats.read(
            name, "data.source", ArticleFormat("file", "article", "summary", "", "numbers"), False, STOP
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_unknown_structured_files_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.en").write_text("text\tO\n")
    read, others = READERS[name]
    for suffix in (*others, *MARKUP):
        (tmp_path / f"a{suffix}").write_text("text\tO\n")
        kind = suffix.lower().removesuffix(".gz")
        with pytest.raises(UserError, match=rf"^config key data\.(source|target)=a{suffix}: got a \{kind} file"):
            list(read(f"a{suffix}"))
