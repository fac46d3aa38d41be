"""Questions answered by a part of a text, or by none: SQuAD 1.1 and 2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Constrained, Count, build_all
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, Sums, Task
from bertjax.data.fine_tuning.given_text import GivenText
from bertjax.data.fine_tuning.questions import Question, QuestionsConfig, parse_questions, read_splits
from bertjax.data.fine_tuning.spans import (
    Candidate,
    SpanConfig,
    Window,
    answer_text,
    best_answers,
    null_score,
    windows,
    with_positions,
)
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.buckets import BucketedBatches, Rows, bucket_lengths, check_seq_len
from bertjax.data.rows.packed_rows import PackedBatches, count_rows, training_batches
from bertjax.data.text.given_vocabulary import VocabularyConfig, kept_vocabulary
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.models.heads import BertForQuestionAnswering, SpanLogits
from bertjax.models.losses import is_best, mask_logits, span_cross_entropy
from bertjax.models.transformer import TENSOR_RULES
from bertjax.scoring import squad
from bertjax.tasks import fine_tuning, inputs, pretrained, samples
from bertjax.tasks.fine_tuning import FineTuningConfig

# Contexts are held out by their numbers alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0
_SEQ_LEN = 384  # the default


Config = FineTuningConfig  # it reads no keys of its own


@dataclasses.dataclass(frozen=True)
class HeadConfig(Constrained, prefix="model"):
    """What is on top of the encoder; see `BertForQuestionAnswering`."""

    lstm_size: Count


_DATA = (QuestionsConfig, SpanConfig, VocabularyConfig)
FREE_AFTER_TRAINING = (
    *("data.null_threshold", "data.max_answer_length", "data.n_best", "data.doc_stride", "data.max_query_length"),
    "data.seq_len",
)


def resolve(config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
    """Fills in what `init_from` determines, and lengths in updates; these only if it is to read the questions.

    Raises:
      UserError: contradictions, and whatever is wrong with the questions.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN)
    text, spans, _ = build_all(_DATA, config["data"], "data")
    count = 1
    if text.source and reads:
        windows = _training_rows(text, spans, GivenText.of(config["data"], Path()).tokenizer())
        count = count_rows(windows.lengths, spans.seq_len, spans.packing)
    return fine_tuning.resolve_lengths(config, count)


@functools.lru_cache(maxsize=1)
def _read(config: QuestionsConfig, null_answers: bool) -> tuple[list[Question], list[Question]]:
    """The training questions and the held-out questions."""
    splits = read_splits(config, _SPLIT_SEED)
    for question in [] if null_answers else [*splits[0], *splits[1]]:
        if question.is_impossible:
            raise UserError(
                f"{question.where} (id {question.id})",
                got="a question that has no answer",
                expected="answers, as data.null_answers=False says (SQuAD 1.1)",
                fix="use --config=configs/question_answering.py:squad2, or set --config.data.null_answers=True",
            )
    return splits


@functools.lru_cache(maxsize=1)
def _training_rows(config: QuestionsConfig, spans: SpanConfig, tokenizer: WordPiece) -> Rows:
    """A row for each window of each training question; `resolve` counts them before the task trains on them.

    Of several answers the first is learned; in a window without it, [CLS], as in `run_squad.py`.
    """
    return Rows(
        with_positions(window, question.answers[0] if question.answers else None)
        for question in _read(config, spans.null_answers)[0]
        for window in windows(question, tokenizer, spans)
    )


def preparation(config: Config, workdir: Path) -> GivenText:
    """The questions that training needs; their vocabulary is kept in the run's folder."""
    return GivenText.of(config.data, workdir / "data")


def make(config: Config, vocab_dir: Path | None, prepared: Path | None) -> "QuestionAnswering":
    """The task.

    Args:
      config: its settings.
      vocab_dir: see `kept_vocabulary`.
      prepared: any folder if the task is to train or to be scored; without it the questions are not read.
    """
    tokenizer = kept_vocabulary(vocab_dir, config.data["lowercase"])
    return QuestionAnswering(config, tokenizer, reads=prepared is not None)


