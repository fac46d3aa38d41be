import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.codecs.questions.question_rows import QuestionCodec
from bertjax.data.codecs.questions.questions import Answer, Question, QuestionsConfig
from bertjax.data.codecs.questions.spans import (
    SpanConfig,
    best_answers,
    leaves_no_overlap,
    null_score,
    selected,
    target,
    windows,
)
from bertjax.data.text.templates import Template
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,()?"
VOCAB = [*SPECIALS, *LETTERS, *("##" + char for char in LETTERS), "é", "中", "文", "japan", "##ese", "who"]
TOKENIZER = WordPiece(VOCAB, lowercase=True)
GOOGLE = {"seq_len": 384, "doc_stride": 128, "max_query_length": 64, "max_answer_length": 30, "n_best": 20}


def config(**changes):
    return SpanConfig(**{**GOOGLE, "null_answers": False, "null_threshold": 0.0, **changes})


def ask(context, answer=None, question="who ?", start=None):
    answers = () if answer is None else (Answer(answer, context.index(answer) if start is None else start),)
    return Question("1", "", question, context, answers, answer is None, "")


def tokens(ids):
    return " ".join(VOCAB[id_] for id_ in ids)


def row_of(window):
    return TOKENIZER.template.row(window.segments)[0]


def oracle(question, rows, answer):
    """Returns logits that predict an answer with certainty in every window that contains it."""
    length = max(row.length for row in rows) + 3
    logits = np.zeros((2, len(rows), length), np.float32)
    for number, row in enumerate(rows):
        start, end = target(row, answer)
        logits[0, number, start] = logits[1, number, end] = 10
    return logits[0], logits[1]


def recovered(question, tokenizer=TOKENIZER, **changes):
    """Returns the answer that is found with oracle logits."""
    settings = config(**changes)
    rows = windows(question, tokenizer, settings)
    answer = question.answers[0] if question.answers else None
    best = selected(best_answers(question, rows, *oracle(question, rows, answer), settings), settings)
    return best.text if best else ""


def test_windows_of_a_question():
    question = ask("a b c d e f g h i", question="who who ? ? ?")
    rows = windows(question, TOKENIZER, config(seq_len=12, doc_stride=3, max_query_length=4))
    assert [tokens(row_of(row)) for row in rows] == [
        "[CLS] who who ? ? [SEP] a b c d e [SEP]",
        "[CLS] who who ? ? [SEP] d e f g h [SEP]",
        "[CLS] who who ? ? [SEP] g h i [SEP]",
    ]
    assert [row.length for row in rows] == [12, 12, 10]
    assert [row.part for row in rows] == [range(5), range(3, 8), range(6, 9)]
    assert {row.first for row in rows} == {6}
    # By hand: d and e have more context on the right in the second window; g and h are in the middle of no window.
    assert [row.max_context.astype(int).tolist() for row in rows] == [
        [1, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 1, 1],
    ]  # fmt: skip


def test_counts_of_training_rows_are_those_of_questions():
    codec = QuestionCodec(QuestionsConfig(), config(seq_len=10, doc_stride=3, max_query_length=2), TOKENIZER)
    long = "a b c d e f g h i"
    _, counts, *_ = codec.training([ask(long, long, "who ? ?"), ask(long, "e f"), ask("a b", "b", "?")])
    others = {"answers_inside_tokens": 0, "contexts_without_overlap": 0, "truncated": 1}
    assert counts == {"windows": 7, "answers_in_no_window": 1, **others}


@pytest.mark.parametrize(
    ("answer", "span", "count"),
    [("세종", "세종", 0), ("종대왕", "세종대왕은", 1), ("대왕", "대왕은", 1), ("대왕은 ", "대왕은", 0)],
)
def test_an_answer_inside_a_token_has_the_shortest_span_around_it(answer, span, count):
    tokenizer = WordPiece([*SPECIALS, "세종", "##대왕은", "왕"], lowercase=False)
    codec = QuestionCodec(QuestionsConfig(), config(), tokenizer)
    question = ask("세종대왕은 왕", answer, "왕")
    assert recovered(question, tokenizer) == span
    assert codec.training([question]).counts["answers_inside_tokens"] == count


