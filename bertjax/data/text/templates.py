"""The special tokens around one text or a pair of texts, and which end is truncated, as files of transformers state."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from tokenizers import processors

from bertjax.errors import UserError

T = TypeVar("T", int, np.ndarray)


@dataclasses.dataclass(frozen=True)
class Template:
    """The special tokens around one text or a pair of texts, by their ids, and which end of a long text is truncated.

    Attributes:
      start: before the first text.
      between: between the texts of a pair.
      end: after the last text.
      second_type: the token type of a second text and of the tokens after it; 0 if the model has no token types.
      truncates_left: whether a long text is truncated at its start instead of its end.
    """

    start: tuple[int, ...]
    between: tuple[int, ...]
    end: tuple[int, ...]
    second_type: int
    truncates_left: bool = False

    @classmethod
    def of_bert(cls, cls_id: int, sep_id: int) -> "Template":
        """Returns the template of BERT, ALBERT and DeBERTa: [CLS] A [SEP] B [SEP]."""
        return cls((cls_id,), (sep_id,), (sep_id,), second_type=1)

    @classmethod
    def of_roberta(cls, cls_id: int, sep_id: int) -> "Template":
        """Returns the template of RoBERTa, XLM-R, CamemBERT and MPNet: <s> A </s></s> B </s>, of one token type."""
        return cls((cls_id,), (sep_id, sep_id), (sep_id,), second_type=0)

    @classmethod
    def of_marian(cls, end_id: int) -> "Template":
        """Returns the template of Marian and other encoder-decoders: A </s>, of one text."""
        return cls((), (), (end_id,), second_type=0)

    def num_special(self, num_texts: int) -> int:
        """Returns the number of special tokens of a row of one or two texts."""
        return len(self.start) + (num_texts - 1) * len(self.between) + len(self.end)

    def second_start(self, length: T) -> T:
        """Returns the position of the second text in a row, after a first text of `length` tokens."""
        return len(self.start) + length + len(self.between)

    def truncated(self, ids: Sequence[int], room: int) -> Sequence[int]:
        """Returns at most `room` ids of a text, without those at the end that is truncated."""
        return ids[max(len(ids) - room, 0) :] if self.truncates_left else ids[:room]

    def row(self, texts: Sequence[Sequence[int]]) -> tuple[list[int], int]:
        """Returns the ids of a row of one or two texts, and how many precede the second text: all if there is none.

        These have token type 0, the others `second_type`.

        >>> bert, roberta = Template.of_bert(101, 102), Template.of_roberta(0, 2)
        >>> bert.row([[7]]), bert.row([[7], [8]]), roberta.row([[7], [8]])
        (([101, 7, 102], 3), ([101, 7, 102, 8, 102], 3), ([0, 7, 2, 2, 8, 2], 4))
        """
        ids = [*self.start, *joined_by(self.between, texts), *self.end]
        return ids, self.second_start(len(texts[0])) if len(texts) > 1 else len(ids)

    def processor(self, name_of: Callable[[int], str | None]) -> processors.TemplateProcessing:
        """Returns the template as the library implements it. `name_of` returns the token of an id."""
        names = {str(name_of(token)): token for token in (*self.start, *self.between, *self.end)}
        start, between, end = ([str(name_of(token)) for token in ids] for ids in (self.start, self.between, self.end))
        first = ["$A:0", *between]
        second = [f"{piece}:{self.second_type}" for piece in ("$B", *end)]
        return processors.TemplateProcessing([*start, "$A:0", *end], [*start, *first, *second], [*names.items()])


def joined_by(separator: Sequence[int], parts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the ids of all parts, separated by the ids of `separator`.

    >>> joined_by([0], [[1], [2, 3]])
    [1, 0, 2, 3]
    """
    joined = list(parts[0])
    for part in parts[1:]:
        joined += separator
        joined += part
    return joined


def read_template(step: Any, size: int, where: str) -> Template | None:
    """Returns the template in the post_processor of a tokenizer.json; None if it adds no special tokens to pairs.

    Args:
      step: the value of post_processor.
      size: the size of the vocabulary.
      where: the name of the file, for messages.
    Raises:
      UserError: if it is of another kind, or does not surround texts with tokens as `Template` does.
    """
    try:
        steps = step["processors"] if step and step["type"] == "Sequence" else [step] if step else []
        steps = [step for step in steps if step["type"] != "ByteLevel"]  # which only changes offsets
        if not steps or all("Sequence" in piece for piece in steps[0].get("pair", ({},))):  # the library's default
            return None
        (one,) = steps
        template = _KINDS[one["type"]](one)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError):  # of JSON of another form
        template = None
    ids = [*template.start, *template.between, *template.end] if template else [-1]
    is_known = all(type(token) is int and 0 <= token < size for token in ids)
    if template is None or template.second_type not in (0, 1) or not is_known:
        raise UserError(
            f"{where}: post_processor",
            got=f"{step}",
            expected="BertProcessing, RobertaProcessing or TemplateProcessing: tokens before, between and after texts, "
            "the same around one text and around a pair",
            fix="use another model, or restore the file",
        )
    return template


def _of_pieces(step: Mapping[str, Any]) -> Template | None:
    """Returns the template of a TemplateProcessing; None if it has another form."""
    single, pair = ([next(iter(piece.items())) for piece in step[key]] for key in ("single", "pair"))
    first, second = ([kind == "Sequence" and value["id"] for kind, value in pair].index(text) for text in "AB")
    types = [value["type_id"] for _, value in pair]
    names = [value["id"] for _, value in pair]
    # Tokens that start the second text of models without token types may have its type.
    is_usual = [value["id"] for _, value in single] == names[: first + 1] + names[second + 1 :]
    if not is_usual or first > second or any(types[: first + 1]) or len({*types[second:]}) > 1:
        return None
    parts = names[:first], names[first + 1 : second], names[second + 1 :]
    start, between, end = (tuple(i for name in part for i in step["special_tokens"][name]["ids"]) for part in parts)
    return Template(start, between, end, types[second])


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Template | None]] = {
    "BertProcessing": lambda step: Template.of_bert(step["cls"][1], step["sep"][1]),
    "RobertaProcessing": lambda step: Template.of_roberta(step["cls"][1], step["sep"][1]),
    "TemplateProcessing": _of_pieces,
}
