"""Bits per byte of text under the language model of a task; see `bertjax.tasks.likelihood`."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from bertjax.config import Constrained, Count, Size, at_least
from bertjax.contract import Evaluation, Example, Output, PredictionTask
from bertjax.data.readers.sources import TextSource
from bertjax.tasks import likelihood
from bertjax.tasks.language_models import LanguageModelTask, models_of
from bertjax.tasks.likelihood import Instance
from bertjax.tasks.minimal_pairs import FloatModel

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config(Constrained, prefix="likelihood"):
    """Text whose likelihood is computed at evaluations during pretraining.

    Attributes:
      source: the text, in a form of `data.source`; "" for none.
      text_field: the column of its documents in a table.
      documents: the number of documents, from the first on; 0 for all.
      seq_len: the most tokens of an instance, with special tokens; each begins without context.
      draws: for a masked language model, the number of random sets of hidden tokens of each instance.
      every: N to score at every Nth evaluation of the run, and at the last.
    """

    source: str = ""
    text_field: str = "text"
    documents: Count = 0
    seq_len: Annotated[int, at_least(8)] = 128
    draws: Annotated[int, at_least(2)] = 8
    every: Size = 1


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are those of `likelihood.score`.

    Raises:
      UserError: for missing text, or a task without a language model.
    """
    models = models_of(task, "likelihood")
    assert isinstance(task, LanguageModelTask)
    fix = "set --config.likelihood.source=FILE"
    config.check(config.source, "source", "a text", got="no text", fix=fix)
    most = models[0].encoder.max_positions
    config.check(config.seq_len <= most, "seq_len", f"at most model.max_positions={most}")
    text = TextSource(config.source, config.text_field, on_bad_row, "likelihood.source")
    tokenizer = task.tokenizer

    @functools.cache
    def instances() -> Sequence[Instance]:
        documents = itertools.islice(text.documents(), config.documents or None)
        text_instances = list(likelihood.instances(documents, tokenizer, config.seq_len))
        config.check(
            text_instances, "source", "a text with tokens of the vocabulary", got=f"no token in {config.source}"
        )
        return text_instances

    def examples() -> Iterator[Example]:
        return (likelihood.example(instance, models, tokenizer, config.draws) for instance in instances())

    def score(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        metrics = likelihood.score(results, models, config.draws)
        unknown = metrics["likelihood/unknown"]
        if unknown > likelihood.MOST_UNKNOWN:
            text = "no bits per byte: %.2f %% of the tokens of %s are unknown, more than %.1f %%"
            _log.warning(text, 100 * unknown, config.source, 100 * likelihood.MOST_UNKNOWN)
        return metrics

    view = FloatModel(models[0], task.predict_lengths())
    return Evaluation("likelihood", view, examples, score, ("nats_per_token",), config.every)
