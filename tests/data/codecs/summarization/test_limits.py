"""Tests of the limits on sentences, their words and summaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.codecs.summarization.articles import Article
from bertjax.data.codecs.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.errors import UserError


def limits(**changes):
    """Small ones."""
    values = {
        "min_sentences": 2,
        "max_sentences": 3,
        "min_words": 1,
        "max_words": 4,
        "min_summary_words": 2,
        "max_summary_words": 5,
    }
    return ArticleLimits(**{**values, **changes})


def article(*sentences, summary=("x y z",)):
    return Article("1", sentences, summary, None, "a.txt:1")


LONG = article("a b", "c", "d e  f g h", "i\xa0j", "k l", "m n", summary=("s t u", "v w x", "y"))


def test_short_sentences_are_removed_and_long_ones_truncated():
    taken = limit(LONG, (0, 1, 2, 4), limits(), drops=True)
    assert taken.article is LONG
    assert taken.numbers == (0, 2, 3)
    assert taken.sentences == ("a b", "d e  f g", "i\xa0j")
    assert taken.labels == (1, 1, 0)
    assert taken.summary == ("s t u", "v w")


@pytest.mark.parametrize(
    ("sentences", "is_cut"),
    [
        (("a b", "c", "d e f g"), False),  # a short sentence is not missing
        (("a b", "d e f g h"), True),
        (("a b", "c d", "e f", "g h"), True),
    ],
)
def test_missing_words_and_sentences_are_marked(sentences, is_cut):
    assert limit(article(*sentences), (), limits(), drops=True).is_cut is is_cut


def test_articles_are_dropped_only_in_training():
    few = article("a b", "c", "d")
    assert limit(few, (0,), limits(), drops=True) == "data.limits.min_sentences"
    assert limit(few, (0,), limits(), drops=False).numbers == (0,)
    short_summary = article("a b", "c d", summary=("x",))
    assert limit(short_summary, (), limits(), drops=True) == "data.limits.min_summary_words"
    assert limit(short_summary, (), limits(), drops=False).summary == ("x",)
    without = article("a b", "c d", summary=None)
    assert limit(without, (), limits(), drops=True).summary is None


def test_an_article_of_short_sentences_keeps_them_if_it_is_not_dropped():
    short = article("a", "b", "c", "d")
    assert limit(short, (3, 1), limits(), drops=False)[1:4] == ((0, 1, 2), ("a", "b", "c"), (0, 1, 0))


def test_two_syllables_of_hangul_are_a_word_for_the_minima():
    defaults = ArticleLimits(3, 1000, 5, 200, 5, 500)
    news = article(*["정부가 예산을 늘린다."] * 3, summary=("정부가 예산 증액 발표",))
    assert limit(news, (), defaults, drops=True).summary == news.summary
    short = article(*["그가 갔다."] * 3, summary=news.summary)
    assert limit(short, (), defaults, drops=True) == "data.limits.min_sentences"


texts = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=7).map(" ".join), min_size=1, max_size=7)


@given(texts, texts)
def test_limits_are_kept(sentences, summary):
    given_ = limits()
    taken = limit(article(*sentences, summary=tuple(summary)), range(len(sentences)), given_, drops=True)
    counts = [len(sentence.split()) for sentence in sentences]
    is_long = sum(count > 1 for count in counts) >= 2 and sum(len(s.split()) for s in summary) >= 2
    assert isinstance(taken, LimitedArticle) == is_long
    if is_long:
        assert [sentences[number].split()[:4] for number in taken.numbers] == [s.split() for s in taken.sentences]
        assert 2 <= len(taken.numbers) == len(taken.labels) == sum(taken.labels) <= 3
        assert " ".join(taken.summary).split() == " ".join(summary).split()[:5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_sentences": 1}, r"got 2 and 1; expected 1 <= min_sentences <= max_sentences\. Fix: change one;"),
        ({"min_words": 4}, r"keys data\.limits\.{min_words,max_words}: got 4 and 4; expected 0 <= min_words < max_w"),
        ({"min_summary_words": 0, "max_summary_words": 0}, r"got 0 and 0"),
    ],
)
def test_wrong_limits_are_errors(changes, message):
    with pytest.raises(UserError, match=message):
        limits(**changes)
