"""What a student learns from a teacher, and what the teacher's folder determines."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertjax.config import Constrained, above, at_least, one_of
from bertjax.errors import UserError, restored
from bertjax.interop.published import CHANGEABLE, MODEL_KEYS, Published, open_weights
from bertjax.models.bert import HeadConfig
from bertjax.models.distillation import TERMS

_log = logging.getLogger(__name__)
# Keys that the folder of a teacher of vectors determines, like those of its model.
_OF_VECTORS = ("sentence_pooling", "dense", "normalize", "include_prompt", "truncate_dim")
# The names of prompts in published folders, by the key of `data`.
PROMPTS = {"query_prompt": ("query",), "document_prompt": ("document", "passage", "corpus")}
# Keys of `model` that may differ where a student starts from the teacher's layers.
_FREE_IN_LAYERS = ("num_layers", "vocab_size", "max_positions", "head", "pooling")
# Keys of a student alone, and their values of a teacher.
_OF_STUDENT: Mapping[str, Any] = {"teacher": "", "learn_scale": False, "learned_positions": 0}
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
      targets: "live", outputs of the teacher for each batch; or "stored", its logits for all training rows, which are
        computed once and kept in the run's folder. It then reads texts with its own vocabulary. Only for logits of
        whole texts: of classes, scores and vectors.
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
    targets: Annotated[str, one_of("live", "stored")] = "live"
    digest: str = ""

    @property
    def terms(self) -> dict[str, float]:
        """The weights of the terms with the teacher's outputs, without those of 0."""
        return {name: getattr(self, name) for name in ("logits", *TERMS) if getattr(self, name)}

    @property
    def reads_layers(self) -> bool:
        """Whether a term compares the layers of the encoders."""
        return any(name in self.terms for name in TERMS) or self.logits_at == "all"

    def check_models(self, student: HeadConfig, teacher: HeadConfig) -> None:
        """Raises UserError if a term cannot compare two encoders."""
        if self.hidden or self.attention:
            layer_numbers(self.layers, student.num_layers, teacher.num_layers, "layers")
        most = teacher.num_layers
        self.check(self.relation_layer <= most, "relation_layer", f"0, or a layer of the teacher, 1 to {most}")
        is_alike = teacher.num_heads == student.num_heads
        got = f"{teacher.num_heads} heads of the teacher and {student.num_heads} of the student"
        self.check(is_alike or not self.attention, "attention", "0, or equally many heads", got=got)
        for model in (teacher, student):
            is_product = model.relative_positions == "none" and not model.local_attention
            keys = f"relative_positions={model.relative_positions} and local_attention={model.local_attention}"
            expected = "0, or scores of queries and keys alone, of all pairs of tokens"
            self.check(is_product or not self.attention, "attention", expected, got=f"scores with {keys}")
            widths = {model.num_heads * size for size in (model.head_key_size, model.head_value_size)}
            divides = not any(width % self.relation_heads for width in widths)
            expected = f"a divisor of {' and '.join(map(str, sorted(widths)))}, the widths of queries and values"
            self.check(divides or not self.relations, "relation_heads", expected)

    def check_only_logits(self) -> None:
        """Raises UserError if a term compares layers."""
        names = [name for name in self.terms if name in TERMS]
        expected = "0: of tasks that compare texts, only logits, which are vectors, are compared"
        self.check(not names, ",".join(names), expected, got="a weight")


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
        used = [*config.terms, *(["init_layers"] if config.init_layers else [])]
        got = f"no folder, with distillation.{{{','.join(used)}}}"
        self.check(self.teacher or not used, "teacher", "a folder", got=got, fix="set --config.teacher=FOLDER")
        is_learned = config.terms or config.labels == 1
        config.check(is_learned, "labels", "1, because no other term has a weight")
        if self.teacher and not used:
            _log.warning("the student learns nothing from its teacher: all weights of distillation are 0")


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


def teacher_config(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Returns the config of the teacher of a run before `Experiment.resolve`: that of its folder, on the run's rows."""
    of_heads = {key: published.fields.get(key, value) for key, value in config["model"].items()}
    unset = {key: None for key in (*MODEL_KEYS, "vocab_size", "family") if key in of_heads}
    model = {**of_heads, **{key: config["model"][key] for key in CHANGEABLE if key in of_heads}, **unset}
    of_vectors = {key: None for key in _OF_VECTORS if key in config}
    data = {**config["data"], "vocab_file": "", "lowercase": None, "add_tokens": ()}
    none = {**_OF_STUDENT, "distillation": dataclasses.asdict(DistillationConfig())}
    no_teacher = {key: value for key, value in none.items() if key in config}
    return {**config, **of_vectors, **no_teacher, "model": model, "data": data, "init_from": config["teacher"]}


def open_teacher(folder: str, digest: str = "") -> Published:
    """Opens the folder of a teacher.

    Args:
      folder: the folder.
      digest: that of the weights with which training began; "" for any.
    Raises:
      UserError: for a folder without supported weights, or with others.
    """
    try:
        published = open_weights(Path(folder))
    except UserError as error:
        raise restored(str(error).replace("config key init_from=", "config key teacher=")) from error
    if digest not in ("", published.digest):
        got = f"weights of digest {published.digest[:12]}"
        expected = f"{digest[:12]}, with which training began"
        raise UserError(f"config key teacher={folder}", got=got, expected=expected, fix="restore the folder")
    return published


def with_teacher(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Fills in what the teacher determines: its digest, the vocabulary, prompts, and the model of its layers.

    Raises:
      UserError: if a student of its layers has another structure, or other weights to start from.
    """
    distillation = {**config["distillation"], "digest": published.digest}
    model = dict(config["model"])
    if distillation["init_layers"]:
        if config["init_from"]:
            got = f"{distillation['init_layers']}, with init_from={config['init_from']}"
            fix = "omit one of them"
            raise UserError("config key distillation.init_layers", got=got, expected="one start", fix=fix)
        model = _of_layers(config, published)
    data = dict(config["data"])
    if published.has_vocabulary and not config["init_from"] and not data.get("vocab_file"):
        data["vocab_file"] = config["teacher"]
        data["lowercase"] = published.lowercase if data.get("lowercase") is None else data["lowercase"]
        if model.get("vocab_size", 0) is None and not (data.get("add_tokens") or data.get("add_words")):
            model["vocab_size"] = published.model["vocab_size"]
    sentences = published.sentences
    if sentences and not config["init_from"]:
        for key, names in PROMPTS.items():
            if data.get(key, "") is None:
                data[key] = sentences.prompt(*names)
    return {**config, "model": model, "data": data, "distillation": distillation}


def _of_layers(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """The model of a student of the teacher's layers."""
    model = {}
    for key, value in config["model"].items():
        of_teacher = {**published.model, "family": published.family}.get(key)
        model[key] = of_teacher if value is None else value
        if key in MODEL_KEYS and key not in _FREE_IN_LAYERS and model[key] != of_teacher:
            got = f"{value}, with distillation.init_layers"
            expected = f"{of_teacher}, as in teacher={config['teacher']}"
            fix = "omit this key, or distillation.init_layers"
            raise UserError(f"config key model.{key}", got=got, expected=expected, fix=fix)
    return model
