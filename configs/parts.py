"""Parts that several configs share."""

from collections.abc import Iterable, Sequence
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertjax.configs.sizes import MODERNBERT_SIZES, SIZES
from bertjax.errors import UserError, did_you_mean


def chosen(variant: str, groups: Sequence[Sequence[str]]) -> list[str]:
    """Returns the name of each group that a variant such as `base,lamb` contains, or "" for a group without one.

    Args:
      variant: names, separated by commas.
      groups: names that exclude each other.
    Raises:
      UserError: for an unknown name, or two names of a group.
    """
    names = [name for name in variant.split(",") if name]
    names_by_group = [[name for name in names if name in group] for group in groups]
    unknown = [name for name in names if not any(name in group for group in groups)]
    if unknown or any(len(of_group) > 1 for of_group in names_by_group):
        expected = "; ".join(("at most one of " if len(group) > 1 else "") + ", ".join(group) for group in groups)
        fix = "correct the part after the colon"
        if unknown:
            fix = did_you_mean(unknown[0], [name for group in groups for name in group], fix)
        raise UserError("variant", got=repr(variant), expected=f"names, separated by commas: {expected}", fix=fix)
    return [of_group[0] if of_group else "" for of_group in names_by_group]


# Imports of dataclasses are in functions: `--help` imports these files, and does without JAX.


def config_of(experiment: str) -> ConfigDict:
    """Returns the config of an experiment with the defaults of its dataclasses. Keys without one are unset.

    A file of `configs/` changes what differs.
    """
    from bertjax.config import defaults
    from bertjax.contract import TrainingTask
    from bertjax.experiments import find
    from bertjax.training.config import InferenceConfig, TrainingConfig

    module = find(experiment)
    settings = TrainingConfig if issubclass(module.Task, TrainingTask) else InferenceConfig
    return ConfigDict({**_unset(defaults(module.Config, settings)), "experiment": experiment})


def keys_of(cls: type) -> ConfigDict:
    """Returns the keys of a dataclass with their defaults."""
    from bertjax.config import defaults

    return ConfigDict(_unset(defaults(cls)))


def _unset(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values in which a placeholder stands for each type."""
    return {
        key: _unset(value) if isinstance(value, dict) else placeholder(value) if isinstance(value, type) else value
        for key, value in values.items()
    }


def evaluation(name: str) -> ConfigDict:
    """Returns the keys of an evaluation that a config has without `evaluations`."""
    from bertjax.evaluations import find

    return keys_of(find(name).Config)


def set_size(model: ConfigDict, size: str, *, is_modern: bool = False) -> None:
    """Sets the model keys of a size. Without one, the keys that `init_from` determines are unset.

    Args:
      model: the model keys.
      size: a name in `SIZES`, or "".
      is_modern: whether the model has the structure of ModernBERT instead of BERT's.
    """
    layers, hidden = SIZES[size or "tiny"]
    model.num_layers = layers
    model.hidden_size = hidden
    model.num_heads = hidden // 64
    model.intermediate_size = 4 * hidden
    model.max_positions = 512
    model.activation = "gelu"
    model.norm_eps = 1e-12
    if is_modern:
        model.update(_modern(hidden))
    if not size:
        from bertjax.models.bert import HeadConfig

        unset(model, set(keys_of(HeadConfig)) - set(_CHANGEABLE))
    model.dropout = 0.1
    model.attention_dropout = 0.1


# Model keys that weights do not determine.
_CHANGEABLE = (
    *("vocab_size", "family", "dropout", "attention_dropout", "activation_dropout", "attention_backend"),
    *("initializer", "initializer_range", "depth_scaled_init", "dtype", "scan_layers", "remat"),
)


def unset(subtree: ConfigDict, keys: Iterable[str]) -> None:
    """Makes keys unset, of the types of their values: other values of the run determine them."""
    for key in keys:
        kind = subtree.get_type(key)
        del subtree[key]
        subtree[key] = placeholder(kind)


def inference(experiment: str) -> ConfigDict:
    """Returns the config of an experiment that trains nothing, without the model keys of training."""
    config = config_of(experiment)
    set_size(config.model, "")
    of_training = ("dropout", "attention_dropout", "activation_dropout", "initializer", "initializer_range", "remat")
    for key in of_training:
        del config.model[key]
    return config


def _modern(hidden: int) -> dict[str, Any]:
    """Returns the keys in which ModernBERT's structure differs from BERT's (Warner et al. 2024, section 2.1)."""
    return {
        # A gate is a third matrix, so matrices with 2/3 of BERT's size have as many parameters; a multiple of 128.
        "intermediate_size": round(8 / 3 * hidden / 128) * 128,
        "type_vocab_size": 0,
        "positions": "rotary",
        "gated": True,
        "biases": False,
        "norm": "pre",
        "norm_biases": False,
        "norm_eps": 1e-5,
        "first_attention_norm": False,
        "head": "transform",
        "pooling": "mean",
    }


def set_modernbert(model: ConfigDict, size: str) -> None:
    """Sets the model keys of a published ModernBERT, a name in `MODERNBERT_SIZES`."""
    set_size(model, "base", is_modern=True)
    model.num_layers, model.hidden_size, model.intermediate_size = MODERNBERT_SIZES[size]
    model.num_heads = model.hidden_size // 64
    model.max_positions = 8192
    model.rotary_base = 160_000.0
    model.local_attention = 128
    model.vocab_size = 50_368


def set_vocabulary(data: ConfigDict) -> None:
    """Sets how new runs train a vocabulary; the defaults are those of earlier runs."""
    data.normalization = "nfc"
    data.character_coverage = 0.9999


def fine_tuning(experiment: str, size: str) -> ConfigDict:
    """Returns the config of fine-tuning: BERT's recipe (Devlin et al. 2019, appendix A.3)."""
    config = config_of(experiment)
    set_size(config.model, size)
    config.optimizer.learning_rate = 5e-5
    unset(config.optimizer, ["warmup_steps"])  # default: from warmup_fraction
    # Without it, short runs sometimes fail (Zhang et al. 2021; Mosbach et al. 2021).
    config.optimizer.bias_correction = True
    if size:
        config.data.lowercase = True
    return config


def summarization(experiment: str, size: str) -> ConfigDict:
    """Returns the config of fine-tuning to summarize; with a size, it summarizes the documentation of packages."""
    config = fine_tuning(experiment, size)
    config.data.vocab_size = 8192
    set_vocabulary(config.data)
    if size:
        config.data.source = "documentation"
        config.data.interval_segments = True
        config.data.words = "bert"
    return config
