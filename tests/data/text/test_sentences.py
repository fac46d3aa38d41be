import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertjax.data.text import sentences


@pytest.mark.parametrize(
    "expected",
    [
        ["One ends here.", "Another ends here!", "Does a third?", "Yes."],
        ["Mr. and Mrs. Smith met Dr. J. R. Jones on Jan. 5.", "They spoke."],
        ["The U.S. Army left.", "It was in the U.S.", "The war was over."],
        ["Cllr. Ann Lee met the Rt. Hon. Jo Day.", "Lt. Col. Fox, Cpl. Ray and Pte. Dow left.", "Insp. Kay did, too."],
        ["Messrs. Hay and Supt. Low saw J. Ash, Q.C. and Const. Reed.", "Is he a QC?", "He is a KC.", "Ann is one."],
        ["See Fig. 3, No. 5 and pp. 12 to 14, e.g. the first, i.e. this one.", "Is it clear?"],
        ["She said no.", "Then she left."],
        ["Version 3.11.2 costs $3.5 million.", "In 1990 it was 2.", "The rest is free."],
        ['"It works."', "He left.", "(So did I.)", "[Really?]", "“Stop!”", "She did."],
        ["Wait...", "Then go.", "What?!", "No!!!"],
        ["He left.", "!?"],
        ["It closed at 5 p.m. on Friday.", "Acme Inc. lost 3 pct."],
        ['"Why?" and left.', "“No!” she said.", "(Really?) he asked.", '"No."', '"Why?"', '"Iron?" it read.'],
    ],
)
def test_worked_examples(expected):
    assert sentences.split(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["他说：“你好。”", "真的吗？！", "是的……", "（对。）", "AI很好。"],
        ["これはペンです。", "「はい。」", "OK。"],
        ["यह एक किताब है।", "क्या यह सच है?", "हाँ।"],
        ["هل هذا صحيح؟", "نعم."],
        ["Это он. Она ушла!", "Да."],
    ],
)
def test_sentence_ends_of_other_scripts(expected):
    expected = [sentence for text in expected for sentence in re.split(r"(?<=[.!]) ", text)]
    spaced = " " if expected[0].isascii() or " " in expected[0] else ""
    joined = spaced.join(expected).replace("……", "……\n" if not spaced else "……")
    found = sentences.split(joined)
    assert [part for sentence in found for part in sentence.split("\n")] == expected


def test_a_line_break_is_a_space():
    assert sentences.split("One goes\non. Two.\nThree.") == ["One goes\non.", "Two.", "Three."]


def _visible(text: str) -> str:
    return "".join(text.split())


punctuated = st.text(st.sampled_from("aAbB1 .!?\"')([]”“’,;:-\n\u00a0\x1c")) | st.text()


@given(punctuated, st.sampled_from([5, 50_000]))
@example("a.) b", 5)
@example("x. ) ) y", 5)
@example(" \n\t\u00a0 ", 5)  # has no sentences
def test_all_visible_characters_are_kept_for_any_window(paragraph, window):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_WINDOW", window)
        found = sentences.split(paragraph)
    assert _visible("".join(found)) == _visible(paragraph)
    assert all(sentence and sentence == sentence.strip() for sentence in found)


@given(st.lists(st.sampled_from(["Dr. No ran.", "In the U.S. The end?", '"Why?"', "It is 5 p.m. Also, go."])))
def test_windows_give_the_same_sentences_as_the_whole_text(parts):
    paragraph = " ".join(parts)
    whole = sentences.split(paragraph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_WINDOW", 30)
        assert sentences.split(paragraph) == whole


def test_the_import_is_light():
    heavy = "{'jax', 'torch', 'sklearn', 'pandas', 'tensorflow_datasets'}"
    code = f"import sys; import bertjax.data.text.sentences; print(*{heavy} & {{*sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
