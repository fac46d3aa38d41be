"""What sets a family of published encoders apart: the record that each module of a family has as `FAMILY`."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bertjax.interop.bert_tensors import refuse
from bertjax.models.bert import HeadConfig

Tensors = Mapping[str, np.ndarray]
Names = str | tuple[str, ...]
QUERY_KEY_VALUE = ("attention.self.query", "attention.self.key", "attention.self.value")
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
      classes: the classes of transformers whose names are not regular, by the name of BERT's class.
      tokens: the keys of config.json for special tokens, without "_token_id", and our name of the same token.
      needs_token_types: whether transformers adds an embedding of token types in any case.
      counts_from_padding: whether the first token of a text has the position after the id of padding, as in fairseq.
        Our position tables omit the rows before it; see `offset_positions`.
      pad_id: the id of padding, if transformers supports only one.
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
    pad_id: int | None = None
    tokenizer: str = "WordPiece"
    also: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    classes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def class_name(self, architecture: str) -> str:
        """Returns the class of transformers that is like a class of BERT."""
        if architecture in SUMMARIZERS:
            return architecture
        return self.classes.get(architecture) or self.prefix + architecture.removeprefix("Bert")

    def heads_of(self, architecture: str) -> set[str] | None:
        """Returns the modules other than the encoder of the class like one of BERT; None if there is none."""
        return SUMMARIZERS.get(architecture) or self.heads.get(architecture)


# The classifier of texts of families whose class for it has no pooler, but the same map in its head; see `Renaming`.
OWN_POOLER = MappingProxyType({"classifier.dense": "bert.pooler.dense", "classifier.out_proj": "classifier"})


class Renaming:
    """Converts tensors that differ from those of `bert_tensors` only in names and fused matrices, both ways.

    Its methods are `Family.to_canonical` and `Family.from_canonical`.
    """

    def __init__(
        self, base: str, modules: Mapping[str, Names], classifier: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Stores the names.

        Args:
          base: `Family.base`.
          modules: the name of each module of the family, and of the same module in `bert_tensors`, or of several whose
            rows follow one another in it; {} is the layer. Of several names of a module, the last one is written. The
            other modules of the encoder have the names of `bert_tensors` after the base.
          classifier: names that only the class for sequence classification has. They take the place of modules that
            other classes have for the same parameters, and that files of this class may have without a use.
        """
        self._theirs = _tuples({**modules, **classifier})
        self._ours = _inverse(modules)
        self._classifier = _inverse(classifier)
        parts = {name.split(".")[1] for name in modules if name.startswith(f"{base}.")}
        self._bare = re.compile(rf"({'|'.join(parts)})\.")
        self._base = base

    def to_canonical(
        self, tensors: Tensors, like: Mapping[str, Any], architecture: str, source: str
    ) -> dict[str, np.ndarray]:
        """Renames tensors. Unknown names do not change, apart from the base.

        Raises:
          UserError: if a fused matrix cannot be split.
        """
        based = {f"{self._base}.{name}" if self._bare.match(name) else name: array for name, array in tensors.items()}
        of_classifier = {theirs for theirs, _ in self._classifier.values()}
        names = sorted(based, key=lambda name: _module(name) in of_classifier)  # of two with one name, the last stays
        result: dict[str, np.ndarray] = {}
        for name in names:
            module, layer, leaf = _split(name)
            ours = self._theirs.get(module) or (re.sub(rf"^{self._base}\.", "bert.", module),)
            array = based[name]
            if len(ours) > 1 and (not array.ndim or len(array) % len(ours)):
                refuse(f"{source}: {name}", f"shape {array.shape}", f"a multiple of {len(ours)} rows")
            parts = np.split(array, len(ours)) if len(ours) > 1 else [array]
            result |= {
                f"{module_name.format(layer)}.{leaf}": part for module_name, part in zip(ours, parts, strict=True)
            }
        return result

    def from_canonical(self, tensors: Tensors, architecture: str) -> dict[str, np.ndarray]:
        ours = self._ours | (self._classifier if architecture == "BertForSequenceClassification" else {})
        parts_by_name: dict[str, dict[int, np.ndarray]] = {}
        for name, array in tensors.items():
            module, layer, leaf = _split(name)
            theirs, place = ours.get(module) or (re.sub(r"^bert\.", f"{self._base}.", module), 0)
            parts_by_name.setdefault(f"{theirs.format(layer)}.{leaf}", {})[place] = array
        return {name: np.concatenate([parts[i] for i in sorted(parts)]) for name, parts in parts_by_name.items()}


def offset_positions(tensors: Tensors, rows: int) -> dict[str, np.ndarray]:
    """Returns tensors of `bert_tensors` with `rows` more rows of zeros before the position table; fewer if negative."""
    name = "bert.embeddings.position_embeddings.weight"
    if not rows or name not in tensors:
        return dict(tensors)
    table = tensors[name][max(-rows, 0) :]
    return {**tensors, name: np.pad(table, ((max(rows, 0), 0), (0, 0)))}


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _split(tensor: str) -> tuple[str, str, str]:
    """Returns the module, with {} as its layer; the layer; and the parameter."""
    module = _module(tensor)
    leaf = tensor.rpartition(".")[2]
    layer = re.search(r"\.(\d+)\.", module)
    return (module, "", leaf) if layer is None else (module.replace(layer[0], ".{}.", 1), layer[1], leaf)


def _tuples(modules: Mapping[str, Names]) -> dict[str, tuple[str, ...]]:
    return {theirs: (ours,) if isinstance(ours, str) else ours for theirs, ours in modules.items()}


def _inverse(modules: Mapping[str, Names]) -> dict[str, tuple[str, int]]:
    """Returns their module for each of ours, and the place of ours in it."""
    return {name: (theirs, place) for theirs, ours in _tuples(modules).items() for place, name in enumerate(ours)}


def of_layers(layers: str, modules: Mapping[str, Names]) -> dict[str, Names]:
    """Returns the modules of all layers for `Renaming`, given those of one without the name of its layer."""
    ours = "bert.encoder.layer.{{}}.{}".format
    return {f"{layers}.{{}}.{theirs}": tuple(map(ours, names)) for theirs, names in _tuples(modules).items()}
