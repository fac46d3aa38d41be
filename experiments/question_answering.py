"""Extractive question answering: SQuAD 1.1 and 2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Count, Flat, always, one_of
from bertjax.contract import BadInput, Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.questions import spans
from bertjax.data.codecs.questions.question_rows import QuestionCodec
from bertjax.data.codecs.questions.questions import Question, QuestionsConfig
from bertjax.data.codecs.questions.spans import Candidate, SpanConfig
from bertjax.data.splits import VALID
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.korean import HANGUL
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, SpanLogits
from bertjax.models.losses import is_best, mask_logits, span_cross_entropy
from bertjax.scoring import squad
from bertjax.tasks import bert, completion, fine_tuning

_log = logging.getLogger(__name__)

_WORDS_OF_KOREAN = (
    "F1 counts words, but most answers are Korean, where an answer with another particle is another word: "
    "set --config.metric=korquad for the metrics of KorQuAD, whose F1 counts characters"
)
FREE_AFTER_TRAINING = (
    *("data.null_threshold", "data.max_answer_length", "data.n_best", "data.doc_stride", "data.max_query_length"),
    *("data.seq_len", "metric"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(bert.ModelConfig):
    """The encoder, and the head on top of it; see `BertForQuestionAnswering`.

    Attributes:
      lstm_size: width of each direction of a BiLSTM on top of the encoder; 0 for none.
    """

    lstm_size: Count = always(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fine_tuning.DataConfig):
    """The keys of `data`."""

    rows: Flat[QuestionsConfig]
    spans: Flat[SpanConfig]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads.

    Attributes:
      metric: the script of exact match and F1: "squad", whose F1 counts words, or "korquad", whose F1 counts
        characters.
    """

    model: ModelConfig
    data: DataConfig
    metric: Annotated[str, one_of(*squad.METRICS)] = "squad"

    def codec(self, tokenizer: EncoderTokenizer) -> QuestionCodec:
        return QuestionCodec(self.data.rows, self.data.spans, tokenizer)


resolve = functools.partial(completion.bert, seq_len=384)
open_vocabulary = bert.open_vocabulary
example_config = fine_tuning.example_config


class Data(fine_tuning.FineTuningData[Config, Question]):
    """Questions with their contexts."""

    def baselines(self) -> Mapping[str, float]:
        """Returns the F1 of answering with the whole context or, with unanswerable questions, of never answering."""
        questions = list(self.read.held_out(VALID))
        if self._config.data.null_answers:
            unanswerable = [question.is_impossible for question in questions]
            return {"valid/no_answer_f1": 100.0 * sum(unanswerable) / len(unanswerable)}
        contexts = {question.id: question.context for question in questions}
        references = {question.id: self.codec.gold(question) for question in questions}
        metric = self._config.metric
        is_korean = 2 * sum(bool(HANGUL.search(str(texts))) for texts in references.values()) > len(references)
        if is_korean and metric == "squad":
            _log.warning(_WORDS_OF_KOREAN)
        return {"valid/whole_text_f1": squad.score_v1(contexts, references, metric)["f1"]}


