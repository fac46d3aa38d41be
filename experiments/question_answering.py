"""Extractive question answering: SQuAD 1.1 and 2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Constrained, Count, build_all
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.fine_tuning.question_rows import QuestionRows
from bertjax.data.fine_tuning.questions import Question, QuestionsConfig, parse_questions
from bertjax.data.fine_tuning.spans import (
    Candidate,
    SpanConfig,
    answer_text,
    best_answers,
    null_score,
    windows,
)
from bertjax.data.prepared import PreparationConfig
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.buckets import check_seq_len
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import VocabularyConfig
from bertjax.errors import UserError
from bertjax.models.heads import BertForQuestionAnswering, SpanLogits
from bertjax.models.losses import is_best, mask_logits, span_cross_entropy
from bertjax.scoring import squad
from bertjax.tasks import fine_tuning, inputs, pretrained
from bertjax.tasks.bert import BertTask, check_two_segments, model_configs, to_example
from bertjax.tasks.fine_tuning import FineTuningConfig, FineTuningData, FineTuningFacts

_SEQ_LEN = 384  # the default


Config = FineTuningConfig  # no additional keys


@dataclasses.dataclass(frozen=True)
class HeadConfig(Constrained, prefix="model"):
    """The head on top of the encoder; see `BertForQuestionAnswering`."""

    lstm_size: Count


_DATA = (QuestionsConfig, SpanConfig, VocabularyConfig, PreparationConfig)
FREE_AFTER_TRAINING = (
    *("data.null_threshold", "data.max_answer_length", "data.n_best", "data.doc_stride", "data.max_query_length"),
    "data.seq_len",
)


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Experiment.resolve`. Raises UserError if config keys contradict each other or the folder in `init_from`."""
    return pretrained.resolve(config, seq_len=_SEQ_LEN)


read_facts = fine_tuning.read_facts
stand_in_facts = fine_tuning.stand_in_facts


def _example(question: Question, tokenizer: Tokenizer, spans: SpanConfig) -> Example:
    """The example of a question, with one row per window of its context."""
    rows = windows(question, tokenizer, spans)
    return to_example([row.inputs for row in rows], (question, rows))


def _references(questions: Iterable[Question]) -> dict[str, list[str]]:
    """The reference answers by question id."""
    return {question.id: [answer.text for answer in question.answers] for question in questions}


class QuestionAnsweringData(FineTuningData[Config, Question]):
    """See `bertjax.contract.Data`."""

    def __init__(self, config: Config, folder: Path) -> None:
        """See `Trainable.build_data`."""
        self._text, self._spans, *_ = build_all(_DATA, config.data, "data")
        super().__init__(config, folder, self._spans.seq_len, self._spans.packing)

    @functools.cached_property
    def recipe(self) -> QuestionRows:
        """See `FineTuningData.recipe`."""
        return QuestionRows(self._text, self._spans, self.tokenizer)

    @functools.cached_property
    def _held_out(self) -> list[Example]:
        return [_example(question, self.tokenizer, self._spans) for question in self.read.valid()]

    def held_out(self) -> Iterator[Example]:
        """See `Data.held_out`; one row per window."""
        return iter(self._held_out)

    def baselines(self) -> Mapping[str, float]:
        """F1 of answering with the whole context or, if there are unanswerable questions, of never answering."""
        questions = list(self.read.valid())
        if self._spans.null_answers:
            unanswerable = [question.is_impossible for question in questions]
            return {"valid/no_answer_f1": 100.0 * sum(unanswerable) / len(unanswerable)}
        texts = {question.id: question.context for question in questions}
        return {"valid/whole_text_f1": squad.score_v1(texts, _references(questions))["f1"]}


build_data = QuestionAnsweringData


