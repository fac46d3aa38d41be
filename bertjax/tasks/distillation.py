"""Distillation: a student learns from the outputs of a teacher, which is another model of the same task.

The teacher is a program of its own, whose outputs are fields of a training batch. A student is the task's class with
`Distilled` before it, so that tasks without a teacher do not change.

Shapes: B rows, E examples of a row, S tokens, n pairs of layers, H hidden size, N heads, D size of a head.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util
from jaxtyping import Array

from bertjax.config import build_part
from bertjax.contract import Batch, Metrics, Params, Sums
from bertjax.data.rows import targets
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.text.vocabularies import has_only_specials
from bertjax.errors import UserError
from bertjax.files import Fingerprint
from bertjax.interop.published import Published
from bertjax.models import distillation as losses
from bertjax.models.bert import BertInputs, MaskedLanguageModelHead
from bertjax.models.encoder import Encoder, take_positions
from bertjax.tasks import pretrained
from bertjax.tasks.bert import BertTask, Predictions, SampledTask
from bertjax.tasks.teachers import layer_numbers, open_teacher, teacher_config

_log = logging.getLogger(__name__)
_MAPS = "distillation"  # the student's parameters that only its training uses
_FIELD = "teacher_"  # before the names of fields with the teacher's outputs
_MOST_COLLAPSED = 0.2  # how much closer to each other the student's vectors may be than the teacher's
_DIVERGENCES: Mapping[str, Callable[..., Array]] = {
    "classification": losses.divergence,
    "multi_label": losses.flag_divergence,
    "regression": lambda teacher, student, _: losses.squared_distance(teacher, student),
}


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


class Observable(BertTask[Any], SampledTask):
    """A task that records what its loss computes."""

    _observations: list[Observation] | None = None
    reads_layers = False

    def observe(self, params: Params, batch: Batch, rng: Array | None) -> tuple[tuple[Sums, Metrics], Observation]:
        """Returns the loss of a batch, and what it computed."""
        self._observations = []
        try:
            loss = super().loss(params, batch, rng)  # type: ignore[safe-super]
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
    stores = False  # whether the teacher's outputs are stored
    _maps: Mapping[str, tuple[int, int]] = MappingProxyType({})

    @property
    def learns_labels(self) -> bool:
        """Whether the loss has the terms of the task itself."""
        return bool(self._config.distillation.labels)

    @property
    def start(self) -> Published | None:
        """The teacher's weights, if the student starts from its layers."""
        return self.weights if self._config.distillation.init_layers else None

    def learn_from(self, teacher: Observable, weights: Published) -> None:
        """Sets the teacher. Raises UserError if a term cannot compare the two models."""
        self.teacher = teacher
        self.weights = weights
        config = self._config.distillation
        self.reads_layers = teacher.reads_layers = config.reads_layers
        config.check_models(self.encoder, teacher.encoder)
        if self.couples_rows:
            config.check_only_logits()
            if getattr(teacher._config, "normalize", False) and not self._config.normalize:
                _log.warning("the teacher normalizes its vectors, the student does not: set --config.normalize=True")
        masking = getattr(self._config, "masking", None)
        if masking is not None:
            is_fixed = not masking.is_mixed and self._config.objective == "masked_lm"
            expected = "no value, unless all rows are masked at a constant rate"
            self._config.check(is_fixed, "teacher", expected, got="a folder")
            self._check_masked_lm()
        self.stores = config.targets == "stored"
        if self.stores:
            self._check_stored()
        is_here = masking is not None or config.logits_at == "predicted"
        config.check(is_here, "logits_at", "predicted, outside pretraining")
        self._maps = self._widths()

    @property
    def _layer_terms(self) -> dict[str, losses.Term]:
        """The terms that compare layers, by name."""
        return {name: term for name, term in losses.TERMS.items() if name in self._config.distillation.terms}

    @property
    def _layers(self) -> tuple[int, ...]:
        sizes = self.encoder.num_layers, self.teacher.encoder.num_layers
        return layer_numbers(self._config.distillation.layers, *sizes, "layers")

    def _widths(self) -> dict[str, tuple[int, int]]:
        """The widths of the student and of the teacher for each term whose vectors differ in width."""
        of_layers = self.encoder.hidden_size, self.teacher.encoder.hidden_size
        chosen = self._config.distillation.terms
        widths = {name: of_layers for name, term in losses.TERMS.items() if term.is_projected and name in chosen}
        if self.couples_rows and "logits" in chosen:
            spec = self.batch_specs_of_task()[0]
            widths["logits"] = (_vector_size(self, spec), _vector_size(self.teacher, spec))
        return {name: pair for name, pair in widths.items() if len({*pair}) > 1}

    def _check_masked_lm(self) -> None:
        """Raises UserError if the predictions of masked tokens do not compare."""
        config = self._config.distillation
        sizes = self.teacher.encoder.vocab_size, self.encoder.vocab_size
        got = "model.vocab_size of {} of the teacher and {} of the student".format(*sizes)
        fix = f"set --config.model.vocab_size={sizes[0]}"
        config.check(not config.logits or len({*sizes}) == 1, "logits", "0, or equal sizes", got=got, fix=fix)
        of_run = self.weights.config.get("masking", {}) if self.weights.is_run else {}
        places = of_run.get("predict_at", "same"), self._config.masking.predict_at
        got = "masking.predict_at={} of the teacher and {} of the student".format(*places)
        config.check(not config.logits or len({*places}) == 1, "logits", "0, or the same value", got=got)

    def _check_stored(self) -> None:
        """Raises UserError unless the logits are those of texts, and so few that they can be stored."""
        config = self._config.distillation
        config.check_only_logits()
        config.check(config.logits, "targets", "live, without a weight for logits")
        if hasattr(self._config, "masking") or self.predicts_tokens:
            spec = self.batch_specs_of_task()[-1]
            logits = jax.eval_shape(self.teacher_fields, _shapes(self.teacher), dict(spec))[f"{_FIELD}logits"]
            got = f"stored, of {logits.size * logits.dtype.itemsize // len(logits):,} bytes a row"
            expected = "live, because logits of tokens take too much disk, and those of masks change in each epoch"
            config.check(False, "targets", expected, got=got)
        is_unpacked = self.couples_rows or not getattr(self._config.data, "packing", False)
        config.check(is_unpacked, "targets", "live, with data.packing=True")

    def store(self, data: Any, program: Callable[[Batch], Batch], folder: Path) -> None:
        """Adds the teacher's logits of all training rows to the data, which it reads with its own vocabulary.

        Raises:
          UserError: if it has more or fewer rows, because texts are longer with one of the vocabularies.
        """
        config = self._config
        digest = config.distillation.digest
        own = data
        if self.teacher.tokenizer is not self.tokenizer:
            own = self.teacher_data(folder / f"rows-{digest[:16]}")
            own.prepare()
        if len(own.rows.lengths) != len(data.rows.lengths):
            got = f"{len(own.rows.lengths)} rows for the teacher and {len(data.rows.lengths)} for the student"
            fix = "raise data.seq_len, or use one vocabulary"
            raise UserError("config key data.source", got=got, expected="equally many", fix=fix)
        lengths = bucket_lengths(config.data.seq_len, own.row_lengths)
        row = own.rows.padded(np.array([-1]), lengths[-1])
        outputs = jax.eval_shape(self.teacher_fields, _shapes(self.teacher), row)
        size = sum(field.size * field.dtype.itemsize for field in outputs.values()) * len(own.rows.lengths)
        _log.info("the teacher's outputs for all rows take %s bytes on disk and in memory", f"{size:,}")
        of_teacher = repr(self.teacher._config)  # columns, classes, their weights, and the split
        content = Fingerprint.of([digest, own.fingerprint, of_teacher, lengths, config.batch_size], length=16)
        fields = targets.of_rows(own.rows, lengths, config.batch_size, program, folder / f"teacher-{content}")
        data.add_targets(fields)

    teacher_data: Callable[[Path], Any]  # from a folder to the rows with the teacher's vocabulary

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
        of_teacher = self.teacher.encoder
        sizes = self.encoder.num_layers, of_teacher.num_layers
        numbers = layer_numbers(self._config.distillation.init_layers, *sizes, "init_layers")
        kinds = [of_teacher.kind(number - 1) for number in numbers]
        places = [number - 1 if kind.group is None else kind.group for number, kind in zip(numbers, kinds, strict=True)]
        unlike = sum(self.encoder.kind(layer).window != kind.window for layer, kind in enumerate(kinds))
        if unlike:
            text = "%d of %d layers attend to other distances than the teacher's layers that they start from"
            _log.warning(text, unlike, len(kinds))
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), _shapes(self.teacher))
        weights = self.teacher.warm_start(empty, published)
        return {**params, **pretrained.with_layers(of_task, empty, weights, places)}

    def batch_specs_of_task(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Returns the shapes of batches without the teacher's outputs."""
        return super().batch_specs()  # type: ignore[safe-super]

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        params = _shapes(self.teacher)
        specs = self.batch_specs_of_task()
        fields = [jax.eval_shape(self.teacher_fields, params, dict(spec)) for spec in specs]
        if self.stores and self.couples_rows:  # whose logits are stored by text, without the weights of examples
            fields = [{f"{_FIELD}logits": of_spec[f"{_FIELD}logits"]} for of_spec in fields]
        return [{**spec, **of_spec} for spec, of_spec in zip(specs, fields, strict=True)]

    def teacher_fields(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Returns the outputs of the teacher, with these parameters, as further fields of a batch.

        Of rows of single texts, which `store` passes, these are their vectors.
        """
        if self.couples_rows and "places" not in batch:
            return {f"{_FIELD}logits": self.teacher.apply(params, batch, None)[:, 0]}
        _, seen = self.teacher.observe(params, batch, None)
        fields = {}
        if self._config.distillation.logits:
            predictions = self._predictions(self.teacher, params, seen, batch)
            fields = {"logits": predictions.logits, "weights": predictions.weights}
        rows = len(next(iter(batch.values())))
        if self._layer_terms:
            layer = self._config.distillation.relation_layer
            encoded = _encoded(self.teacher, params, seen, self._layers, layer)
            for name, term in self._layer_terms.items():
                of_term = term.representations(encoded)
                fields |= {f"{name}_{part}": x.reshape(rows, -1, *x.shape[1:]) for part, x in of_term.items()}
        return {f"{_FIELD}{name}": value for name, value in fields.items()}

    def check_weights(self, lacks: Params) -> None:
        """Raises UserError unless there are weights of the encoder and, for predictions, of the heads."""
        paths = [path for path, lacking in traverse_util.flatten_dict(lacks, sep="/").items() if lacking]
        if not self._config.distillation.logits:
            paths = [path for path in paths if path.startswith("bert/")]
        if not self._config.distillation.logits or hasattr(self._config, "masking"):
            paths = [path for path in paths if "pooler/" not in path and not path.startswith("next_sentence/")]
        if paths:
            modules = ", ".join(dict.fromkeys(path.split("/")[0] for path in paths))
            expected = (
                "a model that was trained for this task, with its classes in this order, or no distillation.logits"
            )
            where = f"config key teacher={self._config.teacher}"
            raise UserError(where, got=f"no weights of {modules}", expected=expected, fix="name another folder")

    def denominators(self, batch: Batch) -> Mapping[str, Array]:
        """Returns also those of the terms: the predictions, real tokens, or pairs of tokens of one instance."""
        segments = batch["segment_ids"].reshape(-1, batch["segment_ids"].shape[-1])
        tokens = jnp.maximum(jnp.sum(segments != 0, dtype=jnp.float32), 1)
        pairs = jnp.maximum(jnp.sum(losses.are_related(segments), dtype=jnp.float32), 1)
        counts = {name: pairs if term.is_of_pairs else tokens for name, term in losses.TERMS.items()}
        if f"{_FIELD}logits" in batch:
            weights = batch.get(f"{_FIELD}weights")
            weights = self.predictions(batch[f"{_FIELD}logits"], batch).weights if weights is None else weights
            counts["logits"] = jnp.maximum(jnp.sum(weights), 1e-6)
        of_task = super().denominators(batch)  # type: ignore[safe-super]
        return {**of_task, **{_name(name): counts[name] for name in self._config.distillation.terms}}

    def loss(self, params: Params, batch: Batch, rng: Array | None) -> tuple[Sums, Metrics]:
        """Returns the terms with their weights; in evaluations, whose batches lack the teacher, the task's loss."""
        if not any(name.startswith(_FIELD) for name in batch):
            return super().loss(params, batch, rng)  # type: ignore[safe-super]
        config = self._config.distillation
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
        config = self._config.distillation
        if config.logits:
            predictions = self._predictions(self, params, seen, batch)
            logits = predictions.logits
            student = logits @ params[_MAPS]["logits"] if "logits" in self._maps else logits
            teacher = batch[f"{_FIELD}logits"]
            if getattr(self.teacher._config, "normalize", False):
                student = losses.unit(student)
                teacher = losses.unit(teacher)
            values = _DIVERGENCES[predictions.kind](teacher, student, config.temperature)
            # Predictions without weight may have logits of -inf.
            yield "logits", jnp.sum(jnp.where(predictions.weights > 0, values * predictions.weights, 0.0))
        if not self._layer_terms:
            return
        segments = seen.inputs.segment_ids
        encoded = _encoded(self, params, seen, range(1, self.encoder.num_layers + 1), 0)
        for name, term in self._layer_terms.items():
            ours = term.representations(encoded)
            theirs = {part: _merged(batch[f"{_FIELD}{name}_{part}"]) for part in ours}
            if name in self._maps:
                ours = {part: x @ params[_MAPS][name] for part, x in ours.items()}
            is_compared = losses.are_related(segments) if term.is_of_pairs else segments != 0
            yield name, jnp.sum(term.losses(theirs, ours, segments, config.relation_heads) * is_compared)

    def _predictions(self, task: Observable, params: Params, seen: Observation, batch: Batch) -> Predictions:
        """The predictions of the teacher or the student."""
        if self._config.distillation.logits_at == "predicted":
            return task.predictions(seen.output, batch)
        assert seen.layers is not None
        head = MaskedLanguageModelHead(task.encoder)
        table = params["bert"]["embeddings"]["word_embeddings"]
        logits: Any = head.apply({"params": params["masked_lm"]}, seen.layers[-1], table)
        is_token = seen.inputs.segment_ids != 0
        return Predictions(logits, is_token.astype(jnp.float32), "classification")

    def _closeness(self, params: Params, batch: Batch, seen: Observation) -> Metrics:
        """The mean cosine of the vectors of different texts, of student and teacher; see `review`."""
        predictions = self._predictions(self, params, seen, batch)
        weights = predictions.weights.ravel()
        vectors = {"student": predictions.logits, "teacher": batch[f"{_FIELD}logits"]}
        one = jnp.ones(())
        return {
            f"{model}_mean_cosine": (losses.mean_cosine(x.reshape(-1, x.shape[-1]), weights), one)
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


def _encoded(
    task: Observable, params: Params, seen: Observation, compared: Sequence[int], relation_layer: int
) -> losses.Encoded:
    """What the encoder of the teacher or the student computed; `relation_layer` is 0 for the last."""
    config = task.encoder
    assert seen.layers is not None
    layers = params["bert"]["encoder"]["layers"]
    places = (compared, relation_layer or config.num_layers)
    return losses.Encoded(config, layers, seen.layers, seen.inputs.position_ids, *places)


def _vector_size(task: Observable, spec: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    output = jax.eval_shape(lambda params, batch: task.observe(params, batch, None)[1].output, _shapes(task), spec)
    return int(output.shape[-1])


def _shapes(task: BertTask[Any]) -> Params:
    return jax.eval_shape(task.init, jax.random.key(0))


def student(module: Any, config: Mapping[str, Any], vocabulary: Any) -> Distilled:
    """Returns the task of an experiment with the teacher of a complete config.

    Raises:
      UserError: if the folder has no model for this task, another vocabulary, or does not fit the terms.
    """
    folder = config["teacher"]
    weights = open_teacher(folder, config["distillation"]["digest"])
    of_folder = module.resolve(teacher_config(config, weights), weights)
    tokenizer = module.open_vocabulary(build_part(module.Config, of_folder), weights)
    vocabulary = tokenizer if has_only_specials(vocabulary.vocab) else vocabulary  # that of an example
    is_same = list(tokenizer.vocab) == list(vocabulary.vocab)
    if not is_same and config["distillation"]["targets"] == "live":
        got = f"a vocabulary of {tokenizer.vocab_size} tokens, other than the student's of {len(vocabulary.vocab)}"
        fix = f"set --config.data.vocab_file={folder}, or store logits of texts: --config.distillation.targets=stored"
        raise UserError(f"config key teacher={folder}", got=got, expected="the same tokens", fix=fix)
    data = config["data"] if is_same else {**config["data"], "vocab_file": folder, "add_tokens": ()}
    data = {**data, "lowercase": (config if is_same else of_folder)["data"]["lowercase"]}
    teacher_keys = build_part(module.Config, {**of_folder, "data": data})
    classes = (type(name, (base, module.Task), {}) for name, base in (("Teacher", Observable), ("Student", Distilled)))
    arguments = ((teacher_keys, vocabulary if is_same else tokenizer), (build_part(module.Config, config), vocabulary))
    teacher, task = (cls(*values) for cls, values in zip(classes, arguments, strict=True))
    assert isinstance(task, Distilled) and isinstance(teacher, Observable)
    task.learn_from(teacher, weights)
    task.teacher_data = lambda home: module.Data(teacher_keys, home, None)
    return task