class Task(fine_tuning.FineTuningTask[Config]):
    """Finds answers in contexts. The source of an example is a question, and its windows."""

    architecture = "BertForQuestionAnswering"
    loss_name = "span"
    predicts_tokens = True
    example_dtypes = MappingProxyType({"start_positions": np.int32, "end_positions": np.int32})
    _codec: QuestionCodec

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForQuestionAnswering:
        return BertForQuestionAnswering(encoder, config.model.lstm_size)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Returns the mean of the cross-entropies of start and end, for each window.

        The softmax excludes padding and, in packed rows, other windows, so the loss of a window does not depend on its
        batch. `run_squad.py` includes padding, because it pads all rows to one length.
        """
        start, end = self._masked(self.apply(params, batch, rng), batch)
        starts = batch["start_positions"]
        ends = batch["end_positions"]
        if self._config.data.packing:
            starts, ends = (batch["cls_positions"] + places for places in (starts, ends))
        losses = span_cross_entropy(start, end, starts, ends)
        metrics = fine_tuning.metrics(batch, is_best(start, starts) * is_best(end, ends), batch["weights"])
        return {self.loss_name: jnp.sum(losses * batch["weights"])}, metrics

    def predictions(self, output: SpanLogits, batch: Batch) -> bert.Predictions:
        logits = jnp.stack(self._masked(output, batch), axis=-2)  # [B, 2, S]; packed [B, E, 2, S]
        weights = jnp.broadcast_to(batch["weights"][..., None], logits.shape[:-1])
        return bert.Predictions(logits, weights, "classification")

    def score_names(self) -> Sequence[str]:
        """Returns the metrics that every set of questions has. `squad.score_v2` adds others for some sets."""
        return ("exact", "f1", "best_exact", "best_f1") if self._config.data.null_answers else ("exact_match", "f1")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the official metrics; with unanswerable questions, also those at the best threshold."""
        texts: dict[str, str] = {}
        nulls: dict[str, float] = {}
        for example, outputs in results:
            question = example.source.item
            best, nulls[question.id], _ = self._answers(example, outputs)
            texts[question.id] = best.text if best else ""
        questions = [example.source.item for example, _ in results]
        references = {question.id: self._codec.gold(question) for question in questions}
        if not self._config.data.null_answers:
            return squad.score_v1(texts, references, self._config.metric)
        threshold = self._config.data.null_threshold
        return squad.score_v2(texts, references, nulls, null_threshold=threshold, metric=self._config.metric)

    def _answers(self, example: Example, outputs: Sequence[Output]) -> tuple[Candidate | None, float, Candidate | None]:
        """Returns the best answer, the score of no answer minus that of the best answer, and the selected answer."""
        question, parts = example.source
        config = self._config.data.spans
        start, end = ([output[name] for output in outputs] for name in SpanLogits._fields)
        candidates = spans.best_answers(question, parts, start, end, config)
        best = spans.best_with_text(candidates)
        null = spans.null_score(start, end) - (best.score if best else -math.inf)
        return best, null, spans.selected(candidates, config)

    def numbered(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Yields the examples, and warns of windows without overlap."""
        count = without = 0
        for example in examples:
            count += 1
            without += not isinstance(example.source, BadInput) and spans.leaves_no_overlap(example.source.extra)
            yield example
        if without:
            _log.warning(spans.WITHOUT_OVERLAP, without, count)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the start and end logits of each token, [B, S]."""
        return self._masked(self.apply(params, batch, None), batch)._asdict()

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the answer, "" for none, and its start and end as characters of the context.

        `score` is the score of the best answer, even if no answer is chosen; `null_score` is the score of no answer
        minus `score`. Both are null if the context has no possible answer.
        """
        best, null, answer = self._answers(example, outputs)
        return {
            "id": example.source.item.id,
            "answer": answer.text if answer else "",
            "start": answer and answer.start,
            "end": answer and answer.end,
            "score": best and round(best.score, 6),
            "null_score": best and round(null, 6),
        }

    def record_fields(self) -> Sequence[str]:
        return ("id", "answer", "start", "end", "score", "null_score")

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record with question, context and reference answers; the loss is 1 - F1."""
        question = example.source.item
        record = self.record(example, outputs)
        f1 = squad.f1(record["answer"], self._codec.gold(question), self._config.metric)
        return {
            "kind": "answer",
            "question": question.question,
            "context": question.context,
            "reference": self._codec.gold(question),
            "reference_starts": [answer.start for answer in question.answers],
            **record,
            "loss": 1 - f1,
        }

    def official(self, records: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Returns the answers by question id, as the evaluation scripts of SQuAD read them."""
        return {record["id"]: record["answer"] for record in records}

    def _masked(self, output: SpanLogits, batch: Batch) -> SpanLogits:
        """Returns the logits with padding masked; of packed rows, for each window [B, E, S] without other windows."""
        allowed = batch["segment_ids"] != 0
        if "cls_positions" in batch:
            numbers = 1 + jnp.arange(batch["cls_positions"].shape[1])
            allowed = batch["segment_ids"][:, None] == numbers[:, None]
            output = SpanLogits(*(jnp.broadcast_to(logits[:, None], allowed.shape) for logits in output))
        return SpanLogits(*(mask_logits(logits, allowed) for logits in output))