class QuestionAnswering(BertTask[Config]):
    """See `bertjax.contract.Task`."""

    architecture = "BertForQuestionAnswering"

    def __init__(self, config: Config, facts: FineTuningFacts) -> None:
        """See `Experiment.build_task`."""
        self._text, self._spans, *_ = build_all(_DATA, config.data, "data")
        bert, head = model_configs(config, HeadConfig, facts.tokenizer.vocab)
        check_seq_len(self._spans.seq_len, bert.max_positions)
        check_two_segments(bert)
        fine_tuning.check_packing(self._spans.packing, config.model)
        model = BertForQuestionAnswering(bert, head.lstm_size)
        super().__init__(config, facts.tokenizer, bert, model, self._spans.seq_len)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        of_rows = {"start_positions": np.int32, "end_positions": np.int32}
        spans = self._spans
        return fine_tuning.training_specs(self._config.batch_size, spans.seq_len, spans.packing, {}, of_rows)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The number of windows."""
        return {"span": jnp.maximum(jnp.sum(batch["weights"]), 1.0)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The mean of the cross-entropies of start and end, for each window; see `Task.loss`.

        The softmax excludes padding and, in packed rows, other windows, so the loss of a window does not depend on its
        batch. `run_squad.py` includes padding, because it pads all rows to one length.
        """
        start, end = self._logits(params, batch, rng)
        starts, ends = batch["start_positions"], batch["end_positions"]
        if self._spans.packing:
            start, end = (_of_each(logits, batch) for logits in (start, end))
            starts, ends = (batch["cls_positions"] + places for places in (starts, ends))
        weights, count = batch["weights"], jnp.sum(batch["weights"])
        each = span_cross_entropy(start, end, starts, ends)
        metrics = {
            "accuracy": (jnp.sum(is_best(start, starts) * is_best(end, ends) * weights), count),
            "tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(())),
        }
        return {"span": jnp.sum(each * weights)}, metrics

    def score_names(self) -> Sequence[str]:
        """The metrics that every set of questions has. `squad.score_v2` adds others for some sets."""
        return ("exact", "f1", "best_exact", "best_f1") if self._spans.null_answers else ("exact_match", "f1")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The official metrics; with unanswerable questions, also those at the best threshold."""
        best, nulls = {}, {}
        references = _references(example.source[0] for example, _ in results)
        for example, outputs in results:
            question, _ = example.source
            candidates, nulls[question.id] = self._candidates(example, outputs)
            best[question.id] = next((each.text for each in candidates if each.text), "")
        if not self._spans.null_answers:
            return squad.score_v1(best, references)
        return squad.score_v2(best, references, nulls, null_threshold=self._spans.null_threshold)

    def _candidates(self, example: Example, outputs: Sequence[Output]) -> tuple[list[Candidate], float]:
        """The best answers of a question, and the score of no answer minus that of the best answer."""
        question, rows = example.source
        width = max(len(row.inputs["input_ids"]) for row in rows)
        start, end = (_stacked([output[name] for output in outputs], width) for name in SpanLogits._fields)
        candidates = best_answers(question, rows, start, end, self._spans)
        best = next((each.score for each in candidates if each.text), -math.inf)
        return candidates, null_score(start, end) - best

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """An example for each question of a SQuAD file. Answers in the file are ignored."""
        bad_rows = BadRows(self._text.on_bad_row)
        make = functools.partial(_example, tokenizer=self._tokenizer, spans=self._spans)
        return inputs.examples(parse_questions("\n".join(lines), bad_rows), make, bad_rows)

    def examples_in(self, inputs: Iterable[Any]) -> Iterator[Example]:
        """An example for each {"question": ..., "context": ...}, optionally with "id"; see `Predicts.examples_in`.

        Default ids are the numbers from 1 on.
        """
        articles = [_as_article(each, number) for number, each in enumerate(inputs, start=1)]
        return self.examples(iter([json.dumps({"data": articles})]))

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
        answer = answer_text(candidates, self._spans)
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


def _as_article(value: Any, number: int) -> dict[str, Any]:
    """An article of a SQuAD file with one question."""
    if not isinstance(value, Mapping) or not {"question", "context"} <= value.keys():
        is_dict = isinstance(value, Mapping)
        raise UserError(
            f"input {number}",
            got=f"keys {', '.join(map(repr, value))}" if is_dict else f"an object of type {type(value).__name__}",
            expected='a dict with "question" and "context"',
            fix='pass {"question": "...", "context": "..."}',
        )
    question = {"id": str(value.get("id", number)), "question": value["question"]}
    return {"paragraphs": [{"context": value["context"], "qas": [question]}]}


build_task = QuestionAnswering


def _of_each(logits: jax.Array, batch: Batch) -> jax.Array:
    """The logits of packed rows [B, S], repeated for each window [B, E, S] with the other windows masked."""
    numbers = 1 + jnp.arange(batch["cls_positions"].shape[1])
    own = batch["segment_ids"][:, None] == numbers[:, None]
    return mask_logits(jnp.broadcast_to(logits[:, None], own.shape), own)


def _stacked(logits: Sequence[np.ndarray], width: int) -> np.ndarray:
    """The logits of rows that were padded to different lengths, as one array [windows, width]."""
    return np.stack([np.pad(row[:width], (0, max(0, width - len(row)))) for row in logits])
