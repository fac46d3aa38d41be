"""A model that is ready to predict: what `bertjax.load` returns."""

import hashlib
import logging
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util
from jaxtyping import Float, Int8

from bertjax.config import Tree, choice
from bertjax.contract import Example, Params, PredictionTask
from bertjax.data.readers import vector_files
from bertjax.errors import UserError, naming_arguments
from bertjax.interop.published import Published, open_weights
from bertjax.progress import amount, pace, track
from bertjax.tasks.text_encoders import TextEncoder, chosen_prompt, text_encoder
from bertjax.training.compilation import Compilations
from bertjax.training.config import InferenceConfig
from bertjax.training.inference import Inference, Predictor, reported

_log = logging.getLogger(__name__)

# The arguments of `Model.encode` for keys of `configs/features.py`.
_OF_ENCODE = {
    "model.layers": "layer",
    "sentence_pooling": "pooling",
    **{key: key for key in ("normalize", "prompt_name", "prompt", "dtype")},
}
_SIZES = {"num_layers": "layers", "num_decoder_layers": "decoder layers", "num_heads": "heads"}  # keys of `model`
_SHOWN = 80  # characters of the names of classes in `print(model)`


class _Encoder(NamedTuple):
    task: TextEncoder
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
        self._published = published
        self._folder = workdir or Path(config["init_from"])
        self._encoders: dict[str, _Encoder] = {}

    def __reduce__(self) -> NoReturn:
        """Raises UserError, because programs and arrays on devices belong to a process."""
        got = "a model, whose programs belong to this process"
        expected = "the name of its folder"
        raise UserError("pickle", got=got, expected=expected, fix="call bertjax.load in the other process")

    def __copy__(self) -> "Model":
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __repr__(self) -> str:
        labels = getattr(self.task, "labels", ())
        model = self.config.model
        sizes = [f"{model[key]} {name}" for key, name in _SIZES.items() if model.get(key)]
        parameters = amount("parameters", float(sum(leaf.size for leaf in jax.tree.leaves(self.params))))
        lines = {
            "task": self.config.experiment,
            "folder": f"{self._folder}, checkpoint {self.checkpoint}" if self.checkpoint else self._folder,
            "classes": f"{len(labels)}: {textwrap.shorten(', '.join(labels), _SHOWN, placeholder=' ...')}",
            "model": ", ".join([*sizes, f"hidden size {model.hidden_size}", parameters]),
        }
        rows = [f"  {name:<7}  {value}" for name, value in lines.items() if labels or name != "classes"]
        return "\n".join(["bertjax model", *rows])

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
        exact: bool = True,
        output: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
    ) -> Float[np.ndarray, "texts D"] | Int8[np.ndarray, "texts D"]:
        """Returns a vector for each text from the encoder, which must be a BERT.

        Longer texts are truncated to the positions of the model, or to the length that sentence-transformers states.
        Defaults are the values of the config if its experiment is "features" with pooling "sentence", otherwise those
        of a sentence-transformers folder.

        Args:
          texts: texts, or pairs of texts as tuples. They are read as a stream.
          layer: 0 for the embeddings, -1 for the last layer.
          pooling: how the tokens of a text become its vector: "mean", "cls", "max" or another value of the key
            `sentence_pooling`. Default for other folders: "mean".
          normalize: whether vectors are scaled to length 1. Default for other folders: False.
          prompt_name: the name of a prompt of a sentence-transformers folder.
          prompt: a text that precedes each text, or the first of each pair; instead of `prompt_name`.
          exact: whether a vector has the same bits whatever the order and number of texts, on one kind and number of
            devices and cores. False encodes a single text faster.
          output: a .npy file for the vectors, which the same call resumes after an interruption; see
            `vector_files.writing`.
          dtype: "float32", "float16", or "int8" for vectors of length 1; see `vector_files.to_dtype`.
        Returns:
          the vectors; memory-mapped if there is an `output`. With `data.on_bad_row="skip"`, the vector of a bad text is
          NaN, or zeros in int8, and the log has their number.
        Raises:
          UserError: for a bad text, an invalid option, a model without a BERT, or an `output` of other vectors.
        """
        encoder = self._encoder(layer, pooling, normalize, exact)
        if prompt_name is not None or prompt is not None:
            published = self._published or open_weights(self._folder)
            encoder = encoder._replace(task=encoder.task.prompted(chosen_prompt(published, prompt_name, prompt)))
        size = encoder.task.size
        _check_storage(encoder.task, dtype, exact, output)
        texts = _listed(texts)
        if output is None:
            vectors = list(self._vectors(encoder, texts, texts, dtype))
            return np.stack(vectors) if vectors else np.zeros((0, size), dtype)
        with vector_files.writing(Path(output), self._made_with(encoder), size, dtype) as file:
            for vector in self._vectors(encoder, texts, file.unread(texts), dtype, file.done):
                file.add(vector)
        return np.load(output, mmap_mode="r")

    def _vectors(
        self, encoder: _Encoder, texts: Iterable[Any], unread: Iterable[Any], dtype: str, done: int = 0
    ) -> Iterator[np.ndarray]:
        """Yields the vectors of the texts after the first `done`, and logs the number of bad ones."""
        examples = self._tracked(reported(encoder.task.examples(unread, done + 1), "texts"), texts, done)
        count = bad = 0
        for count, (_, outputs) in enumerate(encoder.predictor(encoder.params, examples), start=1):
            bad += not outputs
            vector = outputs[0]["features"] if outputs else None
            yield vector_files.to_dtype(vector, encoder.task.size, dtype, done + count)
        if bad:
            vectors = "zeros" if dtype == "int8" else "NaN"
            _log.warning("%d of %d texts are bad: their vectors are %s", bad, count, vectors)

    def _tracked(self, examples: Iterable[Example], inputs: Any, done: int = 0) -> Iterator[Example]:
        """Shows progress on the inputs after the first `done`."""
        total = len(inputs) - done if isinstance(inputs, Sequence) else None
        with Compilations() as compiled:
            expected = pace(total, lambda: compiled.seconds) if total else None
            yield from track(examples, "predicting", "input", total, expected)

    def _encoder(self, layer: int, pooling: str | None, normalize: bool | None, exact: bool) -> _Encoder:
        """The encoder of this model, with its parameters. Each is made once."""
        options = (layer, pooling, normalize)
        key = repr((*options, exact))  # options of wrong types may not be hashable
        if key not in self._encoders:
            weights = self._published or open_weights(self._folder)
            task = text_encoder(self.task, self.config, weights, *options)
            params = task.params_of(self.params, weights)
            self._encoders[key] = _Encoder(task, params, Predictor(task, self.mesh, exact=exact))
        return self._encoders[key]

    def _made_with(self, encoder: _Encoder) -> dict[str, Any]:
        """The description of what vectors depend on, with the names of arguments of `Model.encode`."""
        digest = hashlib.sha256()
        for path, leaf in jax.tree_util.tree_leaves_with_path(encoder.params):
            name = f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}"
            digest.update(name.encode() + np.asarray(leaf).tobytes())
        values = traverse_util.flatten_dict(encoder.task.made_with, sep=".")
        arguments = {_OF_ENCODE.get(key, key): value for key, value in values.items()}
        return {"weights": digest.hexdigest(), "tokenizer": self.tokenizer.key, **arguments}


