"""Minimal pairs, scored by the language model of a task (Warstadt et al. 2020); see `bertjax.tasks.minimal_pairs`."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from bertjax.config import Constrained, Count, Size, one_of
from bertjax.contract import Evaluation, Example, Output, PredictionTask
from bertjax.data.codecs.minimal_pairs import METHODS, Pair, check_source, read
from bertjax.scoring.minimal_pairs import METRICS
from bertjax.tasks import minimal_pairs
from bertjax.tasks.language_models import LanguageModel, LanguageModelTask, check_template, models_of


@dataclasses.dataclass(frozen=True)
class Config(Constrained, prefix="minimal_pairs"):
    """Minimal pairs that are scored at evaluations during pretraining.

    Attributes:
      source: files of minimal pairs, such as BLiMP's; "" for none. See configs/minimal_pairs.py.
      per_paradigm: the number of pairs of each paradigm, from the first on; 0 for all.
      method: how a masked language model scores a sentence; see configs/minimal_pairs.py.
      every: N to score at every Nth evaluation of the run, and at the last.
    """

    source: str = ""
    per_paradigm: Count = 50
    method: Annotated[str, one_of(*METHODS)] = "original"
    every: Size = 1


def evaluation(config: Config, task: PredictionTask, on_bad_row: str, name: str = "minimal_pairs") -> Evaluation:
    """Returns the evaluation. Its metrics are `pairs/accuracy` and others, of all pairs and of each phenomenon.

    Args:
      config: the keys.
      task: the task; its first language model scores the sentences.
      on_bad_row: see `BadRows`.
      name: the name of the evaluation.
    Raises:
      UserError: for a missing file, or a task without a language model.
    """
    model = models_of(task, name)[0]
    return of_model(config, model, task, on_bad_row, name)


def of_model(config: Config, model: LanguageModel, task: PredictionTask, on_bad_row: str, name: str) -> Evaluation:
    """Returns the evaluation of a language model of a task; see `evaluation`."""
    key = f"{name}.source"
    check_source(config.source, key)
    assert isinstance(task, LanguageModelTask)
    check_template(model, task.tokenizer)
    codec = minimal_pairs.codec(task.tokenizer, model, config.method)
    prefix = "causal_" if name == "causal_pairs" else ""

    @functools.cache
    def pairs() -> Sequence[Pair]:
        return read(config.source, key, codec, config.per_paradigm, on_bad_row)

    def examples() -> Iterator[Example]:
        return minimal_pairs.examples(pairs(), codec)

    def score(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        scores = minimal_pairs.score(results)
        return {prefix + metric: value for metric, value in scores.items() if metric.count("/") < 3}  # no paradigms

    metrics = [prefix + metric for metric in METRICS]
    view = minimal_pairs.FloatModel(model, task.predict_lengths())
    return Evaluation(name, view, examples, score, metrics, config.every)
