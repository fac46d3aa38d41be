"""Questions with their texts as rows for BERT, and answers out of the scores of start and end.

Windows, training positions and n-best lists follow `run_squad.py` of google-research/bert (BERT section 4.2 and
4.3), but for one thing: pieces are mapped to the characters that they came from, there and back. So an answer is a
part of the text as it was written, where Google's code looks for the best match among normalized words.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.config import Constrained, Count, Size
from bertjax.data.fine_tuning.questions import Answer, Question
from bertjax.data.text.tokenizers import Pieces, WordPiece
from bertjax.errors import UserError

# Where contexts are nearly equal, Google's code favors the longer window: each of its pieces counts as this many.
_LENGTH_BONUS = 0.01


@dataclasses.dataclass(frozen=True)
class SpanConfig(Constrained, prefix="data"):
    """How texts are cut into windows, and answers chosen.

    An answer can be told only if it lies within a window in which its start has the most context. With Google's
    values this is so for every answer of `max_answer_length` pieces.

    Attributes:
      seq_len: tokens of a row at most. Default: 384, or as many as the model has positions, if fewer.
      doc_stride: pieces from the start of one window to that of the next (128).
      max_query_length: pieces of a question that are kept (64).
      max_answer_length: pieces of an answer at most (30).
      n_best: how many answers are kept, and starts and ends of each window are looked at (20).
      null_answers: whether a question may have no answer (SQuAD 2.0).
      null_threshold: by how much no answer must score above the best answer to be chosen (0.0).
      packing: whether several windows share a row of `seq_len` tokens in training.
    """

    seq_len: int
    doc_stride: Size
    max_query_length: Count
    max_answer_length: Size
    n_best: Size
    null_answers: bool
    null_threshold: float
    packing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_len < self.max_query_length + 4:
            raise UserError(
                "config key data.seq_len",
                got=self.seq_len,
                expected=f"at least {self.max_query_length + 4}: max_query_length, [CLS], two [SEP], a piece of text",
                fix="raise data.seq_len (BERT uses 384) or lower data.max_query_length",
            )


class Window(NamedTuple):
    """A row of a question and a part of its context.

    `inputs` holds, for S tokens: input_ids [S] int32, that is [CLS] question [SEP] part [SEP]; token_type_ids [S]
    int32, 1 from the part on.
    """

    inputs: dict[str, np.ndarray]
    document: Pieces  # of the whole context
    part: range  # the pieces of the document that the row has
    first: int  # place in the row of the first of them
    max_context: Bool[np.ndarray, " part"]  # whether a piece of the part has the most context in this window


class Candidate(NamedTuple):
    """A possible answer, scored."""

    text: str  # "" for no answer
    start: int  # characters of the context, half-open
    end: int
    score: float  # logit of the start plus that of the end


def windows(question: Question, tokenizer: WordPiece, config: SpanConfig) -> list[Window]:
    """The rows that together show the whole context; one at least, even if the context has no pieces."""
    query = tokenizer.encode_with_offsets(question.question).ids[: config.max_query_length]
    document = tokenizer.encode_with_offsets(question.context)
    room = config.seq_len - len(query) - 3
    parts = _parts(len(document.ids), room, config.doc_stride)
    owners = _owners(parts)
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    first = len(query) + 2
    found = []
    for number, part in enumerate(parts):
        ids = np.concatenate([cls, query, sep, document.ids[part.start : part.stop], sep])
        types = (np.arange(len(ids)) >= first).astype(np.int32)
        max_context = owners[part.start : part.stop] == number
        found.append(Window({"input_ids": ids, "token_type_ids": types}, document, part, first, max_context))
    return found


def _parts(count: int, room: int, stride: int) -> list[range]:
    """The pieces of each window, up to the first that reaches the end. No stride leaves a gap."""
    step = min(stride, room)
    starts = range(0, max(count - room, 0) + step, step)
    return [range(start, min(start + room, count)) for start in starts]


def _owners(parts: Sequence[range]) -> Int[np.ndarray, " pieces"]:
    """The window in which each piece has the most context: on its poorer side; the first of several."""
    owners = np.zeros(parts[-1].stop, np.int64)
    most = np.full(len(owners), -1.0)
    for number, part in enumerate(parts):
        left = np.arange(len(part))
        context = np.minimum(left, left[::-1]) + _LENGTH_BONUS * len(part)
        here = slice(part.start, part.stop)
        better = context > most[here]
        most[here][better] = context[better]
        owners[here][better] = number
    return owners


def target(window: Window, answer: Answer | None) -> tuple[int, int]:
    """The places in the row of the first and the last piece of an answer.

    These are the pieces that any of the answer's characters came from; Google's code, which searches them by
    their text, takes whole words where an answer ends inside a piece. They are (0, 0), the [CLS], for None and
    for an answer that is not wholly in the window or has no pieces.
    """
    if answer is None:
        return 0, 0
    assert answer.start is not None, "an answer to learn stands somewhere"
    document, part = window.document, window.part
    first = int(np.searchsorted(document.ends, answer.start, side="right"))
    last = int(np.searchsorted(document.starts, answer.start + len(answer.text), side="left")) - 1
    if not part.start <= first <= last < part.stop:
        return 0, 0
    return first - part.start + window.first, last - part.start + window.first


def with_positions(window: Window, answer: Answer | None) -> dict[str, np.ndarray]:
    """The inputs of a row, and start_positions and end_positions (int32 scalars) to be learned: see `target`."""
    start, end = target(window, answer)
    return {
        **window.inputs,
        "start_positions": np.array(start, np.int32),
        "end_positions": np.array(end, np.int32),
    }


def null_score(start_logits: Float[np.ndarray, "windows S"], end_logits: Float[np.ndarray, "windows S"]) -> float:
    """The score of no answer: that of the [CLS] in the window where it is least, for an answer is in some window."""
    return float((start_logits[:, 0].astype(np.float64) + end_logits[:, 0]).min())


def best_answers(
    question: Question,
    windows: Sequence[Window],
    start_logits: Float[np.ndarray, "windows S"],
    end_logits: Float[np.ndarray, "windows S"],
    config: SpanConfig,
) -> list[Candidate]:
    """The best answers of a question, best first, none twice.

    Args:
      question: whose answer is sought.
      windows: all its rows.
      start_logits, end_logits: scores of each place of each row; what stands after a row's end is not looked at.
      config: as of `windows`.
    Returns:
      At most `config.n_best` candidates. With `config.null_answers` no answer ("") is always among them, as one
      more if it is not good enough. Empty if there is nothing to choose from.
    """
    spans = [
        _window_spans(window, start, end, config)
        for window, start, end in zip(windows, start_logits, end_logits, strict=True)
    ]
    if config.null_answers:
        spans.append((np.array([null_score(start_logits, end_logits)]), np.array([0]), np.array([0])))
    scores, starts, ends = (np.concatenate(parts).tolist() for parts in zip(*spans, strict=True))
    best: dict[str, tuple[int, int, float]] = {}
    for index in np.argsort(-np.array(scores), kind="stable").tolist():
        if len(best) == config.n_best:
            break
        span = starts[index], ends[index]
        best.setdefault(question.context[slice(*span)], (*span, scores[index]))
    if config.null_answers:
        best.setdefault("", (0, 0, scores[-1]))
    return [Candidate(text, *span) for text, span in best.items()]


def answer_text(candidates: Sequence[Candidate], config: SpanConfig) -> str:
    """The text of the answer that `best_answers` amount to; "" for no answer."""
    best = next((candidate for candidate in candidates if candidate.text), None)
    if best is None:
        return ""
    nulls = [candidate.score for candidate in candidates if not candidate.text]
    return "" if nulls and nulls[0] - best.score > config.null_threshold else best.text


def _window_spans(
    window: Window, start_logits: Float[np.ndarray, " S"], end_logits: Float[np.ndarray, " S"], config: SpanConfig
) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Scores, first and last characters (half-open) of the spans between the best starts and the best ends."""
    length = len(window.inputs["input_ids"])
    starts, ends = (
        np.argsort(-logits[:length], kind="stable")[: config.n_best] for logits in (start_logits, end_logits)
    )
    scores = start_logits[starts].astype(np.float64)[:, None] + end_logits[ends]
    may_start = np.zeros(length, bool)
    may_start[window.first : -1] = window.max_context
    sizes = ends - starts[:, None] + 1
    # An end that comes after a start within the part is in the part, but for the last [SEP].
    good = may_start[starts][:, None] & (ends < length - 1) & (sizes >= 1) & (sizes <= config.max_answer_length)
    row, column = np.nonzero(good)
    shift = window.part.start - window.first
    return scores[good], window.document.starts[starts[row] + shift], window.document.ends[ends[column] + shift]
