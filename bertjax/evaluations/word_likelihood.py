"""The pseudo-log-likelihood of texts per word, so that models with different vocabularies compare.

A token is scored where it and the later tokens of its word are hidden (Kauf and Ivanova 2023, within_word_l2r). The sum
over a word is then the log-probability of the word given the other words, however the vocabulary splits it.
"""

import dataclasses
import functools
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from bertjax.config import Constrained, Constraint, Count, Size
from bertjax.contract import Evaluation, Example, Output, PredictionTask
from bertjax.data.codecs.minimal_pairs import Words
from bertjax.data.readers.sources import Document, TextSource
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.tasks import minimal_pairs
from bertjax.tasks.language_models import LanguageModelTask, models_of
from bertjax.tasks.likelihood import MOST_UNKNOWN
from bertjax.tasks.minimal_pairs import FloatModel

_log = logging.getLogger(__name__)

_NAMED = Constraint(
    "pairs of a different name, of letters and digits, and a text",
    lambda texts: (
        all(len(text) == 2 and re.fullmatch(r"\w+", text[0]) and text[1] for text in texts)
        and len(dict(texts)) == len(texts)
    ),
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


class Instance(NamedTuple):
    """Words that follow each other in a document.

    Attributes:
      text: the name of the text.
      words: the tokens of each word that has any.
      num_words: how many words are written there.
    """

    text: str
    words: Words
    num_words: int


def instances(
    name: str, documents: Iterable[Document], tokenizer: EncoderTokenizer, num_words: int, most: int
) -> Iterator[Instance]:
    """Yields the instances of a text. Words are what spaces separate.

    Args:
      name: the name of the text.
      documents: its documents.
      tokenizer: the tokenizer.
      num_words: the number of words of an instance, fewer at the end of a document.
      most: the maximum number of tokens of an instance. Longer ones become several, and longer words several words.
    """
    count = 0  # a word without tokens belongs to the next instance
    for document in documents:
        texts = [word for line in document.lines for word in line.split()]
        encoded = tokenizer.encode_parts(texts)
        for start in range(0, len(encoded), num_words):
            words: Words = []
            for ids in encoded[start : start + num_words]:
                for first in range(0, len(ids), most):
                    part = ids[first : first + most]
                    if sum(map(len, words)) + len(part) > most:
                        yield Instance(name, words, count)
                        words = []
                        count = 0
                    words.append(part)
                count += 1
            if words:
                yield Instance(name, words, count)
                count = 0


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are those of `score` for each text, such as `domain/nats_per_word`.

    Raises:
      UserError: for missing texts, or a task without a language model.
    """
    model = models_of(task, "word_likelihood")[0]
    assert isinstance(task, LanguageModelTask)
    fix = """set --config.word_likelihood.source="(('domain', 'FILE'),)\""""
    config.check(config.source, "source", "names and texts", got="no text", fix=fix)
    sources = {name: TextSource(source, config.text_field, on_bad_row) for name, source in config.source}
    tokenizer = task.tokenizer
    codec = minimal_pairs.codec(tokenizer, model, "within_word_l2r")
    most = model.encoder.max_positions - tokenizer.template.num_special(1)

    @functools.cache
    def of_texts() -> Sequence[Instance]:
        texts = []
        for name, source in sources.items():
            documents = itertools.islice(source.documents(), config.documents or None)
            of_text = list(instances(name, documents, tokenizer, config.words, most))
            config.check(of_text, "source", "texts with tokens of the vocabulary", got=f"no token in {name}")
            texts += of_text
        return texts

    def examples() -> Iterator[Example]:
        return (Example(codec.rows(instance.words), instance) for instance in of_texts())

    def score(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        return metrics(results, tokenizer.unk_id)

    names = [f"{name}/nats_per_word" for name in sources]
    return Evaluation(
        "word_likelihood", FloatModel(model, task.predict_lengths()), examples, score, names, config.every
    )


def metrics(results: Iterable[tuple[Example, Sequence[Output]]], unknown: int | None) -> dict[str, float]:
    """Returns the metrics of each text, from the outputs "log_probabilities" of the rows of its instances.

    "nats_per_word", the negative sum over the tokens of a word, as the mean over words; the numbers of "words" and
    "tokens", and the share of "unknown" tokens. Above `MOST_UNKNOWN`, there are no nats per word, because unknown words
    are easy to predict.
    """
    totals: dict[str, dict[str, float]] = {}
    for example, outputs in results:
        instance: Instance = example.source
        ids = minimal_pairs.labels(example.rows)
        sums = totals.setdefault(instance.text, dict.fromkeys(("nats", "words", "tokens", "unknown"), 0.0))
        sums["nats"] -= minimal_pairs.log_probabilities(example.rows, outputs).sum()
        sums["words"] += instance.num_words
        sums["tokens"] += ids.size
        sums["unknown"] += (ids == unknown).sum()
    scores: dict[str, float] = {}
    for name, sums in totals.items():
        share = sums["unknown"] / sums["tokens"]
        scores |= {f"{name}/{key}": sums[key] for key in ("words", "tokens")} | {f"{name}/unknown": share}
        if share <= MOST_UNKNOWN:
            scores[f"{name}/nats_per_word"] = sums["nats"] / sums["words"]
        else:
            text = "no nats per word: %.2f %% of the tokens of %s are unknown, more than %.1f %%"
            _log.warning(text, 100 * share, name, 100 * MOST_UNKNOWN)
    return {key: float(value) for key, value in scores.items()}
