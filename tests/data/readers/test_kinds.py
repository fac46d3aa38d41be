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
from tests.data.files import write
from tests.experiments.commands import settings_of

STOP = BadRows("stop")
MARKUP = (".xml", ".sgm", ".xlf", ".docx", ".pdf", ".html.gz")
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
            settings_of(ParallelTextConfig, "translation", source="a.en", target=name), "train", 0
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
def test_unknown_structured_files_are_refused(name):
    write("a.en", "text\tO\n")
    read, others = READERS[name]
    for suffix in (*others, *MARKUP):
        write(f"a{suffix}", "text\tO\n")
        kind = suffix.lower().removesuffix(".gz")
        with pytest.raises(UserError, match=rf"^config key data\.(source|target)=a{suffix}: got a \{kind} file"):
            list(read(f"a{suffix}"))
