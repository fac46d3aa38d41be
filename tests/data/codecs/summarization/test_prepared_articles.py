import dataclasses
import json
import random

import numpy as np
import pytest

from bertjax.data.codecs.summarization import article_rows, summary_rows
from bertjax.data.codecs.summarization.article_rows import ArticleRowsConfig
from bertjax.data.codecs.summarization.article_text import LabelsConfig
from bertjax.data.codecs.summarization.articles import Article, Articles
from bertjax.data.codecs.summarization.limits import ArticleLimits, limit
from bertjax.data.codecs.summarization.oracle import oracle
from bertjax.data.codecs.summarization.prepared_articles import AbstractiveCodec, ExtractiveCodec
from bertjax.data.prepared import PreparationConfig, PreparedRows, ValidRows
from bertjax.data.rows.stored import fields_of, flat
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests.data.codecs.summarization.test_article_text import SENTENCES, articles
from tests.data.codecs.summarization.test_oracle import config as oracle_config

LABELS = LabelsConfig(ArticleLimits(2, 100, 1, 200, 2, 500), oracle_config())
WORDS = ["the", "cat", "sat", "dog", "ran", "off", "it", "rained", "all", "day"]
TOKENIZER = WordPiece([*SPECIALS, *summary_rows.TARGET_TOKENS, *WORDS], lowercase=True)


def extractive(config, labels=LABELS, seq_len=12):
    rows = ArticleRowsConfig(seq_len, "windows", 4, True, "bert")
    return ExtractiveCodec(config, labels, rows, TOKENIZER)


def abstractive(config, labels=LABELS, target_len=6):
    rows = ArticleRowsConfig(12, "cut", 4, True, "bert")
    return AbstractiveCodec(config, labels, rows, TOKENIZER, target_len)


def prepare(codec, home, **config):
    rows = PreparedRows(codec, home, PreparationConfig(**config))
    rows.run()
    return rows


def write(folder, count, name):
    """Writes articles, of which every fifth is too short for training."""
    draw = random.Random(name)
    made = []
    for number in range(count):
        sentences = [
            " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
            for _ in range(1 if number % 5 == 4 else draw.randint(2, 6))
        ]
        made.append({"article": sentences, "summary": draw.sample(sentences, min(2, len(sentences)))})
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(folder / name)


@pytest.fixture
def sources(tmp_path):
    names = {"source": "train", "valid_source": "valid", "test_source": "test"}
    return articles(tmp_path, **{key: write(tmp_path, 40, f"{name}.jsonl") for key, name in names.items()})


def limited(config, split):
    """Returns the articles of a split with the oracle's labels. Training articles out of limits are dropped."""
    for article in Articles(config, split, 0, True).articles():
        chosen = oracle(article.sentences, article.summary, LABELS.oracle)
        found = limit(article, chosen, LABELS.limits, drops=split == "train")
        if not isinstance(found, str):
            yield found


def same(fields, rows):
    expected = flat(fields_of(rows))
    found = flat(fields)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_extractive_rows_have_the_labels_of_the_oracle(tmp_path, sources):
    codec = extractive(sources)
    rows, train = prepare(codec, tmp_path / "kept"), list(limited(sources, "train"))
    expected = []
    for each in train:
        for row in article_rows.rows(each.sentences, TOKENIZER, codec.rows):
            starts = np.flatnonzero(row.inputs["sentence_starts"])
            labels, weights = np.zeros((2, len(row.inputs["input_ids"])), np.float32)
            for position, number in zip(starts, row.part.covers, strict=True):
                labels[position] = number in row.part.owns and each.labels[number]
                weights[position] = number in row.part.owns
            inputs = {name: row.inputs[name] for name in codec.inputs}
            expected.append({**inputs, "labels": labels, "label_weights": weights})
    same(rows.fields, expected)
    assert len(rows.fields["first_sentences"]) > len(train) > 20
    report = rows.report
    assert report["rows"] == {"train": len(train), "valid": 40, "test": 40}
    assert sum(report["left_out"].values()) == 40 - len(train) >= 8
    assert report["articles_without_labels"] == sum(not any(each.labels) for each in train)


def test_abstractive_rows_have_targets_of_different_lengths(tmp_path, sources):
    rows = prepare(abstractive(sources), tmp_path / "kept")
    expected, cut = [], np.zeros(2, int)
    for each in limited(sources, "train"):
        (row,) = article_rows.rows(each.sentences, TOKENIZER, rows_config := abstractive(sources).rows)
        *target, end = summary_rows.target(each.summary, TOKENIZER, rows_config.words).tolist()
        labels = np.array([*target[:5], end], np.int32)
        expected.append({**{name: row.inputs[name] for name in AbstractiveCodec.inputs}, "labels": labels})
        cut += np.array([row.is_cut, len(target) > 5])
    same(rows.fields, expected)
    assert [rows.report[f"{name}_truncated"] for name in ("articles", "summaries")] == cut.tolist() and cut.min() > 0
    assert len(set(rows.fields["labels"].lengths.tolist())) > 1


