import dataclasses
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.scoring import translation
from bertjax.scoring.rouge import RougeConfig

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30), min_size=1, max_size=5)
NEED_PACKAGES = ("bleu_ja_mecab", "bleu_ko_mecab", "bleu_spm")
ALL = tuple(name for name in translation.SCORES if name not in NEED_PACKAGES)


def score(name, hypotheses, references):
    return translation.score([name], hypotheses, references)[name]


def test_bleu_is_computed_over_the_corpus_and_tokenizes_punctuation():
    hypotheses = ['He said: "yes!"', "Ein Hund, 3.5 kg schwer"]
    references = [['He said : " yes ! "'], ["Ein Hund , 3.5 kg schwer"]]
    assert score("bleu", hypotheses, references) == pytest.approx(100)


def test_all_metrics_except_one_are_case_sensitive():
    hypotheses, references = ["A Dog Runs Over Grass"], [["a dog runs over grass"]]
    assert score("bleu_lowercase", hypotheses, references) == pytest.approx(100)
    assert score("bleu", hypotheses, references) == 0.0
    assert score("exact_match", hypotheses, references) == 0.0
    assert 0 < score("chrf", hypotheses, references) < 100


def test_bleu_of_scripts_without_spaces():
    hypotheses, references = ["今天天气很好 ok"], [["今天天气不好 ok"]]
    assert score("bleu", hypotheses, references) < 1e-6 < score("bleu_zh", hypotheses, references)
    # bleu_zh tokenizes other scripts by 13a.
    assert score("bleu_zh", ["我有 two 只猫"], [["我有two只猫"]]) == pytest.approx(100)
    assert score("bleu_char", ["こんにちは"], [["こ ん に ち は"]]) == pytest.approx(100)


def test_exact_match():
    assert score("exact_match", ["a", "b ", "c", "é"], [["a"], ["b"], ["x", "c"], ["e\u0301"]]) == 50.0


def test_several_references():
    """Each hypothesis has its own number of references."""
    hypotheses = ["no", "the small dog runs home"]
    references = [["no"], ["a big dog goes away", "the small dog runs home"]]
    assert translation.score(ALL, hypotheses, references) == pytest.approx(dict.fromkeys(ALL, 100))
    alone = translation.score(ALL, hypotheses, [row[:1] for row in references])
    assert all(alone[name] < 100 for name in ALL)


@given(LINES)
def test_scores_are_finite_and_in_range(lines):
    for hypotheses in (lines, lines[::-1], [""] * len(lines)):
        for value in translation.score(ALL, hypotheses, [[line] for line in lines]).values():
            assert type(value) is float
            assert 0 <= value <= 100 + 1e-9


@pytest.mark.parametrize(
    ("name", "references", "expected"),
    [
        ("bleu", [["a"]], "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"),
        ("bleu_zh", [["a"]], "nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:"),
        ("bleu_lowercase", [["a", "b"], ["c", "d"]], "nrefs:2|case:lc|eff:no|tok:13a|smooth:exp|version:"),
        ("chrf", [["a"], ["c", "d"]], "nrefs:var|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"),
    ],
)
def test_signatures(name, references, expected):
    assert translation.signature(name, references).startswith(expected)


def test_signatures_state_the_normalization_of_references():
    plain = translation.signature("bleu", [["a"]])
    assert translation.signature("bleu", [["a"]], "nfkc+lowercase") == plain + "|normalized:nfkc+lowercase"


def test_signatures_match_the_metric_that_scored():
    from sacrebleu.metrics import BLEU

    metric, references = BLEU(), [["a", "b"], ["c", "d"], ["e", "f"]]
    metric.corpus_score(["a", "b", "c"], list(zip(*references, strict=True)))
    assert translation.signature("bleu", references) == str(metric.get_signature())


@pytest.mark.parametrize(
    ("names", "hypotheses", "references", "message"),
    [
        (["bleu", "blue"], ["a"], [["a"]], r"score: got 'blue'; expected one of bleu, .*Fix: choose one"),
        (["bleu"], ["a", "b"], [["a"]], "got 2 translations, but references for 1 sentences; expected one.*Fix: tra"),
        (["bleu"], [], [], "scoring: got no rows; expected at least one. Fix: check the eval"),
        (["chrf"], ["a", "b"], [["a"], []], r"sentence 1 \(from 0\): got none; expected a list.*Fix: use such a list"),
        (["chrf"], ["a"], ["a"], "sentence 0 .*got a text; expected a list of at least one text"),
    ],
)
def test_invalid_input(names, hypotheses, references, message):
    with pytest.raises(UserError, match=message):
        translation.score(names, hypotheses, references)


@pytest.mark.parametrize(
    ("texts", "language", "metric"),
    [
        (["犬が走る。", "猫です"], "Japanese", "bleu_ja_mecab (pip install 'sacrebleu[ja]')"),
        (["今天天气很好 ok"], "Chinese", "bleu_zh"),
        (["개가 달린다."], "Korean", "bleu_ko_mecab (pip install 'sacrebleu[ko]')"),
        (["สุนัขวิ่ง"], "Thai", "bleu_spm (pip install 'sentencepiece')"),
        (["Ein Hund läuft (犬).", "Собака"], None, None),
    ],
)
def test_texts_that_13a_cannot_tokenize_are_named_with_a_metric(texts, language, metric):
    told = translation.tokenizer_warning(["bleu", "chrf"], texts)
    pattern = f"bleu: the tokenizer 13a .*% of the letters of the references are {language}, .*, set "
    assert re.match(f"{pattern}{re.escape(str(metric))} or bleu_", told) if language else not told
    assert not translation.tokenizer_warning(["chrf", "bleu_char"], texts)


def test_rouge_of_ascii_letters_is_warned_of():
    settings = RougeConfig()
    assert "ROUGE reads ASCII letters only, 0%" in translation.letters_warning(
        ["rouge1"], ["정부는 발표했다"], settings
    )
    unicode = dataclasses.replace(settings, flavor="unicode", stem=False)
    for metrics, texts, config in (
        (["chrf"], ["정부는"], settings),
        (["rouge1"], ["the court"], settings),
        (["rouge1"], ["정부는"], unicode),
    ):
        assert not translation.letters_warning(metrics, texts, config)


def test_a_missing_tokenizer_names_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mecab_ko", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ko_mecab", raising=False)
    with pytest.raises(UserError, match=r"got bleu_ko_mecab.* Fix: pip install 'sacrebleu\[ko\]', or use bleu_char"):
        translation.check_installed(["bleu", "bleu_ko_mecab"])


def test_exact_match_has_no_signature():
    with pytest.raises(UserError, match=r"got 'exact_match'; expected one of bleu, bleu_char, .*, bleu_zh"):
        translation.signature("exact_match", [["a"]])