def test_a_stride_longer_than_a_window_leaves_no_gap():
    rows = windows(ask("a b c d e"), TOKENIZER, config(seq_len=7, doc_stride=9, max_query_length=2))
    assert [row.part for row in rows] == [range(2), range(2, 4), range(4, 5)]
    assert leaves_no_overlap(rows) and not leaves_no_overlap(rows[:1])
    assert not leaves_no_overlap(
        windows(ask("a b c d e"), TOKENIZER, config(seq_len=7, doc_stride=1, max_query_length=2))
    )


@given(st.integers(0, 60), st.integers(1, 12), st.integers(5, 20))
def test_windows_cover_the_context_and_one_has_the_most_context_of_each_piece(count, stride, seq_len):
    rows = windows(ask("a " * count), TOKENIZER, config(seq_len=seq_len, doc_stride=stride, max_query_length=1))
    best = [piece for row in rows for piece, is_best in zip(row.part, row.max_context, strict=True) if is_best]
    assert sorted(best) == list(range(count))
    assert all(row.length <= seq_len for row in rows)
    assert all(row.length == seq_len for row in rows[:-1])
    for row in rows:
        for place, is_best in enumerate(row.max_context):
            piece = row.part[place]
            sides = {other.part.start: min(piece - other.part[0], other.part[-1] - piece) + len(other.part) / 100
                     for other in rows if piece in other.part}  # fmt: skip
            assert is_best == (row.part.start == max(sides, key=sides.get))


def test_targets():
    question = ask("the leader (1895-1943). japanese", question="")
    (row,) = windows(question, TOKENIZER, config())
    starts = {text: target(row, Answer(text, question.context.index(text))) for text in ("1895", "japan", "(", "-1")}
    ids = row_of(row)
    assert tokens(ids[slice(starts["1895"][0], starts["1895"][1] + 1)]) == "1 ##8 ##9 ##5"
    assert tokens(ids[slice(starts["japan"][0], starts["japan"][1] + 1)]) == "japan"
    assert tokens(ids[slice(starts["("][0], starts["("][1] + 1)]) == "("
    assert tokens(ids[slice(starts["-1"][0], starts["-1"][1] + 1)]) == "[UNK] 1"
    assert target(row, None) == (0, 0)
    assert target(row, Answer(" ", 3)) == (0, 0)
    assert target(row, Answer("er (1", 8)) == (9, 12)


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("a  b \t c\n\nd", "b \t c"),
        ("Le Café\u0301 e\u0301 x", "Café\u0301 e\u0301"),
        ("x e\u0301\u0323, y", "e\u0301\u0323"),
        ("ab中文cd", "中文"),
        ("ab中文cd", "文cd"),
        ("x 👩\u200d👩❤\ufe0f y", "👩\u200d👩❤\ufe0f"),
        ("x s\u00adoft y", "s\u00adoft"),
        ("aİb ΟΔΟΣ", "İb"),
        ("cat", "a"),
        ("a (b).", "b"),
        ("a", "a"),
        ("Japanese", "Japan"),
    ],
)
def test_answers_are_restored_in_their_original_text(context, answer):
    assert recovered(ask(context, answer)) == answer
    assert recovered(ask(context, answer, question="")) == answer


@pytest.mark.parametrize("start", range(0, 100, 3))
@pytest.mark.parametrize("length", [1, 5])
def test_answers_are_found_at_any_position_of_any_window(start, length):
    words = [f"{number}" for number in range(100, 200)]
    answer = " ".join(words[start : start + length])
    changes = {"seq_len": 80, "doc_stride": 25, "max_query_length": 5, "max_answer_length": 15}
    assert recovered(ask(" ".join(words), answer), **changes) == answer


def test_answers_over_the_maximum_length_are_not_found():
    context = " ".join("abcdefghijklmnopqrstuvwxyz" * 2)
    assert recovered(ask(context, context[: 2 * 30 - 1])) == context[: 2 * 30 - 1]
    assert len(recovered(ask(context, context[: 2 * 31 - 1]))) < 61
    small = {"seq_len": 24, "doc_stride": 5, "max_query_length": 2, "null_answers": True}
    assert recovered(ask(context, context[: 2 * 25 - 1]), **small) == ""


