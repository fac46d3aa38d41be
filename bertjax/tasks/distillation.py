"""Distillation: a student learns from the outputs of a teacher, which is another model of the same task.

The teacher is a program of its own, whose outputs are fields of a training batch. A student is the task's class with
`Distilled` before it, so that tasks without a teacher do not change.

Shapes: B rows, E examples of a row, S tokens, n pairs of layers, H hidden size, N heads, D size of a head.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util
from jaxtyping import Array

from bertjax.config import Constrained, above, at_least, build_part, one_of
from bertjax.contract import Batch, Metrics, Params, Sums
from bertjax.data.text.vocabularies import has_only_specials
from bertjax.errors import UserError
from bertjax.interop.published import CHANGEABLE, MODEL_KEYS, Published, open_weights
from bertjax.models import distillation as terms
from bertjax.models.attention.rotary import rotate
from bertjax.models.bert import BertInputs, MaskedLanguageModelHead
from bertjax.models.encoder import Encoder, take_positions
from bertjax.models.transformer import TransformerLayer
from bertjax.tasks.bert import BertTask, Predictions

_log = logging.getLogger(__name__)
_MAPS = "distillation"  # the student's parameters that only its training uses
_FIELD = "teacher_"  # before the names of fields with the teacher's outputs
_OF_LAYERS = ("hidden", "embeddings", "attention", "relations", "cosine")
TERMS = ("logits", *_OF_LAYERS)
_PARTS = ("query", "key", "value")
_MOST_COLLAPSED = 0.2  # how much closer to each other the student's vectors may be than the teacher's
_DIVERGENCES: Mapping[str, Callable[..., Array]] = {
    "classification": terms.divergence,
    "multi_label": terms.flag_divergence,
    "regression": lambda teacher, student, _: terms.squared_distance(teacher, student),
}
# Keys that the folder of a teacher of vectors determines, like those of its model.
_OF_VECTORS = ("sentence_pooling", "dense", "normalize", "include_prompt", "truncate_dim")
Weight = Annotated[float, at_least(0)]


@dataclasses.dataclass(frozen=True)
class DistillationConfig(Constrained, prefix="distillation"):
    """The terms of the loss of a student, each with its weight; 0 for none. Metrics have the terms without weights.

    Attributes:
      labels: weight of the task's own loss.
      logits: of the divergence of the student's predictions from the teacher's; of numbers and vectors, the squared
        distance.
      logits_at: the tokens whose predictions are compared in pretraining: the "predicted" ones, or "all", as in the
        code of DistilBERT.
      temperature: divides the logits of classes; the divergence is multiplied by its square.
      hidden: of the squared distance of the outputs of layers, which a learned map projects where the widths differ.
      embeddings: of that of the embeddings.
      attention: of that of attention scores before the softmax, which needs equal numbers of heads (TinyBERT).
      relations: of the divergence of the relations among queries, keys and values of one layer (MiniLMv2).
      cosine: of 1 minus the cosine of the last hidden states (DistilBERT).
      layers: the teacher's layer for each layer of the student, for `hidden` and `attention`: "first", "last",
        "uniform", or numbers from 1 on, such as "3,6,9".
      relation_layer: the teacher's layer for `relations`; 0 for the last.
      relation_heads: heads into which the vectors for `relations` are split, a divisor of both widths.
      init_layers: the teacher's layers that the student starts from, written as `layers`; "" to start from `init_from`
        or random parameters. Both then have the same width.
      digest: of the teacher's weights. It is set when training begins; a resumed run must have the same.
    """

    labels: Weight = 1.0
    logits: Weight = 0.0
    logits_at: Annotated[str, one_of("predicted", "all")] = "predicted"
    temperature: Annotated[float, above(0)] = 1.0
    hidden: Weight = 0.0
    embeddings: Weight = 0.0
    attention: Weight = 0.0
    relations: Weight = 0.0
    cosine: Weight = 0.0
    layers: str = "uniform"
    relation_layer: Annotated[int, at_least(0)] = 0
    relation_heads: Annotated[int, at_least(1)] = 12
    init_layers: str = ""
    digest: str = ""

    @property
    def terms(self) -> dict[str, float]:
        """The weights of the terms with the teacher's outputs, without those of 0."""
        return {name: getattr(self, name) for name in TERMS if getattr(self, name)}

    @property
    def reads_layers(self) -> bool:
        """Whether a term compares the layers of the encoders."""
        return any(name in self.terms for name in _OF_LAYERS) or self.logits_at == "all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig(Constrained):
    """The config keys of tasks that can learn from a teacher.

    Attributes:
      teacher: the folder of the teacher, anything that `init_from` accepts; or "". Its outputs for the rows of each
        batch are computed in training, without dropout.
      distillation: what the student learns from it.
    """

    teacher: str = ""
    distillation: DistillationConfig = DistillationConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.distillation
        got = f"{self.teacher!r} with distillation terms {', '.join(config.terms) or 'of weight 0'}"
        expected = "a folder and a term of weight above 0, or neither of them"
        fix = f"set --config.teacher=FOLDER and one of --config.distillation.{{{','.join(TERMS)}}}"
        self.check(bool(self.teacher) == bool(config.terms), "teacher", expected, got=got, fix=fix)


