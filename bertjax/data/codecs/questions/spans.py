"""Converts questions with their contexts to rows for BERT, and start and end logits to answers.

Windows, training positions and n-best lists follow `run_squad.py` of google-research/bert (BERT section 4.2 and 4.3),
with two exceptions. Pieces are mapped to the characters that they came from. An answer is therefore a part of the
original text, whereas Google's code searches for the best match among normalized words. And if the best starts and ends
make no answer, all starts and ends are considered, whereas Google's code gives no answer.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.config import Constrained, Count, Size, always
from bertjax.data.codecs.questions.questions import Answer, Question
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizers import EncoderTokenizer, Pieces

_Logits = Float[np.ndarray, " S"]  # of the positions of a row
_Pairs = tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]  # first and last position in the row
# If contexts are nearly equal, Google's code prefers the longer window: each of its pieces adds this much.
_LENGTH_BONUS = 0.01
WITHOUT_OVERLAP = (
    "%d of %d contexts have windows that do not overlap, so that words at their ends have little context: "
    "lower data.doc_stride to about half of data.seq_len"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanConfig(Constrained, prefix="data"):
    """The division of texts into windows, and the selection of answers.

    An answer can be predicted only if it lies within the window in which its start has the most context. With Google's
    values this holds for every answer of up to `max_answer_length` pieces.

    Attributes:
      seq_len: the maximum number of tokens of a row. Default: 384, or the model's positions if fewer.
      doc_stride: the number of pieces from the start of one window to that of the next.
      max_query_length: the maximum number of pieces of a question; the rest is truncated.
      max_answer_length: the maximum number of pieces of an answer.
      n_best: the number of answers to keep, and of starts and ends to consider in each window.
      null_answers: whether a question may have no answer (SQuAD 2.0).
      null_threshold: "no answer" is selected if its score exceeds that of the best answer by more than this.
      packing: whether several examples share a row of `seq_len` tokens in training, each attending only to itself.
    """

    seq_len: int = always(None)
    doc_stride: Size = always(128)
    max_query_length: Count = always(64)
    max_answer_length: Size = always(30)
    n_best: Size = always(20)
    null_answers: bool = always(False)
    null_threshold: float = always(0.0)
    packing: bool = False

    def check_room(self, template: Template) -> None:
        """Raises UserError if rows have no room for a question, special tokens and a piece of text."""
        special = template.num_special(2)
        least = self.max_query_length + special + 1
        fix = "raise data.seq_len (BERT uses 384) or lower data.max_query_length"
        expected = f"at least {least}: max_query_length, {special} special tokens, a piece of text"
        self.check(self.seq_len >= least, "seq_len", expected, fix=fix)


class Window(NamedTuple):
    """A row of a question and a part of its context."""

    query: Sequence[int]  # the pieces of the question, truncated
    document: Pieces  # the pieces of the whole context
    part: range  # the indices of those pieces of the document that are in the row
    first: int  # the position in the row of the first piece of the part
    length: int  # the number of tokens of the row
    max_context: Bool[np.ndarray, " part"]  # whether each piece of the part has the most context in this window
    is_cut: bool  # whether the question is truncated

    @property
    def segments(self) -> tuple[Sequence[int], Sequence[int]]:
        """The pieces of the question and of the part."""
        return self.query, self.document.ids[self.part.start : self.part.stop].tolist()


class Candidate(NamedTuple):
    """A possible answer with its score."""

    text: str  # "" for no answer
    start: int  # the half-open range of characters in the context
    end: int
    score: float  # logit of the start plus that of the end


def windows(question: Question, tokenizer: EncoderTokenizer, config: SpanConfig) -> list[Window]:
    """Returns the rows that together contain the whole context; at least one, even if the context has no pieces."""
    pieces = tokenizer.encode_with_offsets(question.question).ids.tolist()
    query = tokenizer.template.truncated(pieces, config.max_query_length)
    is_cut = len(pieces) > len(query)
    document = tokenizer.encode_with_offsets(question.context)
    special = len(query) + tokenizer.template.num_special(2)  # tokens of a row that are not of the context
    first = tokenizer.template.second_start(len(query))
    parts = _parts(len(document.ids), config.seq_len - special, config.doc_stride)
    owners = _owners(parts)
    return [
        Window(query, document, part, first, special + len(part), owners[part.start : part.stop] == number, is_cut)
        for number, part in enumerate(parts)
    ]


def leaves_no_overlap(windows: Sequence[Window]) -> bool:
    """Returns whether a context is divided into windows that share no pieces."""
    return len(windows) > 1 and windows[1].part.start == windows[0].part.stop


def _parts(count: int, room: int, stride: int) -> list[range]:
    """Divides a context into windows.

    Args:
      count: the number of pieces of the context.
      room: the maximum number of pieces in a window.
      stride: see `SpanConfig.doc_stride`.
    Returns:
      The indices of the pieces of each window. Only the last window reaches the end of the context.
    """
    step = min(stride, room)  # a larger step would leave pieces between two windows
    # The last window is the first one that starts at `count - room` or later.
    starts = range(0, max(count - room, 0) + step, step)
    return [range(start, min(start + room, count)) for start in starts]


def _owners(parts: Sequence[range]) -> Int[np.ndarray, " pieces"]:
    """Returns for each piece the number of the window in which it has the most context.

    The context of a piece is the number of pieces on its left or right, whichever is smaller, plus the bonus. Of equal
    windows, the first is taken.
    """
    owners = np.zeros(parts[-1].stop, np.int64)
    most = np.full(len(owners), -1.0)
    for number, part in enumerate(parts):
        left_context = np.arange(len(part))
        right_context = left_context[::-1]
        context = np.minimum(left_context, right_context) + _LENGTH_BONUS * len(part)
        here = slice(part.start, part.stop)
        better = context > most[here]
        most[here][better] = context[better]  # `most[here]` is a view, so this changes `most`
        owners[here][better] = number
    return owners


def target(window: Window, answer: Answer | None) -> tuple[int, int]:
    """Returns the positions in the row of the first and the last piece of an answer.

    They are the first and last piece with a character of the answer. Google's code searches for the pieces by text, and
    takes whole words if an answer ends inside a piece. The result is (0, 0), the position of [CLS], for None and for an
    answer that is not completely in the window or has no pieces.
    """
    if answer is None:
        return 0, 0
    assert answer.start is not None, "an answer for training has a position"
    part = window.part
    first, last = _pieces_of(answer.text, answer.start, window.document)
    if not part.start <= first <= last < part.stop:
        return 0, 0
    return first - part.start + window.first, last - part.start + window.first


def is_exact(answer: Answer, question: Question, document: Pieces) -> bool:
    """Returns whether a span of pieces is exactly an answer: whether no piece crosses its start or its end.

    Args:
      answer: an answer with a position.
      question: the question.
      document: the pieces of its context.
    """
    assert answer.start is not None, "an answer for training has a position"
    first, last = _pieces_of(answer.text, answer.start, document)
    span = slice(document.starts[first], document.ends[last]) if first <= last else slice(0)
    return question.context[span] == answer.text.strip()


def _pieces_of(text: str, start: int, document: Pieces) -> tuple[int, int]:
    """Returns the first piece that ends after the start of a text, and the last that starts before its end."""
    first = int(np.searchsorted(document.ends, start, side="right"))
    return first, int(np.searchsorted(document.starts, start + len(text), side="left")) - 1


def null_score(start_logits: Sequence[_Logits], end_logits: Sequence[_Logits]) -> float:
    """Returns the score of no answer: the lowest score of [CLS] in any window.

    Only the lowest counts: the target of a window without the answer is [CLS], even if another window has the answer.
    """
    scores = [float(start[0]) + float(end[0]) for start, end in zip(start_logits, end_logits, strict=True)]
    return float(np.min(scores))  # NaN if one of them is


def best_answers(
    question: Question,
    windows: Sequence[Window],
    start_logits: Sequence[_Logits],
    end_logits: Sequence[_Logits],
    config: SpanConfig,
) -> list[Candidate]:
    """Returns the best answers of a question, best first, each text once.

    Args:
      question: the question.
      windows: all its rows.
      start_logits, end_logits: the scores of the positions of each row; values after a row's end are ignored.
      config: the config of `windows`.
    Returns:
      At most `config.n_best` candidates. With `config.null_answers`, "no answer" ("") is always included; it is an
      additional candidate if its score is too low. Empty if there are no candidates.
    """
    rows = list(zip(windows, start_logits, end_logits, strict=True))
    for find_pairs in (_best_pairs, _all_pairs):  # all pairs only if the best give no answer in any window
        spans = [_spans(*row, find_pairs(*row, config), config) for row in rows]
        if any(len(scores) for scores, _, _ in spans):
            break
    if config.null_answers:
        spans.append((np.array([null_score(start_logits, end_logits)]), np.array([0]), np.array([0])))
    scores, starts, ends = (np.concatenate(arrays).tolist() for arrays in zip(*spans, strict=True))
    best: dict[str, Candidate] = {}
    for index in np.argsort(-np.array(scores), kind="stable").tolist():
        if len(best) == config.n_best:
            break
        text = question.context[starts[index] : ends[index]]
        best.setdefault(text, Candidate(text, starts[index], ends[index], scores[index]))
    if config.null_answers:
        best.setdefault("", Candidate("", 0, 0, scores[-1]))  # the last span is "no answer"
    return list(best.values())


def best_with_text(candidates: Iterable[Candidate]) -> Candidate | None:
    """Returns the first candidate that is not "no answer"."""
    return next((candidate for candidate in candidates if candidate.text), None)


def selected(candidates: Sequence[Candidate], config: SpanConfig) -> Candidate | None:
    """Returns the answer that is selected from the result of `best_answers`; None for no answer."""
    best = best_with_text(candidates)
    nulls = [candidate.score for candidate in candidates if not candidate.text]
    return None if best and nulls and nulls[0] - best.score > config.null_threshold else best


def _best_pairs(window: Window, start_logits: _Logits, end_logits: _Logits, config: SpanConfig) -> _Pairs:
    """Returns the pairs of the best starts and the best ends, as positions of the row."""
    starts, ends = (
        np.argsort(-logits[: window.length], kind="stable")[: config.n_best] for logits in (start_logits, end_logits)
    )
    return np.repeat(starts, len(ends)), np.tile(ends, len(starts))


def _all_pairs(window: Window, start_logits: _Logits, end_logits: _Logits, config: SpanConfig) -> _Pairs:
    """Returns the pairs of each start in the part and each end that makes a span of allowed length.

    Some ends are after the part; `_spans` drops these pairs.
    """
    starts = np.arange(window.first, window.first + len(window.part))
    offsets = np.arange(min(config.max_answer_length, len(starts)))
    return np.repeat(starts, len(offsets)), (starts[:, None] + offsets).ravel()


def _spans(
    window: Window, start_logits: _Logits, end_logits: _Logits, pairs: _Pairs, config: SpanConfig
) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Returns scores and half-open character ranges of the spans that are possible answers."""
    starts, ends = pairs
    stop = window.first + len(window.part)
    sizes = ends - starts + 1
    may_start = np.zeros(window.length, bool)
    may_start[window.first : stop] = window.max_context
    # A start in the part and a size of at least 1 exclude ends before the part; `ends < stop` excludes those after it.
    is_allowed = may_start[starts] & (ends < stop) & (sizes >= 1) & (sizes <= config.max_answer_length)
    starts = starts[is_allowed]
    ends = ends[is_allowed]
    scores = start_logits[starts].astype(np.float64) + end_logits[ends]
    shift = window.part.start - window.first  # from a position in the row to the index of a piece
    char_starts = window.document.starts[starts + shift]
    char_ends = window.document.ends[ends + shift]
    has_text = char_starts < char_ends  # spaces alone are no answer
    return scores[has_text], char_starts[has_text], char_ends[has_text]
