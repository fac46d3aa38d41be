import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.scoring.rouge_stemmer import porter, stem


def test_golden_of_the_perl_program():
    golden = json.loads(Path(__file__).with_name("golden").joinpath("rouge.json").read_text(encoding="utf-8"))
    assert len(golden["stems"]) == 250
    assert {word: stem(word) for word in golden["stems"]} == golden["stems"]


# Examples of Porter (1980), step by step; words in which y is a vowel; ROUGE's addition to step 4.
STEMS = """
    caresses/caress ponies/poni caress/caress cats/cat feed/feed agreed/agre plastered/plaster sing/sing motoring/motor
    conflated/conflat hopping/hop falling/fall hissing/hiss filing/file happy/happi sky/sky relational/relat
    rational/ration triplicate/triplic electricity/electr goodness/good replacement/replac adoption/adopt
    probate/probat rate/rate cease/ceas controll/control
    yellowing/yellow styling/style staying/stai
    fundamental/fundam 11ed/11ed
"""


@pytest.mark.parametrize("pair", STEMS.split())
def test_porters_algorithm(pair):
    word, expected = pair.split("/")
    assert porter(word) == expected


def test_irregular_forms():
    assert [stem(word) for word in ("children", "better", "said", "axes")] == ["child", "well", "say", "ax"]
    # Irregular forms are not stemmed further, so plural and singular may differ. Words of three letters are not
    # stemmed.
    assert [stem(word) for word in ("abaci", "abacus", "men", "was")] == ["abacus", "abacu", "men", "was"]


@given(st.text("abeglnorsty1", min_size=4, max_size=12))
def test_a_stem_is_never_longer_by_more_than_one_letter(word):
    assert 1 <= len(porter(word)) <= len(word) + 1