class QuestionAnswering(Task):
    """See `bertjax.contract.Task`."""

    def __init__(self, config: Config, tokenizer: WordPiece, reads: bool) -> None:
        """Args: settings; the vocabulary; whether to read questions. Raises UserError if they do not fit together."""
        self._config, self._tokenizer, self._reads = config, tokenizer, reads
        self._text, self._spans, _ = build_all(_DATA, config.data, "data")
        self._model_config, head = fine_tuning.model_configs(config, HeadConfig, tokenizer.vocab)
        check_seq_len(self._spans.seq_len, self._model_config.max_positions)
        fine_tuning.check_two_segments(self._model_config)
        fine_tuning.check_packing(self._spans.packing, config.model)
        self._model = BertForQuestionAnswering(self._model_config, head.lstm_size)

    @functools.cached_property
    def _train(self) -> BucketedBatches | PackedBatches:
        assert self._reads, "a task that has read no questions only predicts"
        rows = _training_rows(self._text, self._spans, self._tokenizer)
        length, packing = self._spans.seq_len, self._spans.packing
        return training_batches(rows, length, packing, self._config.batch_size, self._config.seed)

    @functools.cached_property
    def _valid(self) -> list[tuple[Question, list[Window]]]:
        """The held-out questions and their windows."""
        assert self._reads, "a task that has read no questions only predicts"
        _, questions = _read(self._text, self._spans.null_answers)
        return [(question, windows(question, self._tokenizer, self._spans)) for question in questions]

    def init(self, rng: jax.Array) -> Params:
        """See `Task.init`."""
        return fine_tuning.init(self._model, rng)

    def warm_start(self, params: Params) -> Params:
        """See `Task.warm_start`."""
        return pretrained.warm_start(params, Path(self._config.init_from)) if self._config.init_from else params

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Task.partition_rules`."""
        return TENSOR_RULES

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        of_rows = {"start_positions": np.int32, "end_positions": np.int32}
        spans = self._spans
        return fine_tuning.training_specs(self._config.batch_size, spans.seq_len, spans.packing, {}, of_rows)

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Task.batches`."""
        return self._train.training(start, rows) if split == "train" else iter(())

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The windows."""
        return {"span": jnp.maximum(jnp.sum(batch["weights"]), 1.0)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The mean of the cross-entropies of start and end, of each window; see `Task.loss`.

        Padding takes no part in the softmax, unlike in `run_squad.py`, which pads all rows to one length: so a window's
        loss does not depend on the length of its batch, nor, packed, on what it shares a row with.
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

    def baselines(self) -> Mapping[str, float]:
        """What it scores to answer each question by its whole text, or with unanswerable ones to answer none."""
        if self._spans.null_answers:
            unanswerable = [question.is_impossible for question, _ in self._valid]
            return {"valid/no_answer_f1": 100.0 * sum(unanswerable) / len(unanswerable)}
        texts = {question.id: question.context for question, _ in self._valid}
        return {"valid/whole_text_f1": squad.score_v1(texts, self._references())["f1"]}

    def _references(self) -> dict[str, list[str]]:
        return {question.id: [answer.text for answer in question.answers] for question, _ in self._valid}

    def held_out(self) -> Iterator[Example]:
        """See `Task.held_out`; a row for each window."""
        for question, rows in self._valid:
            yield fine_tuning.example([row.inputs for row in rows], (question, rows))

    def score_names(self) -> Sequence[str]:
        """The figures that there are for any questions; those of `squad.score_v2` for a part of them come on top."""
        return ("exact", "f1", "best_exact", "best_f1") if self._spans.null_answers else ("exact_match", "f1")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The official figures; with unanswerable questions, also with the best threshold in place of the config's."""
        best, nulls = {}, {}
        for example, outputs in results:
            question, _ = example.source
            candidates, nulls[question.id] = self._candidates(example, outputs)
            best[question.id] = next((each.text for each in candidates if each.text), "")
        if not self._spans.null_answers:
            return squad.score_v1(best, self._references())
        return squad.score_v2(best, self._references(), nulls, null_threshold=self._spans.null_threshold)

    def _candidates(self, example: Example, outputs: Sequence[Output]) -> tuple[list[Candidate], float]:
        """The best answers of a question; and by how much no answer scores above the best one that is none."""
        question, rows = example.source
        width = max(len(row.inputs["input_ids"]) for row in rows)
        start, end = (_stacked([output[name] for output in outputs], width) for name in SpanLogits._fields)
        candidates = best_answers(question, rows, start, end, self._spans)
        best = next((each.score for each in candidates if each.text), -math.inf)
        return candidates, null_score(start, end) - best

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """The questions of a SQuAD file, whose answers are not looked for."""
        bad_rows = BadRows(self._text.on_bad_row)
        return inputs.examples(parse_questions("\n".join(lines), bad_rows), self._example, bad_rows)

    def _example(self, question: Question) -> Example:
        rows = windows(question, self._tokenizer, self._spans)
        return fine_tuning.example([row.inputs for row in rows], (question, rows))

    def predict_lengths(self) -> Sequence[int]:
        """See `Task.predict_lengths`."""
        return bucket_lengths(self._spans.seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of `start` and `end` at each token, [B, S]."""
        return self._logits(params, batch, None)._asdict()

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The answer, "" for none, and its characters in the context.

        `score` is that of the best answer, chosen or not, and `null_score` by how much that of no answer is above it;
        null where the text has nothing that could be an answer.
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

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Held-out questions in their contexts, with the answers and the right ones; see `Task.samples`."""
        for number, (example, outputs) in enumerate(infer(self.held_out())):
            question, _ = example.source
            right = {
                "reference": [answer.text for answer in question.answers],
                "reference_starts": [answer.start for answer in question.answers],
            }
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer.vocab)
            shown = {"kind": "answer", "question": question.question, "context": question.context, **right}
            yield {**shown, **self.record(example, outputs), **seen}
        yield from samples.bert_positions(params)

    def official(self, records: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The answer of each id, as the evaluation scripts of SQuAD read it."""
        return {record["id"]: record["answer"] for record in records}

    def export(self, params: Params, folder: Path) -> None:
        """A folder that `transformers.BertForQuestionAnswering.from_pretrained` opens."""
        huggingface.save(folder, params, self._model_config, "BertForQuestionAnswering", None)
        self._tokenizer.save(folder, self._model_config.max_positions)

    def save_vocabulary(self, folder: Path) -> None:
        """See `Task.save_vocabulary`."""
        self._tokenizer.save(folder)

    def _logits(self, params: Params, batch: Batch, rng: jax.Array | None) -> SpanLogits:
        """Those of padding are so low that a softmax gives it nothing."""
        logits = fine_tuning.apply(self._model, params, batch, rng)
        return SpanLogits(*(mask_logits(each, batch["segment_ids"] != 0) for each in logits))


def _of_each(logits: jax.Array, batch: Batch) -> jax.Array:
    """The logits of packed rows [B, S] once for each of their windows [B, E, S], those of the others masked."""
    numbers = 1 + jnp.arange(batch["cls_positions"].shape[1])
    own = batch["segment_ids"][:, None] == numbers[:, None]
    return mask_logits(jnp.broadcast_to(logits[:, None], own.shape), own)


def _stacked(logits: Sequence[np.ndarray], width: int) -> np.ndarray:
    """The logits of rows that were padded to different lengths, as one array [windows, width]."""
    return np.stack([np.pad(row[:width], (0, max(0, width - len(row)))) for row in logits])
