"""The form of texts: plain, or tokenized and lowercased, as many data sets of papers are."""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bertjax.data.text.tokenizers import Tokenizer

_SAMPLE = 1000  # texts
_ALONE = re.compile(r"(?<=\s)[.,;:?!](?!\S)")  # marks between spaces, as CoreNLP and the Penn Treebank have them
_ATTACHED = re.compile(r"(?<=[^\s.,;:?!])[.,;:?!](?!\S)")
_CAPITALS = 0.01  # of the cased letters; plain English has about 0.04


class Form(NamedTuple):
    """The share of texts of each form, in percent.

    Attributes:
      tokenized_texts: those with more punctuation marks between spaces than after a word.
      lowercased_texts: those whose cased letters are capitals in less than 1 % of cases.
    """

    tokenized_texts: float
    lowercased_texts: float


def form_of(texts: Iterable[str]) -> Form:
    """Returns the form of the first 1,000 texts.

    >>> form_of(["the court 's ruling , they said , is due .", "Hello, world."])
    Form(tokenized_texts=50.0, lowercased_texts=50.0)
    """
    sample = list(itertools.islice(texts, _SAMPLE))
    tokenized = sum(len(_ALONE.findall(text)) > len(_ATTACHED.findall(text)) for text in sample)
    lowercased = sum(map(_is_lowercased, sample))
    return Form(*(100 * count / max(1, len(sample)) for count in (tokenized, lowercased)))


def _is_lowercased(text: str) -> bool:
    upper = sum(map(str.isupper, text))
    return upper < _CAPITALS * (upper + sum(map(str.islower, text)))


def metrics(forms: Mapping[str, Form]) -> dict[str, float]:
    """Returns the forms of splits as metrics, such as "valid/tokenized_texts"."""
    return {f"{split}/{name}": share for split, form in forms.items() for name, share in form._asdict().items()}


def contradiction(form: Form, tokenizer: Tokenizer, *, is_published: bool, at_spaces: bool = False) -> str:
    """Returns why most texts do not have the form that a vocabulary needs, and what to do; "" if they do.

    Args:
      form: the form of the texts.
      tokenizer: the vocabulary.
      is_published: whether it is not trained on these texts; it then needs plain text.
      at_spaces: whether words are split at spaces, as in PreSumm; the texts must then be tokenized.
    """
    if at_spaces:
        share = 100 - form.tokenized_texts
        problem = f"{share:.0f} % of the texts are not tokenized, but words are split at spaces (data.words=spaces)"
        return f"{problem}: tokenize them with CoreNLP, or set data.words=bert" if share > 50 else ""
    is_tokenized = form.tokenized_texts > 50 and tokenizer.encode("a ,") != tokenizer.encode("a,")
    is_lowercased = form.lowercased_texts > 50 and tokenizer.normalized("A") == "A"
    problems = [f"{form.tokenized_texts:.0f} % have spaces before punctuation marks"] * is_tokenized
    problems += [f"{form.lowercased_texts:.0f} % have no capitals"] * is_lowercased
    if not (is_published and problems):
        return ""
    return (
        f"the texts are not plain: {' and '.join(problems)}. The vocabulary distinguishes them from plain text, on "
        "which published models are trained, so scores are too low: use the texts before tokenization"
    )
