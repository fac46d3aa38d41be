"""What sets a family of published encoders apart: the record that each module of a family has as `FAMILY`."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.models.bert import HeadConfig

Tensors = Mapping[str, np.ndarray]


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
      from_canonical: the inverse. Its arguments are the tensors and the name of BERT's class.
      base: what the names of tensors begin with that belong to the encoder; files of the encoder alone omit it.
      tokens: the keys of config.json for special tokens, without "_token_id", and our name of the same token.
      needs_token_types: whether transformers adds an embedding of token types in any case.
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

    def class_name(self, architecture: str) -> str:
        """Returns the class of transformers that is like a class of BERT."""
        return self.prefix + architecture.removeprefix("Bert")


class Renaming:
    """Converts tensors that differ from those of `bert_tensors` only in their names, both ways.

    Its methods are `Family.to_canonical` and `Family.from_canonical`.
    """

    def __init__(self, base: str, modules: Mapping[str, str]) -> None:
        """Stores the names.

        Args:
          base: `Family.base`.
          modules: the name of each module of the family, and of the same module in `bert_tensors`; {} is the layer.
        """
        self._theirs, self._ours = dict(modules), {ours: theirs for theirs, ours in modules.items()}
        parts = {name.split(".")[1] for name in modules if name.startswith(f"{base}.")}
        self._bare, self._base = re.compile(rf"({'|'.join(parts)})\."), base

    def to_canonical(self, tensors: Tensors, *about: object) -> dict[str, np.ndarray]:
        """See `Family.to_canonical`. Unknown names do not change."""
        del about
        whole = {f"{self._base}.{name}" if self._bare.match(name) else name: array for name, array in tensors.items()}
        return {_renamed(name, self._theirs): array for name, array in whole.items()}

    def from_canonical(self, tensors: Tensors, *about: object) -> dict[str, np.ndarray]:
        """See `Family.from_canonical`."""
        del about
        return {_renamed(name, self._ours): array for name, array in tensors.items()}


def _renamed(tensor: str, modules: Mapping[str, str]) -> str:
    module, _, leaf = tensor.rpartition(".")
    layer = re.search(r"\.(\d+)\.", module)
    name = module if layer is None else module.replace(layer[0], ".{}.", 1)
    return f"{modules.get(name, name).format(layer and layer[1])}.{leaf}"
