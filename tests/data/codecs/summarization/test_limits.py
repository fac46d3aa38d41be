import dataclasses

import pytest

from bertjax.data.codecs.summarization.articles import Article
from bertjax.data.codecs.summarization.limits import ArticleLimits, limit
from bertjax.errors import UserError

# The minimum and the maximum of sentences, of their words, and of words in a summary.
SMALL = ArticleLimits(2, 3, 1, 4, 2, 5)


def article(*sentences, summary=("x y",)):
    return Article("1", sentences, summary, None, "a.txt:1")


LONG = article("a b", "c", "d e  f g h", "i\xa0j", "k l", "m n", summary=("s t u", "v w x", "y"))


def test_short_sentences_are_removed_and_long_ones_truncated():
    taken = limit(LONG, (0, 1, 2, 4), SMALL, drops=True)
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
    assert limit(article(*sentences), (), SMALL, drops=True).is_cut is is_cut


def test_articles_are_dropped_only_in_training():
    few = article("a b", "c", "d")
    assert limit(few, (0,), SMALL, drops=True) == "data.limits.min_sentences"
    assert limit(few, (0,), SMALL, drops=False).numbers == (0,)
    short_summary = article("a b", "c d", summary=("x",))
    assert limit(short_summary, (), SMALL, drops=True) == "data.limits.min_summary_words"
    assert limit(short_summary, (), SMALL, drops=False).summary == ("x",)
    without = article("a b", "c d", summary=None)
    assert limit(without, (), SMALL, drops=True).summary is None


def test_an_article_of_short_sentences_keeps_them_if_it_is_not_dropped():
    short = article("a", "b", "c", "d")
    assert limit(short, (3, 1), SMALL, drops=False)[1:4] == ((0, 1, 2), ("a", "b", "c"), (0, 1, 0))


def test_two_syllables_of_hangul_are_a_word_for_the_minima():
    defaults = ArticleLimits(3, 1000, 5, 200, 5, 500)
    news = article(*["정부가 예산을 늘린다."] * 3, summary=("정부가 예산 증액 발표",))
    assert limit(news, (), defaults, drops=True).summary == news.summary
    short = article(*["그가 갔다."] * 3, summary=news.summary)
    assert limit(short, (), defaults, drops=True) == "data.limits.min_sentences"


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
        dataclasses.replace(SMALL, **changes)