def layer_numbers(value: str, count: int, total: int, key: str) -> tuple[int, ...]:
    """Returns a layer of the teacher, counted from 1, for each layer of the student.

    Args:
      value: "first", "last", "uniform", or numbers separated by commas.
      count: the student's layers.
      total: the teacher's layers.
      key: the config key, for messages.
    Raises:
      UserError: for another number of layers, or layers that the teacher does not have.
    """
    by_name = {
        "first": range(1, count + 1),
        "last": range(total - count + 1, total + 1),
        "uniform": [number * total // count for number in range(1, count + 1)],
    }
    parts = value.split(",")
    numbers = tuple(by_name.get(value) or [int(part) if part.strip().isdecimal() else 0 for part in parts])
    if len(numbers) != count or not all(1 <= number <= total for number in numbers):
        expected = f"first, last, uniform, or {count} of the teacher's layers 1 to {total}, for {count} of the student"
        raise UserError(f"config key distillation.{key}", got=value, expected=expected, fix="change it")
    return numbers


class Observation(NamedTuple):
    """What a task's loss computed with its model.

    Attributes:
      inputs: the rows that the encoder read; several for each row of a batch whose rows have several texts.
      output: the model's output.
      layers: the embeddings and each layer's output [L + 1, B, S, H]; None if they were not recorded.
    """

    inputs: BertInputs
    output: Any
    layers: Array | None


class Observable(BertTask[Any]):
    """A task that records what its loss computes."""

    _observations: list[Observation] | None = None
    reads_layers = False

    def observe(self, params: Params, batch: Batch, rng: Array | None) -> tuple[tuple[Sums, Metrics], Observation]:
        """Returns the loss of a batch, and what it computed."""
        self._observations = []
        try:
            loss = super().loss(params, batch, rng)  # type: ignore[misc]  # of the task's class
            (observation,) = self._observations
        finally:
            self._observations = None
        return loss, observation

    def apply(self, params: Params, batch: Batch, rng: Array | None, *arguments: Any, **options: Any) -> Any:
        layers: list[Array] = []

        def record(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            if not isinstance(context.module, Encoder) or context.method_name != "__call__":
                return call(*args, **kwargs)
            positions = kwargs.get("output_positions")
            output = call(*args, **{**kwargs, "return_layers": True, "output_positions": None})
            layers.append(output.layers)
            return output if positions is None else output._replace(hidden=take_positions(output.hidden, positions))

        if self._observations is None or self.couples_rows:
            return super().apply(params, batch, rng, *arguments, **options)
        if not self.reads_layers:
            output = super().apply(params, batch, rng, *arguments, **options)
        else:
            with nn.intercept_methods(record):
                output = super().apply(params, batch, rng, *arguments, **options)
        self._observations.append(Observation(BertInputs.of(batch), output, layers[0] if layers else None))
        return output

    def vectors(self, params: Params, batch: Batch, rng: Array | None) -> Array:
        """The vectors of a task that couples rows, whose model sees slices of the batch."""
        output: Array = super().vectors(params, batch, rng)  # type: ignore[misc]  # of the task's class
        if self._observations is not None:
            self._observations.append(Observation(BertInputs.of(batch), output, None))
        return output


class Distilled(Observable):
    """A student, whose loss has the terms of `DistillationConfig`.

    Parameters: those of the task, and `distillation` with a map [H, W] for each term whose vectors differ in width.
    """

    teacher: Observable
    weights: Published  # of the teacher
    _maps: Mapping[str, tuple[int, int]] = MappingProxyType({})

    def learn_from(self, teacher: Observable, weights: Published) -> None:
        """Sets the teacher. Raises UserError if a term cannot compare the two models."""
        self.teacher = teacher
        self.weights = weights
        config = self._distillation
        student_config = self._model_config
        teacher_config = teacher.encoder
        check = config.check
        self.reads_layers = teacher.reads_layers = config.reads_layers
        _ = self._layers
        layer = config.relation_layer
        most = teacher_config.num_layers
        check(layer <= most, "relation_layer", f"0, or a layer of the teacher, 1 to {most}")
        wrong = [name for name in config.terms if name in _OF_LAYERS and self.couples_rows]
        check(not wrong, "{" + ",".join(wrong) + "}", "0: only logits, the vectors of texts, are compared", got="more")
        is_alike = teacher_config.num_heads == student_config.num_heads
        got = f"{teacher_config.num_heads} heads of the teacher and {student_config.num_heads} of the student"
        check(is_alike or not config.attention, "attention", "0, or equally many heads", got=got)
        for model in (teacher_config, student_config):
            is_product = model.relative_positions == "none"
            got = f"scores with relative_positions={model.relative_positions}"
            check(is_product or not config.attention, "attention", "0, or scores of queries and keys alone", got=got)
            widths = {model.num_heads * size for size in (model.head_key_size, model.head_value_size)}
            divides = not any(width % config.relation_heads for width in widths)
            expected = f"a divisor of {' and '.join(map(str, sorted(widths)))}, the widths of queries and values"
            check(divides or not config.relations, "relation_heads", expected)
        is_pretraining = hasattr(self._config, "masking")
        is_fixed = not is_pretraining or (not self._config.masking.is_mixed and self._config.objective == "masked_lm")
        check(is_fixed or not config.logits, "logits", "0, or masked language modelling at a constant rate")
        check(is_pretraining or config.logits_at == "predicted", "logits_at", "predicted, outside pretraining")
        self._maps = self._widths()

    @property
    def _distillation(self) -> DistillationConfig:
        config: DistillationConfig = self._config.distillation
        return config

    @property
    def _layers(self) -> tuple[int, ...]:
        sizes = self._model_config.num_layers, self.teacher.encoder.num_layers
        return layer_numbers(self._distillation.layers, *sizes, "layers")

    def _widths(self) -> dict[str, tuple[int, int]]:
        """The widths of the student and of the teacher for each term whose vectors differ in width."""
        tasks = (self, self.teacher)
        widths = {name: tuple(task.encoder.hidden_size for task in tasks) for name in ("hidden", "cosine")}
        widths["embeddings"] = widths["hidden"]
        if self.couples_rows:
            spec = self.batch_specs_of_task()[0]
            widths["logits"] = tuple(
                jax.eval_shape(lambda p, b, task=task: task.observe(p, b, None)[1].output, _shapes(task), spec).shape[
                    -1
                ]
                for task in tasks
            )
        return {name: pair for name, pair in widths.items() if name in self._distillation.terms and len({*pair}) > 1}

    def init(self, rng: Array) -> Params:
        params = super().init(rng)
        if not self._maps:
            return params
        keys = jax.random.split(rng, len(self._maps))
        draw = nn.initializers.lecun_normal()
        pairs = zip(keys, self._maps.items(), strict=True)
        return {**params, _MAPS: {name: draw(key, widths) for key, (name, widths) in pairs}}

    def warm_start(self, params: Params, published: Published) -> Params:
        """Returns the weights in `init_from`, or those of the teacher's layers that `init_layers` names."""
        of_task = {name: tree for name, tree in params.items() if name != _MAPS}
        if published is not self.weights:
            return {**params, **super().warm_start(of_task, published)}
        total = self.teacher.encoder.num_layers
        numbers = layer_numbers(self._distillation.init_layers, self._model_config.num_layers, total, "init_layers")
        places = jnp.array(numbers) - 1
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), _shapes(self.teacher))
        weights = self.teacher.warm_start(empty, published)
        of_teacher = traverse_util.flatten_dict(weights, sep="/")
        lacks = traverse_util.flatten_dict(
            jax.tree.map(lambda *leaves: leaves[0] is leaves[1], empty, weights), sep="/"
        )
        result = {}
        for path, leaf in traverse_util.flatten_dict(of_task, sep="/").items():
            value = of_teacher.get(path, leaf)
            value = value[places] if path.startswith("bert/encoder/layers/") else value
            is_of_encoder = path.startswith("bert/")
            if value.shape != leaf.shape and is_of_encoder:
                got = f"{path} of shape {leaf.shape}"
                expected = f"{value.shape}, as in the teacher, of which it is a copy"
                fix = "omit the sizes of model other than num_layers, or distillation.init_layers"
                raise UserError("config key distillation.init_layers", got=got, expected=expected, fix=fix)
            result[path] = leaf if value.shape != leaf.shape or lacks.get(path, True) else value
        return {**params, **traverse_util.unflatten_dict(result, sep="/")}

    def batch_specs_of_task(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Returns the shapes of batches without the teacher's outputs."""
        return super().batch_specs()  # type: ignore[misc]

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        params = _shapes(self.teacher)
        specs = self.batch_specs_of_task()
        return [{**spec, **jax.eval_shape(self.teacher_fields, params, dict(spec))} for spec in specs]

    def teacher_fields(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Returns the outputs of the teacher, with these parameters, as further fields of a batch."""
        _, seen = self.teacher.observe(params, batch, None)
        fields = {}
        if self._distillation.logits:
            predictions = self._predictions(self.teacher, params, seen, batch)
            fields = {"logits": predictions.logits, "weights": predictions.weights}
        rows = len(next(iter(batch.values())))
        layers = self._representations(self.teacher, params, seen, self._layers, self._distillation.relation_layer)
        fields |= {name: x.reshape(rows, -1, *x.shape[1:]) for name, x in layers.items()}
        return {f"{_FIELD}{name}": value for name, value in fields.items()}

    def check_weights(self, lacks: Params) -> None:
        """Raises UserError unless there are weights of the encoder and, for predictions, of the heads."""
        paths = [path for path, lacking in traverse_util.flatten_dict(lacks, sep="/").items() if lacking]
        if not self._distillation.logits:
            paths = [path for path in paths if path.startswith("bert/") and "/pooler/" not in path]
        if paths:
            modules = ", ".join(dict.fromkeys(path.split("/")[0] for path in paths))
            expected = "a model that was trained for this task, or no distillation.logits"
            where = f"config key teacher={self._config.teacher}"
            raise UserError(where, got=f"no weights of {modules}", expected=expected, fix="name another folder")

    def denominators(self, batch: Batch) -> Mapping[str, Array]:
        """Returns also those of the terms: the predictions, real tokens, or pairs of tokens of one instance."""
        segments = batch["segment_ids"].reshape(-1, batch["segment_ids"].shape[-1])
        tokens = jnp.maximum(jnp.sum(segments != 0, dtype=jnp.float32), 1)
        counts = dict.fromkeys(_OF_LAYERS, tokens)
        counts["attention"] = jnp.maximum(jnp.sum(terms.are_related(segments), dtype=jnp.float32), 1)
        if f"{_FIELD}weights" in batch:
            counts["logits"] = jnp.maximum(jnp.sum(batch[f"{_FIELD}weights"]), 1e-6)
        return {**super().denominators(batch), **{_name(name): counts[name] for name in self._distillation.terms}}  # type: ignore[misc]

    def loss(self, params: Params, batch: Batch, rng: Array | None) -> tuple[Sums, Metrics]:
        """Returns the terms with their weights; in evaluations, whose batches lack the teacher, the task's loss."""
        if not any(name.startswith(_FIELD) for name in batch):
            return super().loss(params, batch, rng)  # type: ignore[misc]
        config = self._distillation
        (of_task, metrics), seen = self.observe(params, batch, rng)
        values = dict(self._terms(params, batch, seen))
        counts = self.denominators(batch)
        sums = {name: config.labels * value for name, value in of_task.items() if config.labels}
        sums |= {_name(name): config.terms[name] * value for name, value in values.items()}
        metrics = {**metrics, **{_name(name): (value, counts[_name(name)]) for name, value in values.items()}}
        if self.couples_rows:
            metrics |= self._closeness(params, batch, seen)
        return sums, metrics

    def _terms(self, params: Params, batch: Batch, seen: Observation) -> Iterator[tuple[str, Array]]:
        """The sum of each term over the rows of a batch."""
        config = self._distillation
        segments = seen.inputs.segment_ids
        is_token = segments != 0
        if config.logits:
            predictions = self._predictions(self, params, seen, batch)
            logits = predictions.logits
            student = logits @ params[_MAPS]["logits"] if "logits" in self._maps else logits
            losses = _DIVERGENCES[predictions.kind](batch[f"{_FIELD}logits"], student, config.temperature)
            # Predictions without weight may have logits of -inf.
            yield "logits", jnp.sum(jnp.where(predictions.weights > 0, losses * predictions.weights, 0.0))
        of_student = self._representations(self, params, seen, range(1, self._model_config.num_layers + 1), 0)
        of_teacher = {name: _merged(batch[f"{_FIELD}{name}"]) for name in of_student}

        def distance(name: str, of_pair: Callable[[Array, Array], Array]) -> Array:
            student = of_student[name]
            student = student @ params[_MAPS][name] if name in self._maps else student
            return of_pair(of_teacher[name], student)

        for name in ("hidden", "embeddings"):
            if name in config.terms:
                distances = distance(name, terms.squared_distance).reshape(len(segments), -1, segments.shape[-1])
                yield name, jnp.sum(jnp.mean(distances, axis=1) * is_token)
        if config.cosine:
            yield "cosine", jnp.sum(distance("cosine", terms.cosine_distance) * is_token)
        if config.attention:
            pairs = zip(*(_merged_layers(of_model) for of_model in (of_teacher, of_student)), strict=True)
            errors = [(terms.scores(*teacher) - terms.scores(*student)) ** 2 for teacher, student in pairs]
            mean = jnp.mean(jnp.stack(errors), axis=(0, 2))
            yield "attention", jnp.sum(mean * terms.are_related(segments))
        if config.relations:
            heads = config.relation_heads
            divergences = [
                terms.relation_divergence(of_teacher[part], of_student[part], heads, segments) for part in _PARTS
            ]
            yield "relations", jnp.sum(sum(divergences) * is_token)

    def _representations(
        self, task: Observable, params: Params, seen: Observation, layers: Sequence[int], relation_layer: int
    ) -> dict[str, Array]:
        """What the terms compare of the layers, by name, with the rows that the encoder read on axis 0.

        Args:
          task: the teacher or the student.
          params: its parameters.
          seen: its outputs.
          layers: the layers to compare, counted from 1.
          relation_layer: the layer whose relations are compared; 0 for the last.
        """
        states = seen.layers
        chosen = self._distillation.terms
        result: dict[str, Array] = {}
        if states is None:
            return result
        if "hidden" in chosen:
            result["hidden"] = jnp.stack([states[number] for number in layers], axis=1)
        if "embeddings" in chosen:
            result["embeddings"] = states[0]
        if "cosine" in chosen:
            result["cosine"] = states[-1]
        if "attention" in chosen:
            pairs = [_rotated(task, number, seen, *_heads(task, params, seen, number)[:2]) for number in layers]
            result |= {
                name: jnp.stack(of_layers, axis=1)
                for name, of_layers in zip(("queries", "keys"), zip(*pairs, strict=True), strict=True)
            }
        if "relations" in chosen:
            heads = _heads(task, params, seen, relation_layer or task.encoder.num_layers)
            flat = [x.reshape(*x.shape[:2], -1) for x in heads]
            result |= dict(zip(_PARTS, flat, strict=True))
        return result

    def _predictions(self, task: Observable, params: Params, seen: Observation, batch: Batch) -> Predictions:
        """The predictions of the teacher or the student."""
        if self._distillation.logits_at == "predicted":
            return task.predictions(seen.output, batch)
        assert seen.layers is not None
        head = MaskedLanguageModelHead(task.encoder)
        table = params["bert"]["embeddings"]["word_embeddings"]
        logits = head.apply({"params": params["masked_lm"]}, seen.layers[-1], table)
        is_token = seen.inputs.segment_ids != 0
        return Predictions(logits, is_token.astype(jnp.float32), "classification")

    def _closeness(self, params: Params, batch: Batch, seen: Observation) -> Metrics:
        """The mean cosine of the vectors of different texts, of student and teacher; see `review`."""
        predictions = self._predictions(self, params, seen, batch)
        weights = predictions.weights.ravel()
        vectors = {"student": predictions.logits, "teacher": batch[f"{_FIELD}logits"]}
        one = jnp.ones(())
        return {
            f"{model}_mean_cosine": (terms.mean_cosine(x.reshape(-1, x.shape[-1]), weights), one)
            for model, x in vectors.items()
        }

    def review(self, metrics: Mapping[str, float]) -> None:
        """Warns if the student's vectors of different texts are nearly the same, given the metrics of an update."""
        student, teacher = (metrics.get(f"train/{model}_mean_cosine") for model in ("student", "teacher"))
        if student is not None and teacher is not None and student > teacher + _MOST_COLLAPSED:
            text = (
                "the student's vectors of different texts have a mean cosine of %.2f, the teacher's of %.2f: they "
                "collapse; a lower learning rate, another pooling or fewer negatives of one kind may help"
            )
            _log.warning(text, student, teacher)


def _name(term: str) -> str:
    return f"distillation_{term}"


def _merged(field: Array) -> Array:
    """A field with its first two axes merged: the rows of a batch, and the texts of a row."""
    return field.reshape(-1, *field.shape[2:])


def _merged_layers(of_model: Mapping[str, Array]) -> Iterator[tuple[Array, Array]]:
    """Yields queries and keys [B, S, N, D] of each layer."""
    return zip(*(jnp.moveaxis(of_model[name], 1, 0) for name in ("queries", "keys")), strict=True)


def _shapes(task: BertTask[Any]) -> Params:
    return jax.eval_shape(task.init, jax.random.key(0))


def _heads(task: Observable, params: Params, seen: Observation, number: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values of a layer, counted from 1, which reads the output of the one before it."""
    config = task.encoder
    kind = config.kind(number - 1)
    row = number - 1 if kind.group is None else kind.group
    of_layer = jax.tree.map(lambda leaf: leaf[row], params["bert"]["encoder"]["layers"])
    assert seen.layers is not None
    layer = TransformerLayer(config, cross=False, kind=kind)
    heads: tuple[Array, Array, Array] = layer.apply({"params": of_layer}, seen.layers[number - 1], method="heads")
    return heads


def _rotated(task: Observable, number: int, seen: Observation, query: Array, key: Array) -> tuple[Array, Array]:
    """Queries and keys as the scores of a layer multiply them."""
    config = task.encoder
    query = query * config.query_scale
    base = config.kind(number - 1).rotary_base
    if not base:
        return query, key
    places = seen.inputs.position_ids
    positions = jnp.broadcast_to(jnp.arange(query.shape[1]), query.shape[:2]) if places is None else places
    return rotate(query, positions, base), rotate(key, positions, base)


def teacher_config(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Returns the config of the teacher of a run before `Experiment.resolve`: that of its folder, on the run's rows."""
    of_heads = {key: published.fields.get(key, value) for key, value in config["model"].items()}
    unset = {key: None for key in (*MODEL_KEYS, "vocab_size", "family") if key in of_heads}
    model = {**of_heads, **{key: config["model"][key] for key in CHANGEABLE if key in of_heads}, **unset}
    of_vectors = {key: None for key in _OF_VECTORS if key in config}
    data = {**config["data"], "vocab_file": "", "lowercase": None, "add_tokens": ()}
    no_teacher = {"teacher": "", "distillation": dataclasses.asdict(DistillationConfig())}
    return {**config, **of_vectors, **no_teacher, "model": model, "data": data, "init_from": config["teacher"]}


def student(module: Any, config: Mapping[str, Any], vocabulary: Any) -> Distilled:
    """Returns the task of an experiment with the teacher of a complete config.

    Raises:
      UserError: if the folder has no model for this task, another vocabulary, or does not fit the terms.
    """
    folder = config["teacher"]
    weights = open_weights(Path(folder))
    of_folder = module.resolve(teacher_config(config, weights), weights)
    tokenizer = module.open_vocabulary(build_part(module.Config, of_folder), weights)
    vocabulary = tokenizer if has_only_specials(vocabulary.vocab) else vocabulary  # that of an example
    if list(tokenizer.vocab) != list(vocabulary.vocab):
        got = f"a vocabulary of {tokenizer.vocab_size} tokens, other than the student's of {len(vocabulary.vocab)}"
        fix = f"set --config.data.vocab_file={folder}"
        raise UserError(f"config key teacher={folder}", got=got, expected="the same tokens", fix=fix)
    of_rows = {key: config["data"][key] for key in ("vocab_file", "lowercase")}
    of_folder = {**of_folder, "data": {**config["data"], **of_rows}}
    classes = (type(name, (base, module.Task), {}) for name, base in (("Teacher", Observable), ("Student", Distilled)))
    configs = (build_part(module.Config, values) for values in (of_folder, config))
    teacher, task = (cls(values, vocabulary) for cls, values in zip(classes, configs, strict=True))
    assert isinstance(task, Distilled) and isinstance(teacher, Observable)
    task.learn_from(teacher, weights)
    return task


def with_teacher(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Fills in what the teacher determines: its digest, the vocabulary, and the sizes of a student of its layers.

    Raises:
      UserError: if its weights changed since training began.
    """
    distillation = dict(config["distillation"])
    digest = published.digest
    if distillation["digest"] not in ("", digest):
        got = f"other weights than those that training began with, {distillation['digest'][:12]}"
        raise UserError(
            f"config key teacher={config['teacher']}", got=got, expected="the same weights", fix="restore them"
        )
    distillation["digest"] = digest
    model = dict(config["model"])
    if distillation["init_layers"]:
        values = {**published.model, "family": published.family}
        model = {key: values.get(key) if value is None else value for key, value in model.items()}
    data = dict(config["data"])
    if published.has_vocabulary and not config["init_from"] and not data.get("vocab_file"):
        data["vocab_file"] = config["teacher"]
        data["lowercase"] = published.lowercase if data.get("lowercase") is None else data["lowercase"]
    return {**config, "model": model, "data": data, "distillation": distillation}
