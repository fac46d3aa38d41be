"""What sets a family of published encoders apart: the record that each module of a family has as `FAMILY`."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bertjax.models.bert import HeadConfig

Tensors = Mapping[str, np.ndarray]
# The classes of BertSum for any family. transformers does not have them, and opens the encoder alone.
SUMMARIZERS: Mapping[str, set[str]] = {"BertSum": {"scorer"}, "BertSumAbs": {"decoder", "target_embeddings", "bias"}}


def _unchanged(tensors: Tensors, *about: object) -> dict[str, np.ndarray]:
    del about
    return dict(tensors)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of encoders of Hugging Face `transformers`.

    Attributes:
      name: the model_type in config.json, and `model.family` of runs.
      label: the name in messages.
      fixed: the fields of HeadConfig that are the same in all models of the family.
      read_config: returns the fields of HeadConfig that a config.json determines, and raises UserError for a model that
        is not supported. Its arguments are the content of the file and its path, for messages.
      write_config: returns the keys of config.json, without architectures and special tokens.
      prefix: what the names of the classes of transformers begin with.
      heads: the modules other than the encoder of each class, by the name of BERT's class.
      to_canonical: converts the tensors of a file to the names and shapes of `bert_tensors`. Its arguments are the
        tensors, the wanted parameters, the class in config.json or "", and the file or folder, for messages.
      from_canonical: the inverse. Its arguments are the tensors and the class of BERT like the one that opens them.
      tokenizer: the kind of tokenizer of most published models, for the documentation.
      also: further model_types with the same form, and the fields that differ for each.
      base: what the names of tensors begin with that belong to the encoder; files of the encoder alone omit it.
      tokens: the keys of config.json for special tokens, without "_token_id", and our name of the same token.
      needs_token_types: whether transformers adds an embedding of token types in any case.
      counts_from_padding: whether the first token of a text has the position after the id of padding, as in fairseq.
        Our position tables omit the rows before it; see `offset_positions`.
    """

    name: str
    label: str
    fixed: Mapping[str, Any]
    read_config: Callable[[Mapping[str, Any], Path], dict[str, Any]]
    write_config: Callable[[HeadConfig], dict[str, Any]]
    heads: Mapping[str, set[str]]
    tokens: Mapping[str, str]
    prefix: str = "Bert"
    base: str = "bert"
    to_canonical: Callable[[Tensors, Mapping[str, Any], str, str], dict[str, np.ndarray]] = _unchanged
    from_canonical: Callable[[Tensors, str], dict[str, np.ndarray]] = _unchanged
    needs_token_types: bool = False
    counts_from_padding: bool = False
    tokenizer: str = "WordPiece"
    also: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def class_name(self, architecture: str) -> str:
        """Returns the class of transformers that is like a class of BERT."""
        return architecture if architecture in SUMMARIZERS else self.prefix + architecture.removeprefix("Bert")

    def heads_of(self, architecture: str) -> set[str] | None:
        """Returns the modules other than the encoder of the class like one of BERT; None if there is none."""
        return SUMMARIZERS.get(architecture) or self.heads.get(architecture)


# The classifier of texts of families whose class for it has no pooler, but the same map in its head; see `Renaming`.
OWN_POOLER = MappingProxyType({"classifier.dense": "bert.pooler.dense", "classifier.out_proj": "classifier"})


class Renaming:
    """Converts tensors that differ from those of `bert_tensors` only in their names, both ways.

    Its methods are `Family.to_canonical` and `Family.from_canonical`.
    """

    def __init__(
        self, base: str, modules: Mapping[str, str], classifier: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Stores the names.

        Args:
          base: `Family.base`.
          modules: the name of each module of the family, and of the same module in `bert_tensors`; {} is the layer.
            The other modules of the encoder have the names of `bert_tensors` after the base.
          classifier: names that only the class for sequence classification has. They take the place of modules that
            other classes have for the same parameters, and that files of this class may have without a use.
        """
        self._theirs, self._ours = {**modules, **classifier}, {ours: theirs for theirs, ours in modules.items()}
        self._classifier = {ours: theirs for theirs, ours in classifier.items()}
        parts = {name.split(".")[1] for name in modules if name.startswith(f"{base}.")}
        self._bare, self._base = re.compile(rf"({'|'.join(parts)})\."), base

    def to_canonical(self, tensors: Tensors, *about: object) -> dict[str, np.ndarray]:
        """See `Family.to_canonical`. Unknown names do not change, apart from the base."""
        del about
        whole = {f"{self._base}.{name}" if self._bare.match(name) else name: array for name, array in tensors.items()}
        of_classifier = self._classifier.values()
        names = sorted(whole, key=lambda name: _module(name) in of_classifier)  # of two with one name, the last stays
        return {_renamed(name, self._theirs, self._base, "bert"): whole[name] for name in names}

    def from_canonical(self, tensors: Tensors, architecture: str) -> dict[str, np.ndarray]:
        """See `Family.from_canonical`."""
        ours = self._ours | (self._classifier if architecture == "BertForSequenceClassification" else {})
        return {_renamed(name, ours, "bert", self._base): array for name, array in tensors.items()}


def offset_positions(tensors: Tensors, rows: int) -> dict[str, np.ndarray]:
    """Returns tensors of `bert_tensors` with `rows` more rows of zeros before the position table; fewer if negative."""
    name = "bert.embeddings.position_embeddings.weight"
    if not rows or name not in tensors:
        return dict(tensors)
    table = tensors[name][max(-rows, 0) :]
    return {**tensors, name: np.pad(table, ((max(rows, 0), 0), (0, 0)))}


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _renamed(tensor: str, modules: Mapping[str, str], base: str, other_base: str) -> str:
    module, leaf = _module(tensor), tensor.rpartition(".")[2]
    layer = re.search(r"\.(\d+)\.", module)
    name = module if layer is None else module.replace(layer[0], ".{}.", 1)
    other = modules.get(name) or re.sub(rf"^{base}\.", f"{other_base}.", name)
    return f"{other.format(layer and layer[1])}.{leaf}"
