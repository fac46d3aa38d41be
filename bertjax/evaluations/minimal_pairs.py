"""Minimal pairs, scored by the language model of a task (Warstadt et al. 2020); see `bertjax.tasks.minimal_pairs`."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import jax

from bertjax.config import Constrained, Count, Size, one_of
from bertjax.contract import Batch, Evaluation, Example, Output, Params, PredictionTask, View
from bertjax.data.codecs.minimal_pairs import METHODS, Pair, check_source, read
from bertjax.errors import UserError
from bertjax.models.bert import BertForMaskedLM
from bertjax.scoring.minimal_pairs import METRICS
from bertjax.tasks import minimal_pairs
from bertjax.tasks.language_models import LanguageModelTask


@dataclasses.dataclass(frozen=True)
class Config(Constrained, prefix="minimal_pairs"):
    """Minimal pairs that are scored at evaluations during pretraining.

    Attributes:
      source: files of minimal pairs, such as BLiMP's; "" for none. See configs/minimal_pairs.py.
      per_paradigm: the number of pairs of each paradigm, from the first on; 0 for all.
      method: how a masked language model scores a sentence; see configs/minimal_pairs.py.
      every: the evaluations of the run from one of these to the next; there is always one in the last.
    """

    source: str = ""
    per_paradigm: Count = 50
    method: Annotated[str, one_of(*METHODS)] = "original"
    every: Size = 1


class _MaskedLM(View):
    """The language model of a task in float32, whatever the dtype of training."""

    def __init__(self, task: LanguageModelTask) -> None:
        # The kernels of cuDNN are for bfloat16 alone.
        config = dataclasses.replace(task.language_model.encoder, dtype="float32", attention_backend="auto")
        self._model = BertForMaskedLM(config)
        self._lengths = task.predict_lengths()

    def predict_lengths(self) -> Sequence[int]:
        return self._lengths

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        return minimal_pairs.infer(self._model, params, batch)


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are `pairs/accuracy` and others, of all pairs and of each phenomenon.

    Raises:
      UserError: for a missing file, or a task without a language model.
    """
    if not isinstance(task, LanguageModelTask):
        got = "minimal_pairs, for a task without a language model"
        expected = "an evaluation of this task"
        raise UserError("config key evaluations", got=got, expected=expected, fix="omit it")
    check_source(config.source, "minimal_pairs.source")
    model = task.language_model
    codec = minimal_pairs.codec(task.tokenizer, model.encoder, model.objective, config.method)

    @functools.cache
    def pairs() -> Sequence[Pair]:
        return read(config.source, "minimal_pairs.source", codec, config.per_paradigm, on_bad_row)

    def examples() -> Iterator[Example]:
        return minimal_pairs.examples(pairs(), codec)

    def score(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        scores = minimal_pairs.score(results)
        return {name: value for name, value in scores.items() if name.count("/") < 3}  # without those of paradigms

    return Evaluation("minimal_pairs", _MaskedLM(task), examples, score, METRICS, config.every)
