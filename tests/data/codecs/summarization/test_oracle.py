import dataclasses
import gzip
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.codecs.summarization import oracle as oracles
from bertjax.data.codecs.summarization.oracle import OracleConfig, oracle
from bertjax.errors import UserError
from bertjax.words import UNITS
from tests.data.golden.make_oracle_golden import SETS, digest, read_set
from tests.experiments.commands import settings_of

# Written by golden/make_oracle_golden.py.
GOLDEN, DIGESTS = (
    json.loads((Path(__file__).parents[2] / "golden" / f"{name}.json").read_text())
    for name in ("oracle", "oracle_digests")
)


def config(**changes):
    """PreSumm's."""
    return settings_of(OracleConfig, "bertsum_ext", "data.oracle", **{"first_sentences": 100, **changes})


def oracle_score(chosen, sentences, summary, given_):
    """Returns the score that `oracle` maximizes: the sum of F1 values between 0 and 1, for some sentences."""
    if given_.counts == "counts":
        return oracles._counts_score(sentences, summary, given_)(tuple(chosen))
    return oracles._sets_score(*oracles._clean_words(sentences, summary, given_))(tuple(chosen))


@pytest.mark.parametrize("number", range(len(GOLDEN)))
def test_choices_equal_those_of_the_published_code(number):
    case = GOLDEN[number]
    assert list(oracle(case["sentences"], case["summary"], config())) == sorted(case["greedy"])
    # BertSum's search takes one sentence more, and returns (0, 0) if it finds nothing.
    best = oracle(case["sentences"], case["summary"], config(method="combination", num_sentences=4))
    assert list(best) == [n for n in case["combination"] if case["combination"] != [0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_choices_on_real_articles_equal_those_of_the_published_code(data_folder, name):
    choices = [oracle(*text, config()) for text in read_set(data_folder, name)]
    assert {"articles": len(choices), "sha256": digest(choices)} == DIGESTS[name]


def test_a_worked_example():
    # Precision and recall of words and of pairs: the first sentence has 3/3 and 3/5, 2/2 and 2/4. The third adds two
    # words and its one pair.
    sentences = ["the cat sat", "the dog", "on mats", "a mat"]
    summary = ["the cat sat", "on mats"]
    assert oracle(sentences, summary, config()) == (0, 2)
    both = oracle_score((0, 2), sentences, summary, config())
    assert both == pytest.approx(1 + 2 * 3 / 7)  # the pair "sat on" occurs only in the summary
    assert oracle(sentences, summary, config(num_sentences=1)) == (0,)
    assert oracle(sentences, summary, config(first_sentences=2)) == (0,)


def test_case_punctuation_and_stems():
    # By default case matters. Punctuation and non-ASCII letters are removed.
    assert oracle(["THE CAT", "c a t"], ["the cat"], config()) == ()
    assert oracle(["THE CAT", "c a t"], ["the cat"], config(lowercase=True)) == (0,)
    assert oracle(["x", "“t-h'e” càt."], ["the, ct"], config()) == (1,)
    # ROUGE splits words at a hyphen.
    hyphen = ["the-cat", "thecat"]
    assert oracle(hyphen, ["the cat"], config(counts="counts")) == (0,)
    assert oracle(hyphen, ["the-cat"], config()) == (0,)  # the first of equal sentences
    assert oracle(["nothing", "cats running"], ["a cat runs"], config(counts="counts")) == ()
    assert oracle(["nothing", "cats running"], ["a cats runs"], config(counts="counts", stem=True)) == (1,)
    assert oracle(["nothing", "cats running"], ["running it"], config(counts="counts", stem=True)) == (1,)


@pytest.mark.parametrize("counts", ["sets", "counts"])
@pytest.mark.parametrize(
    ("sentences", "summary"),
    [
        (["猫坐在红色的垫子上。", "小狗在河边看见一条鱼。"], ["一条鱼被小狗看见"]),
        (["Кошка спит.", "Собака видит рыбу."], ["Собака: рыбу!"]),
        (["बिल्ली सोती है।", "कुत्ता मछली देखता है।"], ["कुत्ता मछली"]),
    ],
)
def test_letters_of_all_scripts(counts, sentences, summary):
    assert oracle(sentences, summary, config(counts=counts)) == ()
    unicode = config(counts=counts, letters="unicode")
    assert oracle(sentences, summary, unicode) == (1,)
    assert oracle(sentences, [sentences[0]], dataclasses.replace(unicode, method="combination")) == (0,)


@pytest.mark.parametrize("counts", ["sets", "counts"])
def test_units_of_korean(counts):
    pytest.importorskip("kiwipiepy")
    sentences = ["강이 흐른다.", "수도이다."]
    unicode = config(counts=counts, letters="unicode")
    chosen = [oracle(sentences, ["수도는"], dataclasses.replace(unicode, units=units)) for units in UNITS]
    assert chosen == [(), (1,), (1,)]


def test_sets_and_counts_differ_for_repeated_words():
    sentences, summary = ["a a a a", "a b"], ["a a a a"]
    assert oracle(sentences, summary, config(num_sentences=1)) == (0,)
    assert oracle_score((0,), sentences, summary, config()) == pytest.approx(2)
    assert oracle_score((1,), sentences, summary, config()) == pytest.approx(2 / 3)
    assert oracle_score((1,), sentences, summary, config(counts="counts", ngrams=(1,))) == pytest.approx(2 / 6)
    # Only in PreSumm's measure do bigrams of the summary cross sentence boundaries.
    assert oracle_score((0,), ["a b"], ["a", "b"], config()) == pytest.approx(2)
    assert oracle_score((0, 1), ["a", "b"], ["a b"], config()) == pytest.approx(1)
    assert oracle_score((0,), ["a b"], ["a", "b"], config(counts="counts")) == pytest.approx(1)


def test_verbatim_selects_copies_of_summary_sentences():
    sentences = ["It rained.", "A dog  ran.", "It rained.", "", "a dog ran.", "A\u00a0cat sat.", "Ran."]
    summary = ["A cat\nsat.", " It rained. ", "A dog ran.", "It rained.", "Nothing else did.", " "]
    verbatim = config(method="verbatim", num_sentences=100, first_sentences=0)
    assert oracle(sentences, summary, verbatim) == (0, 1, 5)
    assert oracle(sentences, summary, dataclasses.replace(verbatim, num_sentences=2)) == (0, 1)
    assert oracle(sentences, summary, dataclasses.replace(verbatim, first_sentences=5)) == (0, 1)
    assert oracle(sentences, ["It rained", "a"], verbatim) == ()
    assert oracle([], [], verbatim) == ()


@pytest.mark.parametrize("text", ["München liegt.", "한국어 문장."])
def test_sentences_may_have_another_normalization_form(text):
    sentences = ["Nothing.", unicodedata.normalize("NFD", text)]
    for form in ({"method": "verbatim"}, {"letters": "unicode"}, {"letters": "unicode", "counts": "counts"}):
        assert oracle(sentences, [text], config(**form)) == (1,), form


@pytest.mark.parametrize("method", ["greedy", "combination"])
@pytest.mark.parametrize("counts", ["sets", "counts"])
@pytest.mark.parametrize(
    ("sentences", "summary"),
    [([], ["a"]), (["a"], []), (["a", ""], ["--"]), (["--", "a"], ["b"]), ([""], [""]), ([], [])],
)
def test_nothing_in_common(method, counts, sentences, summary):
    assert oracle(sentences, summary, config(method=method, counts=counts)) == ()


words = st.sampled_from(["a", "b", "c", "d", "e", "A", "a.", "b-", "é", "a\n", "\u2003", "\x1d"])
text = st.lists(st.lists(words, max_size=9).map(" ".join), max_size=9)


@given(text, text, st.integers(1, 5), st.booleans())
def test_the_shortcuts_do_not_change_the_result(sentences, summary, num_sentences, lowercase):
    given_ = config(num_sentences=num_sentences, lowercase=lowercase)
    plain = oracles._sets_score(*oracles._clean_words(sentences, summary, config(lowercase=lowercase)))
    assert oracle(sentences, summary, given_) == oracles._greedy(plain, len(sentences), num_sentences)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ngrams": ()}, r"data\.oracle\.ngrams: got \(\); expected numbers from 1"),
        ({"ngrams": (2,)}, r"data\.oracle\.ngrams: got \(2,\); expected \(1, 2\) with data\.oracle\.counts=sets"),
        ({"stem": True}, r"data\.oracle\.stem: got True; expected False with data\.oracle\.counts=sets"),
        ({"method": "verbatim", "counts": "counts"}, r"data\.oracle\.counts: got 'counts'; expected sets with"),
        ({"method": "verbatim", "lowercase": True}, r"data\.oracle\.lowercase: got True; expected False with"),
    ],
)
def test_wrong_configs_are_errors(changes, message):
    with pytest.raises(UserError, match=message):
        config(**changes)


def test_rouge_2_of_published_choices(data_folder):
    # The published choices maximize the F1 of stemmed ROUGE-2.
    rouge_2 = config(counts="counts", ngrams=(2,), stem=True)
    with gzip.open(data_folder / "cnn_dailymail_small" / "oracle_sample.jsonl.gz", "rt", encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            found = oracle_score(row["oracle_ids"], row["article_sentences"], row["summary_sentences"], rouge_2)
            assert found == pytest.approx(row["oracle_rouge2_f1"], abs=1e-5)