def test_impossible_questions():
    assert recovered(ask("a b"), null_answers=True) == ""
    assert recovered(ask("\u200b", question="")) == ""
    (row,) = windows(ask("\u200b"), TOKENIZER, config())
    assert tokens(row_of(row)) == "[CLS] who ? [SEP] [SEP]"


def score(question, starts, ends, **changes):
    settings = config(**changes)
    rows = windows(question, TOKENIZER, settings)
    return best_answers(question, rows, np.float32(starts), np.float32(ends), settings)


def test_best_answers():
    #        [CLS] who ?  [SEP] a  b  c  [SEP] padding
    starts = [[0, 99, 99, 99, 3, 2, 1, 99, 99]]
    ends = [[1, 99, 99, 99, 1, 2, 4, 99, 99]]
    found = score(ask("a b  c"), starts, ends)
    # The sums are 7, 6, 5, 5, 4, 4. Of equal sums, the better start comes first.
    assert [one.text for one in found] == ["a b  c", "b  c", "a b", "c", "a", "b"]
    assert [one.score for one in found] == [7, 6, 5, 5, 4, 4]
    assert (found[0].start, found[0].end) == (0, 6)
    assert [one.text for one in score(ask("a b  c"), starts, ends, max_answer_length=1)] == ["c", "a", "b"]
    # Three of the four best starts are in the question, so one remains.
    assert [one.text for one in score(ask("a b  c"), starts, ends, n_best=5)] == ["a b  c"]
    # All three best starts are in the question, so all starts in the context are considered.
    assert score(ask("a b  c"), starts, ends, n_best=3, max_answer_length=2)[0] == ("b  c", 2, 6, 6.0)


def test_no_answer_is_a_candidate():
    starts, ends = [[2, 0, 0, 0, 3, 2, 1, 0]], [[3.5, 0, 0, 0, 1, 2, 4, 0]]
    question = ask("a b c")
    found = score(question, starts, ends, null_answers=True)
    assert [one.text for one in found][:4] == ["a b c", "b c", "", "a b"]
    assert found[2].score == null_score(np.float32(starts), np.float32(ends)) == 5.5
    assert [one.text for one in score(question, starts, ends, null_answers=True, n_best=1)] == ["a b c", ""]
    for threshold, best in ((-1.6, None), (-1.5, found[0]), (0.0, found[0])):
        assert selected(found, config(null_answers=True, null_threshold=threshold)) == best


def test_the_score_of_no_answer_is_the_lowest_of_all_windows():
    starts, ends = np.float32([[5, 1], [1, 0], [2, 9]]), np.float32([[5, 9], [2, 0], [2, 9]])
    assert null_score(starts, ends) == 3


def test_a_start_counts_only_in_its_best_window_and_a_text_only_once():
    question = ask("a b c d e a")
    rows = windows(question, TOKENIZER, config(seq_len=9, doc_stride=2, max_query_length=2))
    assert [row.part for row in rows] == [range(4), range(2, 6)]
    assert [row.max_context.astype(int).tolist() for row in rows] == [[1, 1, 1, 0], [0, 1, 1, 1]]
    starts, ends = np.zeros((2, 9)), np.zeros((2, 9))
    starts[1, 4] = ends[1, 4] = 9  # c at the start of a window, where it has less context
    starts[0, 4] = ends[0, 4] = 3  # the first a; the next line is the second
    starts[1, 7] = ends[1, 7] = 2
    found = score(question, starts, ends, seq_len=9, doc_stride=2, max_query_length=2, max_answer_length=1)
    assert [(one.text, one.score) for one in found] == [("a", 6), ("b", 0), ("c", 0), ("d", 0), ("e", 0)]
    assert (found[0].start, found[0].end) == (0, 1)


def test_rows_without_room_for_the_context_are_an_error():
    for template, least in ((Template.of_bert(0, 1), 68), (Template.of_roberta(0, 1), 69)):
        config(seq_len=least).check_room(template)
        with pytest.raises(UserError, match=rf"config key data\.seq_len: got {least - 1}; expected at least {least}"):
            config(seq_len=least - 1).check_room(template)
