"""Log-probabilities of the words of texts, for any vocabulary; see `bertjax.tasks.word_likelihood`."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from bertjax.config import Constrained, Constraint, Count, Size
from bertjax.contract import Evaluation, Example, Output, PredictionTask
from bertjax.data.readers.sources import TextSource
from bertjax.tasks import minimal_pairs, word_likelihood
from bertjax.tasks.language_models import LanguageModelTask, models_of
from bertjax.tasks.minimal_pairs import FloatModel
from bertjax.tasks.word_likelihood import Instance

_NAMED = Constraint(
    "pairs of a different name, of letters and digits, and a text",
    lambda pairs: len({pair[0] for pair in pairs if len(pair) == 2 and re.fullmatch(r"\w+", pair[0])}) == len(pairs),
)


@dataclasses.dataclass(frozen=True)
class Config(Constrained, prefix="word_likelihood"):
    """Texts whose words are scored at evaluations during pretraining.

    Attributes:
      source: names and texts, in a form of `data.source`: (("domain", "notes.txt"), ("general", "wiki.txt")).
      text_field: the column of their documents in tables.
      documents: the number of documents of each text, from the first on; 0 for all.
      words: the number of words of an instance, with all vocabularies alike; each begins without context.
      every: N to score at every Nth evaluation of the run, and at the last.
    """

    source: Annotated[tuple[tuple[str, str], ...], _NAMED] = ()
    text_field: str = "text"
    documents: Count = 0
    words: Size = 64
    every: Size = 1


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are `domain/nats_per_word` and others, for the name of each text.

    Raises:
      UserError: for missing texts, or a task without a language model.
    """
    model = models_of(task, "word_likelihood")[0]
    assert isinstance(task, LanguageModelTask)
    fix = """set --config.word_likelihood.source="(('domain', 'FILE'),)\""""
    config.check(config.source, "source", "names and texts", got="no text", fix=fix)
    key = "word_likelihood.source"
    sources = {name: TextSource(source, config.text_field, on_bad_row, key) for name, source in config.source}
    tokenizer = task.tokenizer
    codec = minimal_pairs.codec(tokenizer, model, "within_word_l2r")
    most = model.encoder.max_positions - tokenizer.template.num_special(1)

    @functools.cache
    def of_texts() -> Sequence[Instance]:
        texts = []
        for name, source in sources.items():
            documents = itertools.islice(source.documents(), config.documents or None)
            of_text = list(word_likelihood.instances(name, documents, tokenizer, config.words, most))
            config.check(of_text, "source", "texts with tokens of the vocabulary", got=f"no token in {name}")
            texts += of_text
        return texts

    def examples() -> Iterator[Example]:
        return (Example(codec.rows(instance.words), instance) for instance in of_texts())

    def score(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        return word_likelihood.score(results, tokenizer.unk_id)

    names = [f"{name}/words" for name in sources]  # others are missing if too many tokens are unknown
    view = FloatModel(model, task.predict_lengths())
    return Evaluation("word_likelihood", view, examples, score, names, config.every)