@pytest.mark.parametrize("codec", [extractive, abstractive])
def test_evaluation_articles_have_labels_and_none_is_dropped(tmp_path, sources, codec):
    codec = codec(sources)
    rows, alone = prepare(codec, tmp_path / "kept"), ValidRows(dataclasses.replace(codec, articles=sources))
    for split in ("valid", "test"):
        expected = list(limited(sources, split))
        assert len(expected) == 40 and any(any(each.labels) for each in expected)
        for found in (rows, alone):
            restored = list(map(codec.limited, found.held_out(split)))
            assert [each._replace(article=each.article._replace(gold=None)) for each in restored] == expected


def test_a_tokenizer_that_truncates_at_the_start_is_refused(tmp_path):
    codec = extractive(articles(tmp_path))
    template = dataclasses.replace(TOKENIZER.template, truncates_left=True)
    with pytest.raises(UserError, match="truncation_side of the tokenizer: got 'left', which removes the first senten"):
        dataclasses.replace(codec, tokenizer=TOKENIZER.with_template(template))


def test_other_settings_are_prepared_separately(tmp_path, sources):
    other_limits = dataclasses.replace(LABELS, limits=dataclasses.replace(LABELS.limits, max_words=7))
    other_oracle = dataclasses.replace(LABELS, oracle=dataclasses.replace(LABELS.oracle, num_sentences=1))
    codecs = [
        *(extractive(sources), extractive(sources, other_limits), extractive(sources, other_oracle)),
        *(extractive(sources, seq_len=13), extractive(dataclasses.replace(sources, splitter="punkt"))),
        *(abstractive(sources), abstractive(sources, target_len=7)),
    ]
    other_units = dataclasses.replace(LABELS.oracle, letters="unicode", units="characters")
    codecs += [extractive(sources, dataclasses.replace(LABELS, oracle=other_units))]
    assert len({PreparedRows(codec, tmp_path, PreparationConfig()).folder for codec in codecs}) == 8
    has_units = ["'units'" in str(codec.key()) for codec in codecs]
    assert has_units == [*[False] * 7, True], "rows that are older than the key stay valid"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            (9, 100, 1, 200, 2, 500),
            r"min_sentences; .*Fix: lower data\.limits\.min_sentences \(now 9\), or .*min_words",
        ),
        ((1, 100, 1, 200, 99, 500), r"min_summary_words; .*Fix: lower data\.limits\.min_summary_words\.$"),
    ],
)
def test_limits_that_drop_all_articles_are_an_error(tmp_path, limits, message):
    labels = LabelsConfig(ArticleLimits(*limits), LABELS.oracle)
    rows = PreparedRows(abstractive(articles(tmp_path), labels), tmp_path / "kept", PreparationConfig())
    with pytest.raises(UserError, match=rf"data\.limits: .* drop all .* split train: \d+ by data\.limits\.{message}"):
        rows.run()
    assert not rows.is_finished and not any(path.is_dir() for path in (tmp_path / "kept").iterdir())


def labels_of(codec, article):
    return limit(article, codec.labeled(article), LABELS.limits, drops=True).labels


def test_selected_sentences_of_the_source_replace_the_oracle(tmp_path):
    codec = extractive(articles(tmp_path))
    named = Article("0", tuple(SENTENCES), tuple(SENTENCES[1:2]), (2, 3), "a:1")
    assert labels_of(codec, named) == (0, 0, 1) and codec.scored(named) == named
    assert labels_of(codec, named._replace(gold=None)) == (0, 1, 0)


def test_articles_without_the_gold_field_use_the_oracle(tmp_path, caplog):
    summarized = {"article": SENTENCES, "summary": SENTENCES[1:2]}
    named = [summarized, {"article": SENTENCES, "ids": [2, 3]}, summarized]
    path = tmp_path / "named.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in named))
    config = articles(tmp_path, source=str(path), gold_field="ids")
    rows = prepare(extractive(config, seq_len=40), tmp_path / "kept")
    labels, starts = rows.fields["labels"].values, rows.fields["sentence_starts"].values
    assert labels[starts == 1].tolist() == [0, 1, 0, 0, 0, 1, 0, 1, 0]
    assert [message for message in caplog.messages if "oracle" in message] == [
        "valid: 21 articles have no field 'ids'; the oracle labels them",
        "train: 2 articles have no field 'ids'; the oracle labels them",
    ]
    with pytest.raises(UserError, match=r"named\.jsonl:2: got a row without column 'summary'"):
        prepare(abstractive(config), tmp_path / "kept")
    with pytest.raises(
        UserError, match=r"gold_field=id: got a field that no row of .* has; its fields: 'article', 'summary', 'ids'"
    ):
        PreparedRows(extractive(articles(tmp_path, source=str(path), gold_field="id")), tmp_path, PreparationConfig())
