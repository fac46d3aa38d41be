"""Extractive question answering: SQuAD 1.1 and 2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Count, part
from bertjax.contract import BadInput, Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.questions.question_rows import QuestionRows
from bertjax.data.codecs.questions.questions import (
    Question,
    QuestionsConfig,
    is_table,
    parse_questions,
    questions_of,
    read_input,
)
from bertjax.data.codecs.questions.spans import (
    WITHOUT_OVERLAP,
    Candidate,
    SpanConfig,
    answer_text,
    best_answers,
    leaves_no_overlap,
    null_score,
    windows,
)
from bertjax.data.prepared import VALID
from bertjax.data.readers.lines import BadRows
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, SpanLogits
from bertjax.models.losses import is_best, mask_logits, span_cross_entropy
from bertjax.scoring import squad
from bertjax.tasks import bert, completion, fine_tuning, inputs

_log = logging.getLogger(__name__)

FREE_AFTER_TRAINING = (
    *("data.null_threshold", "data.max_answer_length", "data.n_best", "data.doc_stride", "data.max_query_length"),
    "data.seq_len",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(bert.ModelConfig):
    """The encoder, and the head on top of it; see `BertForQuestionAnswering`.

    Attributes:
      lstm_size: width of each direction of a BiLSTM on top of the encoder; 0 for none.
    """

    lstm_size: Count


@dataclasses.dataclass(frozen=True)
class DataConfig(QuestionsConfig, SpanConfig, fine_tuning.DataConfig):
    """The keys of `data`."""


@dataclasses.dataclass(frozen=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads."""

    model: ModelConfig
    data: DataConfig


resolve = functools.partial(completion.bert, seq_len=384)
open_vocabulary, example_config = bert.open_vocabulary, fine_tuning.example_config


def _example(question: Question, tokenizer: Tokenizer, spans: SpanConfig) -> Example:
    """The example of a question, with one row per window of its context."""
    rows = windows(question, tokenizer, spans)
    of_query = f"data.max_query_length={spans.max_query_length} tokens in the question"
    of_rows = bert.of_seq_len(spans.seq_len)
    limited = {**inputs.limited(of_query, truncated=rows[0].is_cut), **inputs.limited(of_rows, split=len(rows) > 1)}
    example = bert.to_example([row.inputs for row in rows], (question, rows), limited)
    return example._replace(columns=question.columns or {})


def _references(questions: Iterable[Question]) -> dict[str, list[str]]:
    """The reference answers by question id."""
    return {question.id: [answer.text for answer in question.answers] for question in questions}


class Data(fine_tuning.FineTuningData[Config, Question]):
    """See `bertjax.contract.Data`."""

    @functools.cached_property
    def recipe(self) -> QuestionRows:
        """See `FineTuningData.recipe`."""
        data = self._config.data
        return QuestionRows(part(QuestionsConfig, data), part(SpanConfig, data), self.vocabulary)

    def example(self, row: Question) -> Example:
        """See `FineTuningData.example`; one row per window."""
        return _example(row, self.vocabulary, self._config.data)

    def baselines(self) -> Mapping[str, float]:
        """F1 of answering with the whole context or, if there are unanswerable questions, of never answering."""
        questions = list(self.read.held_out(VALID))
        if self._config.data.null_answers:
            unanswerable = [question.is_impossible for question in questions]
            return {"valid/no_answer_f1": 100.0 * sum(unanswerable) / len(unanswerable)}
        texts = {question.id: question.context for question in questions}
        return {"valid/whole_text_f1": squad.score_v1(texts, _references(questions))["f1"]}


