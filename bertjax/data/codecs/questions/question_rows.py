"""Questions as training rows: windows of their contexts, with the positions of the answers."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.data.codecs.questions.questions import Answer, Question, QuestionsConfig, read_splits
from bertjax.data.codecs.questions.spans import WITHOUT_OVERLAP, SpanConfig, leaves_no_overlap, windows, with_positions
from bertjax.data.prepared import TRAIN, Encoded, Recipe, Survey
from bertjax.data.readers.tables import key_of
from bertjax.data.rows.stored import Row, fields_of
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class QuestionRows(Recipe[Question]):
    """The recipe of questions: one row for each window of the context.

    Attributes:
      config: the questions to read.
      spans: the division of contexts into windows, and whether questions may have no answer.
      tokenizer: the tokenizer.
    """

    config: QuestionsConfig
    spans: SpanConfig
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.spans.check_room(self.tokenizer.template)

    def key(self) -> Any:
        """See `Recipe.key`. `null_answers` is part of it because `survey` depends on it."""
        spans = self.spans
        of_spans = [spans.seq_len, spans.doc_stride, spans.max_query_length, spans.null_answers]
        return [key_of(self.config), of_spans, self.tokenizer.key]

    def read(self) -> Iterator[tuple[str, Question]]:
        """See `Recipe.read`. Raises UserError if `questions.read_splits` does."""
        return read_splits(self.config)

    def survey(self) -> Survey[Question]:
        """See `Recipe.survey`. Collects no facts. Rejects questions without answers unless `null_answers` is set."""
        return Survey() if self.spans.null_answers else _AnswerCheck()

    def text(self, row: Question) -> str:
        """See `Recipe.text`."""
        return f"{row.question}\t{row.context}"

    def encode(self, rows: Sequence[Question]) -> Encoded:
        """See `Recipe.encode`. The fields include "start_positions" and "end_positions".

        The label is the first answer, or [CLS] in a window without it, as in `run_squad.py`. The counts are
        "windows"; "answers_in_no_window", the number of questions with an answer whose windows are all labeled [CLS];
        "contexts_without_overlap", that of questions whose windows share no pieces; and "truncated", that of truncated
        questions.
        """
        encoded: list[Row] = []
        lost = without = truncated = 0
        for question in rows:
            answer = question.answers[0] if question.answers else None
            parts = windows(question, self.tokenizer, self.spans)
            truncated += parts[0].is_cut
            found = [with_positions(window, answer) for window in parts]
            lost += answer is not None and not any(row["start_positions"] for row in found)
            without += leaves_no_overlap(parts)
            encoded += found
        counts = {"windows": len(encoded), "answers_in_no_window": lost}
        counts |= {"contexts_without_overlap": without, "truncated": truncated}
        return Encoded(fields_of(encoded), counts)

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """See `Recipe.check`. Warns of windows without overlap."""
        if count := report["contexts_without_overlap"]:
            _log.warning(WITHOUT_OVERLAP, count, report["rows"][TRAIN])

    def restored(self, values: Any) -> Question:
        """See `Recipe.restored`."""
        question = Question(*values)
        return question._replace(answers=tuple(Answer(*answer) for answer in question.answers))


class _AnswerCheck(Survey[Question]):
    def add(self, split: str, rows: Sequence[Question]) -> None:
        """Raises UserError if a question has no answer."""
        for question in rows:
            if question.is_impossible:
                raise UserError(
                    f"{question.where} (id {question.id})",
                    got="a question without an answer",
                    expected="an answer, because data.null_answers=False (SQuAD 1.1)",
                    fix="use --config=configs/question_answering.py:squad2, or set --config.data.null_answers=True",
                )
