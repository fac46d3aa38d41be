"""A model that is ready to predict: what `bertjax.load` returns."""

import json
import logging
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Float32

from bertjax.config import Tree
from bertjax.contract import Example, Params, PredictionTask
from bertjax.errors import UserError, naming_arguments
from bertjax.interop.published import Published, open_weights
from bertjax.progress import amount, track
from bertjax.training.config import InferenceConfig
from bertjax.training.inference import Inference, Predictor, reported

_log = logging.getLogger(__name__)

# The arguments of `Model.encode` for keys of `configs/features.py`.
_OF_ENCODE = {
    "model.layers": "layer",
    "sentence_pooling": "pooling",
    **{key: key for key in ("normalize", "prompt_name", "prompt")},
}
_SIZES = {"num_layers": "layers", "num_decoder_layers": "decoder layers", "num_heads": "heads"}  # keys of `model`
_SHOWN = 80  # characters of the names of classes in `print(model)`


class _Encoder(NamedTuple):
    task: PredictionTask
    params: Params
    predictor: Predictor


class Model(Inference):
    """A task with its parameters and its config. `Inference` documents the attributes `task`, `params` and `mesh`.

    Inputs are sorted by length and padded to a few lengths, each of which is compiled once. Results have the order of
    the inputs.

    Attributes:
      config: the complete config, as in config.json of a run, read by key or by attribute.
    """

    def __init__(
        self,
        task: PredictionTask,
        settings: InferenceConfig,
        config: Mapping[str, Any],
        workdir: Path | None,
        checkpoint: str,
        published: Published | None = None,
    ) -> None:
        """Reads the parameters.

        Args:
          task: the task.
          settings: the settings that `config` has for all experiments.
          config: the complete config.
          workdir: a run; None for the weights in `init_from`.
          checkpoint: which checkpoint of the run; "final" without a run.
          published: the weights in `init_from`; None for a run.
        """
        super().__init__(task, settings, workdir, checkpoint, published)
        self.config = Tree(config)
        self._published, self._folder = published, workdir or Path(config["init_from"])
        self._encoders: dict[str, _Encoder] = {}

    def __reduce__(self) -> NoReturn:
        """Raises UserError, because programs and arrays on devices belong to a process."""
        got, expected = "a model, whose programs belong to this process", "the name of its folder"
        raise UserError("pickle", got=got, expected=expected, fix="call bertjax.load in the other process")

    def __copy__(self) -> "Model":
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __repr__(self) -> str:
        labels, model = getattr(self.task, "labels", ()), self.config.model
        sizes = [f"{model[key]} {name}" for key, name in _SIZES.items() if model.get(key)]
        parameters = amount("parameters", float(sum(leaf.size for leaf in jax.tree.leaves(self.params))))
        lines = {
            "task": self.config.experiment,
            "folder": f"{self._folder}, checkpoint {self.checkpoint}" if self.checkpoint else self._folder,
            "classes": f"{len(labels)}: {textwrap.shorten(', '.join(labels), _SHOWN, placeholder=' ...')}",
            "model": ", ".join([*sizes, f"hidden size {model.hidden_size}", parameters]),
        }
        shown = [f"  {name:<7}  {value}" for name, value in lines.items() if labels or name != "classes"]
        return "\n".join(["bertjax model", *shown])

    @property
    def model(self) -> nn.Module:
        """The Linen module; `model.apply({"params": params}, ...)` runs it."""
        return self.task.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, with the vocabulary; of a translation model a pair of vocabularies, source and target."""
        return self.task.tokenizer

    @naming_arguments()
    def predict(self, inputs: Iterable[Any]) -> list[Mapping[str, Any]]:
        """Returns a record for each input, as `--mode=predict` writes it.

        Args:
          inputs: texts. Pairs of texts, and a text with its choices, are tuples; questions are dicts with "question"
            and "context".
        Raises:
          UserError: for a bad input, unless `data.on_bad_row` is "skip"; then its record is {"error": ...}.
        """
        return list(self.records(self._tracked(self.task.examples_in(_listed(inputs)), inputs)))

    @naming_arguments(_OF_ENCODE)
    def encode(
        self,
        texts: Iterable[Any],
        *,
        layer: int = -1,
        pooling: str | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Float32[np.ndarray, "texts D"]:
        """Returns a vector for each text from the encoder, which must be a BERT.

        Longer texts are truncated to the positions of the model, or to the length that sentence-transformers states.
        Defaults are the values of the config if its experiment is "features" with pooling "sentence", otherwise those
        of a sentence-transformers folder.

        Args:
          texts: texts, or pairs of texts as tuples.
          layer: 0 for the embeddings, -1 for the last layer.
          pooling: how the tokens of a text become its vector: "mean", "cls", "max" or another value of the key
            `sentence_pooling`. Default for other folders: "mean".
          normalize: whether vectors are scaled to length 1. Default for other folders: False.
          prompt_name: the name of a prompt of a sentence-transformers folder.
          prompt: a text that precedes each text, or the first of each pair; instead of `prompt_name`.
        Returns:
          the vectors. With `data.on_bad_row="skip"`, the vector of a bad text is NaN, and the log has their number.
        Raises:
          UserError: for a bad text, an invalid option, or a model without a BERT.
        """
        encoder = self._encoder(layer, pooling, normalize)
        task: Any = encoder.task
        if prompt_name is not None or prompt is not None:
            from bertjax.experiments.features import chosen_prompt

            published = self._published or open_weights(self._folder)
            task = task.prompted(chosen_prompt(published, prompt_name, prompt))
        size = task.size
        none = np.full(size, np.nan, np.float32)
        examples = self._tracked(reported(task.examples_in(_listed(texts)), "texts"), texts)
        results = encoder.predictor(encoder.params, examples)
        found = [outputs[0]["features"] if outputs else none for _, outputs in results]
        if bad := sum(row is none for row in found):
            _log.warning("%d of %d texts are bad: their vectors are NaN", bad, len(found))
        return np.stack(found) if found else np.zeros((0, size), np.float32)

    def _tracked(self, examples: Iterable[Example], inputs: Any) -> Iterable[Example]:
        """Shows progress."""
        total = len(inputs) if isinstance(inputs, Sequence) else None
        return track(examples, "predicting", "input", total)

    def _encoder(self, layer: int, pooling: str | None, normalize: bool | None) -> _Encoder:
        """The task "features" on the parameters of this model."""
        options = (layer, pooling, normalize)
        key = repr(options)  # options of wrong types may not be hashable
        if key not in self._encoders:
            if "bert" not in self.params:
                got, expected = f"a model of the task {self.config['experiment']}", "a model with a BERT"
                raise UserError("encode", got=got, expected=expected, fix="load another folder")
            weights = self._published or open_weights(self._folder)
            task = _features(self.config, weights, *options)
            shapes, params = jax.eval_shape(task.init, jax.random.key(0)), self.params
            if not shapes.keys() <= params.keys():  # maps of sentence-transformers that another task does not have
                params = task.warm_start(shapes, weights)
            self._encoders[key] = _Encoder(task, _subtree(params, shapes), Predictor(task, self.mesh))
        return self._encoders[key]


def _features(
    config: Mapping[str, Any], published: Published, layer: int, pooling: str | None, normalize: bool | None
) -> PredictionTask:
    """The task "features" for the encoder of another task's model."""
    from bertjax.config import build_part
    from bertjax.configs.features import get_config
    from bertjax.experiments import features

    default = json.loads(get_config("sentence").to_json())
    if config["experiment"] == "features" and config["pooling"] == "sentence":
        default = {key: config[key] for key in default}
    model = {key: config["model"].get(key, value) for key, value in default["model"].items()}
    data = {key: config["data"].get(key, default["data"][key]) for key in ("lowercase", "on_bad_row")}
    if not published.has_vocabulary:
        data["vocab_file"] = config["data"]["vocab_file"]
    given = {
        **default,
        "init_from": str(published.path),
        "model": {**model, "layers": (layer,)},
        "data": {**default["data"], **data},
        "sentence_pooling": default["sentence_pooling"] if pooling is None else pooling,
        "normalize": default["normalize"] if normalize is None else normalize,
        "dtype_out": "float32",
    }
    settings = build_part(features.Config, features.resolve(given, published))
    return features.Task(settings, features.open_vocabulary(settings, published))


def _subtree(params: Params, like: Params) -> Params:
    return {
        name: _subtree(params[name], part) if isinstance(part, Mapping) else params[name] for name, part in like.items()
    }


def _listed(inputs: Any) -> Iterable[Any]:
    """Refuses a single text, whose characters would be inputs, and what is no iterable."""
    if isinstance(inputs, str | bytes | os.PathLike | Mapping) or not isinstance(inputs, Iterable):
        got, expected = f"an object of type {type(inputs).__name__}", "a list of inputs"
        raise UserError("inputs", got=got, expected=expected, fix="write [text] for a single text")
    return inputs
