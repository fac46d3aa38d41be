import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.text import korean_sentences, sentences

pieces = st.lists(st.sampled_from([*"가다요.?!~ㅋ()\"'“” \n_😀", "갔습니다", " 라고 ", "했다 "])).map("".join)


@pytest.mark.parametrize(
    "expected",
    [
        ["오늘은 비가 왔습니다", "우산을 샀어요", "집에 가겠죠", "내일은 맑다", "나는 책을 읽는다", "그는 학생이다"],
        [
            "드디어 먹었음",
            "진짜 맛있네요 ㅋㅋㅋ",
            "또 가고 싶다ㅠㅠ",
            "최고!!",
            "고기가 부드럽다~",
            "추천해요😀",
            "안녕",
        ],
        ["1. 물을 끓입니다.", "2. 면을 넣는다.", "Les Paul Jr. 기타도 판다.", "끝."],
        ["비가 왔다.[1][2]", "눈도 왔다(2020년).", "얼었다."],
    ],
)
def test_sentences_end_with_final_endings(expected):
    assert sentences.split(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "바다 같이 넓은 우간다 땅에서 혼다 차를 다 같이 탔다",
        "하다 보니 늦었다 해도 그가 왔다 싶으면 필요 없다",
        "가수로 활동하다 은퇴한 그보다 나이가 많음에도 있어 보인다",
        "그는 “좋다. 가자! 지금 갑니다” 하며 '네. 알겠어요.' 라고 말했다.",
        "그(그는 의사였다. 지금은 아니다)는 왜 안 되지? 라는 생각과 “왜?” 라는 말을 했다.",
        "그런데... 그는 서울 ~ 부산 구간에서.. 내렸다.",
        "2020. 11. 10. 에 J. R. 스미스가 서울에 왔다.",
    ],
)
def test_other_endings_and_quotations_end_no_sentence(sentence):
    assert sentences.split(sentence) == [sentence]


def test_a_missing_space_ends_a_sentence():
    assert sentences.split("비가 왔다.[1]눈도 왔어요!2월이다. 끝.") == [
        "비가 왔다.[1]",
        "눈도 왔어요!",
        "2월이다.",
        "끝.",
    ]


@given(pieces | st.text())
def test_all_visible_characters_are_kept(paragraph):
    parts = korean_sentences.split(paragraph)
    assert "".join("".join(parts).split()) == "".join(paragraph.split())
    assert all(part and part == part.strip() for part in parts)


def test_only_paragraphs_of_a_quarter_hangul_are_korean():
    english = "Seoul (서울) is big. It is in the U.S. Army's list."
    assert sentences.split(english) == ["Seoul (서울) is big.", "It is in the U.S. Army's list."]
    assert korean_sentences.is_korean("서울 is") and not korean_sentences.is_korean("")


def test_kiwi_splits_outside_quotations():
    pytest.importorskip("kiwipiepy")
    expected = ["“갑니다. 네!” 하고 갔다", "진짜 웃기네😀", "어제 친구를 만났는데 재밌었어"]
    assert sentences.split(" ".join(expected), sentences.KIWI) == expected
    assert sentences.split("He left. She stayed.", sentences.KIWI) == ["He left.", "She stayed."]