class Task(fine_tuning.FineTuningTask[Config]):
    """See `bertjax.contract.TrainingTask`."""

    architecture, term = "BertForQuestionAnswering", "span"
    of_examples = MappingProxyType({"start_positions": np.int32, "end_positions": np.int32})

    def __init__(self, config: Config, vocabulary: Tokenizer) -> None:
        """See `Experiment`."""
        config.data.check_room(vocabulary.template)
        super().__init__(config, vocabulary)

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForQuestionAnswering:
        """See `FineTuningTask.with_head`."""
        return BertForQuestionAnswering(encoder, config.model.lstm_size)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The mean of the cross-entropies of start and end, for each window; see `TrainingTask.loss`.

        The softmax excludes padding and, in packed rows, other windows, so the loss of a window does not depend on its
        batch. `run_squad.py` includes padding, because it pads all rows to one length.
        """
        start, end = self._logits(params, batch, rng)
        starts, ends = batch["start_positions"], batch["end_positions"]
        if self._config.data.packing:
            start, end = (_of_each(logits, batch) for logits in (start, end))
            starts, ends = (batch["cls_positions"] + places for places in (starts, ends))
        each, weights = span_cross_entropy(start, end, starts, ends), batch["weights"]
        metrics = fine_tuning.metrics(batch, is_best(start, starts) * is_best(end, ends), weights)
        return {self.term: jnp.sum(each * weights)}, metrics

    def score_names(self) -> Sequence[str]:
        """The metrics that every set of questions has. `squad.score_v2` adds others for some sets."""
        return ("exact", "f1", "best_exact", "best_f1") if self._config.data.null_answers else ("exact_match", "f1")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The official metrics; with unanswerable questions, also those at the best threshold."""
        best, nulls = {}, {}
        references = _references(example.source[0] for example, _ in results)
        for example, outputs in results:
            question, _ = example.source
            candidates, nulls[question.id] = self._candidates(example, outputs)
            best[question.id] = next((each.text for each in candidates if each.text), "")
        if not self._config.data.null_answers:
            return squad.score_v1(best, references)
        return squad.score_v2(best, references, nulls, null_threshold=self._config.data.null_threshold)

    def _candidates(self, example: Example, outputs: Sequence[Output]) -> tuple[list[Candidate], float]:
        """The best answers of a question, and the score of no answer minus that of the best answer."""
        question, rows = example.source
        width = max(len(row.inputs["input_ids"]) for row in rows)
        start, end = (_stacked([output[name] for output in outputs], width) for name in SpanLogits._fields)
        candidates = best_answers(question, rows, start, end, self._config.data)
        best = next((each.score for each in candidates if each.text), -math.inf)
        return candidates, null_score(start, end) - best

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """An example for each question of a SQuAD file. Answers in the file are ignored."""
        return self._examples(lambda bad_rows: parse_questions("\n".join(lines), bad_rows))

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """See `PredictionTask.examples_of`: an example for each question of a table. Answers in it are ignored."""
        return self._examples(functools.partial(read_input, Path(path))) if is_table(Path(path), "--input") else None

    def examples_in(self, values: Iterable[Any]) -> Iterator[Example]:
        """An example for each {"question": ..., "context": ...}, optionally with "id".

        Default ids are the numbers from 1 on.
        """
        return self._examples(lambda bad_rows: questions_of(values, bad_rows))

    def _examples(self, read: Callable[[BadRows], Iterator[Question]]) -> Iterator[Example]:
        bad_rows = BadRows(self._config.data.on_bad_row)
        make = functools.partial(_example, tokenizer=self._tokenizer, spans=self._config.data)
        count = without = 0
        for example in inputs.examples(read(bad_rows), make, bad_rows):
            count += 1
            without += not isinstance(example.source, BadInput) and leaves_no_overlap(example.source[1])
            yield example
        if without:
            _log.warning(WITHOUT_OVERLAP, without, count)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The start and end logits of each token, [B, S]."""
        return self._logits(params, batch, None)._asdict()

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The answer, "" for none, and its start and end as characters of the context.

        `score` is the score of the best answer, even if no answer is chosen; `null_score` is the score of no answer
        minus `score`. Both are null if the context has no possible answer.
        """
        question, _ = example.source
        candidates, null = self._candidates(example, outputs)
        answer = answer_text(candidates, self._config.data)
        best = next((each for each in candidates if each.text), None)
        chosen = best if answer else None
        return {
            "id": question.id,
            "answer": answer,
            "start": chosen and chosen.start,
            "end": chosen and chosen.end,
            "score": best and round(best.score, 6),
            "null_score": best and round(null, 6),
        }

    def record_fields(self) -> Sequence[str]:
        """See `PredictionTask.record_fields`."""
        return ("id", "answer", "start", "end", "score", "null_score")

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`; adds question, context and reference answers."""
        question, _ = example.source
        right = {
            "reference": [answer.text for answer in question.answers],
            "reference_starts": [answer.start for answer in question.answers],
        }
        shown = {"kind": "answer", "question": question.question, "context": question.context, **right}
        return {**shown, **self.record(example, outputs)}

    def official(self, records: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The answers by question id, as the evaluation scripts of SQuAD read them."""
        return {record["id"]: record["answer"] for record in records}

    def _logits(self, params: Params, batch: Batch, rng: jax.Array | None) -> SpanLogits:
        """The start and end logits, with padding masked."""
        logits = self.apply(params, batch, rng)
        return SpanLogits(*(mask_logits(each, batch["segment_ids"] != 0) for each in logits))


def _of_each(logits: jax.Array, batch: Batch) -> jax.Array:
    """The logits of packed rows [B, S], repeated for each window [B, E, S] with the other windows masked."""
    numbers = 1 + jnp.arange(batch["cls_positions"].shape[1])
    own = batch["segment_ids"][:, None] == numbers[:, None]
    return mask_logits(jnp.broadcast_to(logits[:, None], own.shape), own)


def _stacked(logits: Sequence[np.ndarray], width: int) -> np.ndarray:
    """The logits of rows that were padded to different lengths, as one array [windows, width]."""
    return np.stack([np.pad(row[:width], (0, max(0, width - len(row)))) for row in logits])
