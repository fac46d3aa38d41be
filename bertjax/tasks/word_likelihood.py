"""The pseudo-log-likelihood of texts per word, so that models with different vocabularies compare.

A token is scored where it and the later tokens of its word are hidden (Kauf and Ivanova 2023, within_word_l2r). The sum
over a word is then the log-probability of the word given the other words, however the vocabulary splits it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bertjax.contract import Example, Output
from bertjax.data.codecs.minimal_pairs import Words
from bertjax.data.readers.sources import Document
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.tasks import minimal_pairs
from bertjax.tasks.likelihood import MOST_UNKNOWN

_log = logging.getLogger(__name__)


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


def score(results: Iterable[tuple[Example, Sequence[Output]]], unknown: int | None) -> dict[str, float]:
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
        if share <= MOST_UNKNOWN:
            scores[f"{name}/nats_per_word"] = sums["nats"] / sums["words"]
        else:
            text = "no nats per word: %.2f %% of the tokens of %s are unknown, more than %.1f %%"
            _log.warning(text, 100 * share, name, 100 * MOST_UNKNOWN)
        scores |= {f"{name}/{key}": sums[key] for key in ("words", "tokens")} | {f"{name}/unknown": share}
    return {key: float(value) for key, value in scores.items()}