def _check_storage(encoder: TextEncoder, dtype: str, exact: bool, output: Any) -> None:
    """Raises UserError for options of `Model.encode` that do not fit each other."""
    if choice(dtype, vector_files.DTYPES, "dtype") == "int8" and not encoder.normalizes:
        got = "int8, which has only directions, for vectors of any length"
        expected = "vectors of length 1"
        raise UserError("dtype", got=got, expected=expected, fix='set normalize=True or dtype="float16"')
    if output is not None and not exact:
        got = "False with an output"
        expected = "True, because vectors may not depend on where encoding resumes"
        raise UserError("exact", got=got, expected=expected, fix="omit it")
    if output is not None and jax.process_count() > 1:
        got = f"{jax.process_count()} processes"
        expected = "one process"
        raise UserError(f"output={output}", got=got, expected=expected, fix="give each process texts of its own")


def _listed(inputs: Any) -> Iterable[Any]:
    """Refuses a single text, whose characters would be inputs, and what is no iterable."""
    if isinstance(inputs, str | bytes | os.PathLike | Mapping) or not isinstance(inputs, Iterable):
        got = f"an object of type {type(inputs).__name__}"
        expected = "a list of inputs"
        raise UserError("inputs", got=got, expected=expected, fix="write [text] for a single text")
    return inputs
