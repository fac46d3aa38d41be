"""Questions about texts as rows: windows of their contexts, in training with the positions of the answers."""

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.codecs.codec import Encoded, Input, Limits, Survey, TrainingCodec, TrainingRows, of_seq_len
from bertjax.data.codecs.questions import questions
from bertjax.data.codecs.questions.questions import Answer, Question, QuestionsConfig
from bertjax.data.codecs.questions.spans import (
    WITHOUT_OVERLAP,
    SpanConfig,
    Window,
    is_exact,
    leaves_no_overlap,
    target,
    windows,
)
from bertjax.data.readers.lines import BadRows
from bertjax.data.readers.tables import key_of
from bertjax.data.rows.text_rows import text_fields
from bertjax.data.splits import TRAIN
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class QuestionCodec(TrainingCodec[Question]):
    """Questions about a context: one row for each window of the context.

    Attributes:
      config: the questions to read.
      spans: the division of contexts into windows, and whether questions may have no answer.
      tokenizer: the tokenizer.
    """

    kind = "QuestionRows"
    config: QuestionsConfig
    spans: SpanConfig
    tokenizer: EncoderTokenizer

    def __post_init__(self) -> None:
        self.spans.check_room(self.tokenizer.template)

    def key(self) -> Any:
        """Returns the description with `null_answers`, on which `survey` depends."""
        spans = self.spans
        settings = [spans.seq_len, spans.doc_stride, spans.max_query_length, spans.null_answers]
        return [key_of(self.config), settings, self.tokenizer.key]

    def splits(self) -> Iterator[tuple[str, Question]]:
        return questions.read_splits(self.config)

    def lines(self, lines: Iterable[str], bad_rows: BadRows) -> Iterator[Input]:
        """Returns an input for each question of a SQuAD file. Answers in the file are ignored."""
        return map(Input, questions.parse_questions("\n".join(lines), bad_rows))

    def objects(self, values: Iterable[Any], bad_rows: BadRows, first: int = 1) -> Iterator[Input]:
        """Returns an input for each {"question": ..., "context": ...}, optionally with "id", by default its number."""
        return map(Input, questions.questions_of(values, bad_rows, first))

    def file(self, path: str, bad_rows: BadRows) -> Iterator[Input] | None:
        """Returns an input for each question of a table; None for a file in SQuAD's form."""
        if not questions.is_table(Path(path), "--input"):
            return None
        return (Input(example, example.columns or {}) for example in questions.read_input(Path(path), bad_rows))

    def survey(self) -> Survey[Question]:
        """Returns a survey that collects no facts. It rejects questions without answers unless `null_answers`."""
        return Survey() if self.spans.null_answers else _AnswerCheck()

    def text(self, example: Question) -> str:
        return f"{example.question}\t{example.context}"

    def gold(self, example: Question) -> list[str]:
        """Returns the texts of all correct answers; none if the question is impossible."""
        return [answer.text for answer in example.answers]

    def encode(self, examples: Sequence[Question]) -> Encoded:
        """Returns the rows of all windows; `extras` are the windows of each question."""
        parts = [windows(example, self.tokenizer, self.spans) for example in examples]
        segments = (window.segments for window in itertools.chain(*parts))
        fields = text_fields(segments, self.tokenizer, self.spans.seq_len)
        return Encoded(fields, np.array(list(map(len, parts)), np.int32), list(map(self._limits, parts)), parts)

    def _limits(self, parts: Sequence[Window]) -> Limits:
        limits = {}
        if parts[0].is_cut:
            limits["truncated"] = f"data.max_query_length={self.spans.max_query_length} tokens in the question"
        if len(parts) > 1:
            limits["split"] = of_seq_len(self.spans.seq_len)
        return limits

    def training(self, examples: Sequence[Question]) -> TrainingRows:
        """Returns rows with "start_positions" and "end_positions".

        The label is the first answer, or [CLS] in a window without it, as in `run_squad.py`. The counts are
        "windows"; "answers_in_no_window", the number of questions with an answer whose windows are all labeled [CLS];
        "answers_inside_tokens", that of questions whose answer begins or ends inside a token, so that no prediction is
        exactly the answer; "contexts_without_overlap", that of questions whose windows share no pieces; and
        "truncated", that of truncated questions.
        """
        encoded = self.encode(examples)
        answers = [example.answers[0] if example.answers else None for example in examples]
        targets = [
            np.array([target(window, answer) for window in parts], np.int32)
            for parts, answer in zip(encoded.extras, answers, strict=True)
        ]
        starts, ends = np.concatenate(targets).T.copy()
        pairs = zip(answers, targets, strict=True)
        counts = {
            "windows": len(starts),
            "answers_in_no_window": sum(answer is not None and not positions.any() for answer, positions in pairs),
            "answers_inside_tokens": sum(
                answer is not None and not is_exact(answer, example, parts[0].document)
                for answer, example, parts in zip(answers, examples, encoded.extras, strict=True)
            ),
            "contexts_without_overlap": sum(map(leaves_no_overlap, encoded.extras)),
            "truncated": sum(parts[0].is_cut for parts in encoded.extras),
        }
        return TrainingRows({**encoded.fields, "start_positions": starts, "end_positions": ends}, counts)

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Warns of windows without overlap. Logs the share of answers that cannot be predicted exactly."""
        if count := report["contexts_without_overlap"]:
            _log.warning(WITHOUT_OVERLAP, count, report["rows"][TRAIN])
        if count := report.get("answers_inside_tokens"):  # which reports of earlier versions lack
            _log.info(
                "%.1f %% of the training questions have an answer that begins or ends inside a token: predictions have "
                "whole tokens, so that they cannot match it exactly",
                100 * count / report["rows"][TRAIN],
            )

    def restored(self, values: Any) -> Question:
        question = Question(*values)
        return question._replace(answers=tuple(Answer(*answer) for answer in question.answers))


class _AnswerCheck(Survey[Question]):
    def add(self, split: str, examples: Sequence[Question]) -> None:
        """Raises UserError if a question has no answer."""
        for question in examples:
            if question.is_impossible:
                raise UserError(
                    f"{question.where} (id {question.id})",
                    got="a question without an answer",
                    expected="an answer, because data.null_answers=False (SQuAD 1.1)",
                    fix="use --config=configs/question_answering.py:squad2, or set --config.data.null_answers=True",
                )
