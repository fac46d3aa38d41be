import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.scoring.rouge import METRICS, RougeConfig, rouge, score, signature, summarize
from tests.scoring.golden.make_rouge_golden import digest
from tests.scoring.golden.rouge_summaries import read

PLAIN = RougeConfig(flavor="rouge-1.5.5", stem=False, words=None)
STEMMED = RougeConfig(flavor="rouge-1.5.5", stem=True, words=None)
GOOGLE = RougeConfig(flavor="rouge-score", stem=True, words=None)
# The precision of the Perl program's output.
PRINTED = 5.1e-4

# Few different words, so that texts overlap and have several longest common subsequences.
SENTENCES = st.lists(st.lists(st.sampled_from("abc"), max_size=6).map(" ".join), max_size=4)
SUMMARIES = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=4)


def read_golden(name):
    return json.loads(Path(__file__).with_name("golden").joinpath(name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def golden():
    return read_golden("rouge.json")


def f1(candidate, reference, config=PLAIN):
    figures = rouge([candidate], [reference], config)
    return {metric: figures[metric] for metric in METRICS}


def test_golden_of_the_perl_program(golden):
    assert len(golden["runs"]) == 4
    for run in golden["runs"]:
        config = RougeConfig(flavor="rouge-1.5.5", stem=run["stem"], words=run["words"])
        scores = score(golden["candidates"], golden["references"], config)
        assert set(run["documents"]) == set(scores)
        for name, expected in run["documents"].items():
            np.testing.assert_allclose(scores[name], expected, rtol=0, atol=1e-9, err_msg=name)
        figures = summarize(scores, confidence=True)
        assert set(figures) == set(scores) | set(run["averages"])
        assert {name: figures[name] for name in run["averages"]} == pytest.approx(run["averages"], abs=PRINTED)


def test_real_summaries_score_as_in_the_perl_program(data_folder, golden):
    (expected,) = (run for run in golden["real"] if run["stem"])
    scores = score(*read(data_folder), STEMMED)
    assert len(scores["rouge1"]) == 500
    assert digest(scores) == expected["documents"]
    figures = summarize(scores, confidence=True)
    assert {name: figures[name] for name in expected["averages"]} == pytest.approx(expected["averages"], abs=PRINTED)


@settings(max_examples=40)
@given(SUMMARIES)
def test_unicode_matches_googles_package_on_ascii_text(summaries):
    ours, theirs = zip(*summaries, strict=True)
    unicode, plain = RougeConfig("unicode", False, None), RougeConfig("rouge-score", False, None)
    for name, values in score(ours, theirs, plain).items():
        np.testing.assert_array_equal(score(ours, theirs, unicode)[name], values)


def test_unicode_splits_words_of_all_scripts():
    unicode = RougeConfig("unicode", False, None)
    assert signature(unicode) == "unicode|stem:no|words:all"
    candidate, reference = ["小狗看见一条鱼。"], ["小狗看见鱼"]
    assert f1(candidate, reference) == dict.fromkeys(METRICS, 0.0)
    found = f1(candidate, reference, unicode)  # 5 common letters of 7 and 5; 3 common pairs of 6 and 4
    assert found["rouge1"] == found["rougeL"] == pytest.approx(100 * 10 / 12)
    assert found["rouge2"] == pytest.approx(100 * 6 / 10)
    assert f1(["Ёлка и ЁЖ"], ["ёлка, ёж"], unicode)["rouge1"] == pytest.approx(80)
    with pytest.raises(UserError, match=r"rouge\.stem: got True; expected False with rouge\.flavor=unicode"):
        RougeConfig("unicode", True, None)


@pytest.mark.parametrize(
    ("units", "rouge1", "rouge2", "signed"),
    [
        ("words", 0, 0, "unicode|stem:no|words:all"),
        # 수도 이 다, 수도 는: one common morpheme of 3 and 2.
        ("morphemes", 100 * 2 / 5, 0, "unicode|stem:no|words:all|units:morphemes,kiwipiepy "),
        # Two common letters of 4 and 3; one common pair of 3 and 2.
        ("characters", 100 * 4 / 7, 100 * 2 / 5, "unicode|stem:no|words:all|units:characters"),
    ],
)
def test_units_of_korean(units, rouge1, rouge2, signed):
    if units == "morphemes":
        pytest.importorskip("kiwipiepy")
    config = RougeConfig("unicode", False, None, units=units)
    values = f1(["수도이다."], [unicodedata.normalize("NFD", "수도는")], config)
    assert (values["rouge1"], values["rouge2"]) == (pytest.approx(rouge1), pytest.approx(rouge2))
    assert signature(config).rstrip("0123456789.") == signed
    if units != "words":
        with pytest.raises(UserError, match=r"rouge\.units: .*expected words with rouge\.flavor=rouge-1\.5\.5"):
            RougeConfig(units=units)


def test_golden_of_googles_package(golden):
    for run in read_golden("rouge_score.json"):
        config = RougeConfig(flavor="rouge-score", stem=run["stem"], words=None)
        scores = score(golden["candidates"], golden["references"], config)
        assert set(run["documents"]) == set(scores)
        for name, expected in run["documents"].items():
            np.testing.assert_allclose(scores[name], expected, rtol=0, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    ("references", "rouge1", "rouge2"),
    [
        ("average", (52.381, 45.833, 61.111), (22.223, 19.048, 26.667)),  # printed by ROUGE-1.5.5 -n 2 -f A
        ("best", (22.222, 12.5, 100.0), (35.294, 42.857, 30.0)),  # and by -f B
        # The means of what -f B prints for each pair of references.
        ("jackknife", (115.872 / 3, 87.5 / 3, 283.333 / 3), (87.255 / 3, 100 / 3, 80 / 3)),
    ],
)
def test_several_references(references, rouge1, rouge2):
    candidate = ["the cat sat on the mat", "it slept"]
    several = [["the cat slept on a mat"], ["a dog ran off", "the cat sat there and it slept"], ["cat"]]
    config = RougeConfig(stem=False, references=references)
    found = rouge([candidate], [several], config)
    for name, values in (("rouge1", rouge1), ("rouge2", rouge2)):
        assert [found[name + part] for part in ("", "_precision", "_recall")] == pytest.approx(values, abs=PRINTED)
    for alone in ([several[0]], [[several[0]]]):
        assert rouge([candidate], alone, config) == rouge([candidate], [several[0]], PLAIN)
    assert signature(config, 3) == f"rouge-1.5.5|stem:no|words:all|references:3,{references}"


def test_the_best_reference_of_googles_package_has_the_highest_f1():
    """As `score_multi` of rouge-score."""
    config = RougeConfig("rouge-score", False, references="best")
    assert rouge([["a b c d"]], [[["a"], ["a b c e f"]]], config)["rouge1"] == pytest.approx(100 * 2 * 3 / 9)


def test_words_of_three_letters_are_not_stemmed():
    assert f1(["was his"], ["wa hi"], STEMMED)["rouge1"] == f1(["was his"], ["wa hi"], GOOGLE)["rouge1"] == 0


@pytest.mark.parametrize(
    ("words", "precision", "recall"),
    [
        (None, 3 / 6, 3 / 5),
        (1, 1, 1),
        (2, 2 / 3, 2 / 3),
        (3, 2 / 4, 2 / 4),
        (9, 3 / 6, 3 / 5),
        ("reference", 2 / 5, 2 / 5),
    ],
)
def test_a_limit_of_words(words, precision, recall):
    config = RougeConfig(flavor="rouge-1.5.5", stem=False, words=words)
    # "A-1," counts as one word for the limit, and as two words for the score.
    figures = rouge([["A-1, x", "y z d..."]], [["a-1 b", "c d?"]], config)
    assert figures["rouge1_precision"] == pytest.approx(100 * precision, abs=PRINTED)
    assert figures["rouge1_recall"] == pytest.approx(100 * recall, abs=PRINTED)


def test_means_are_taken_over_documents():
    scores = score([["a"], ["b b"], []], [["a"], ["b c"], ["d"]], PLAIN)
    assert scores["rouge1"].tolist() == [100, 50, 0]
    assert summarize(scores)["rouge1"] == 50
    assert summarize(scores, confidence=True)["rouge1"] == 50


def test_signatures():
    assert signature(STEMMED) == "rouge-1.5.5|stem:yes|words:all"
    config = RougeConfig(flavor="rouge-score", stem=False, words="reference")
    assert signature(config) == "rouge-score|stem:no|words:reference"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rouge([], [], PLAIN), "scoring: got no documents; expected at least one"),
        (lambda: rouge([["a"], ["b"]], [["a"]], PLAIN), "got 2 summaries and 1 references; expected one summary and"),
        (lambda: rouge([["a"], "b"], [["a"], ["b"]], PLAIN), r"summary of document 1 \(from 0\): got a text"),
        (lambda: rouge([["a"]], [["b", ["c"]]], PLAIN), r"reference of document 0 \(from 0\): got a text; expected a"),
        (lambda: RougeConfig(words=0), "rouge.words: got 0; expected at least 1, 'reference', or None"),
        (lambda: RougeConfig(words="all"), "rouge.words: got 'all'; expected at least 1, 'reference', or None"),
    ],
)
def test_invalid_input(call, message):
    with pytest.raises(UserError, match=message):
        call()
