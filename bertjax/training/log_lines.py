"""The lines that training logs: the main metrics in one short line. `metrics.jsonl` has all of them."""

from collections.abc import Mapping
from types import MappingProxyType

from tqdm import tqdm

from bertjax.progress import amount

_MOST = 5  # metrics in a line
_DETAILS = ("_low", "_high", "_p")  # suffixes of confidence intervals and p-values
_OF_CLASS = "f1_"  # prefix of the F1 of a class


def update(step: int, num_steps: int | None, metrics: Mapping[str, float], seconds_left: float | None) -> str:
    """Returns the line of an update.

    >>> metrics = {"train/loss": 3.4123, "train/accuracy": 0.41, "train/learning_rate": 9.1e-5, "train/step_seconds": 1}
    >>> update(1200, 10_000, metrics, 751.0)
    'step 1200/10000  loss 3.412  accuracy 0.41  lr 9.1e-05  12:31 left'

    Args:
      step: the number of updates made.
      num_steps: the number of updates of the run; None if it is not known.
      metrics: the metrics, as "train/NAME".
      seconds_left: the expected time to the end of the run, if it is known.
    """
    values = {name.removeprefix("train/"): value for name, value in metrics.items()}
    names = ["loss", *(name for name in values if name.endswith("accuracy"))]
    parts = [f"{name} {values[name]:.4g}" for name in names] + [f"lr {values['learning_rate']:.3g}"]
    for source in (name.removesuffix("/epochs") for name in values if name.endswith("/epochs")):
        share = 100 * values[f"{source}/token_share"]
        parts.append(f"{source} {share:.3g} % (epoch {values[f'{source}/epochs']:.3g})")
    if "tokens_per_second" in values:
        parts.append(f"{tqdm.format_sizeof(values['tokens_per_second'])} tokens/s")
    amounts = [amount(name.removeprefix("used_"), value) for name, value in values.items() if name.startswith("used_")]
    if amounts:
        parts.append("used " + ", ".join(amounts))
    if round(seconds_left or 0):
        parts.append(f"{tqdm.format_interval(seconds_left)} left")
    return "  ".join([_position(step, num_steps), *parts])


def evaluation(
    step: int,
    num_steps: int | None,
    scores: Mapping[str, float],
    baselines: Mapping[str, float],
    best: str,
    initial: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Returns the line of an evaluation: the main metrics, each after its value before training, with its baselines.

    >>> scores = {"valid/loss": 0.6241, "valid/accuracy": 0.75}
    >>> evaluation(115, 115, scores, {"valid/majority_accuracy": 0.6838}, "valid/accuracy")
    'step 115/115  valid: accuracy 0.75 (majority 0.6838)  loss 0.6241'
    >>> evaluation(115, 115, {"valid/spearman": 0.79}, {}, "", {"valid/spearman": 0.71})
    'step 115/115  valid: spearman 0.71 -> 0.79'

    Args:
      step: the number of updates made.
      num_steps: the number of updates of the run; None if it is not known.
      scores: the metrics of one split, as "SPLIT/NAME".
      baselines: the baselines of the split, as "SPLIT/NAME".
      best: the metric that selects the best checkpoint, which comes first; "" if there is none.
      initial: the metrics before training, as "SPLIT/NAME", if the weights were scored.
    """
    split = next(iter(scores)).partition("/")[0]
    values = _of_split(scores)
    details = {name for name in values if name.endswith(_DETAILS) or name.startswith(_OF_CLASS)}
    names = [name for name in values if name not in details and name not in _of_split(baselines)]
    names.sort(key=lambda name: (name != best.partition("/")[2], "/" in name))  # those of sources last
    before = {name: f"{value:.4g} -> " for name, value in _of_split(initial).items()}
    texts = {name: f"{before.get(name, '')}{values[name]:.4g}" for name in names[:_MOST]}
    parts = [f"{name} {text}{_compared(name, _of_split(baselines))}" for name, text in texts.items()]
    return "  ".join([f"{_position(step, num_steps)}  {split}: {parts[0]}", *parts[1:]])


def _position(step: int, num_steps: int | None) -> str:
    return f"step {step}" if num_steps is None else f"step {step}/{num_steps}"


def _of_split(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name.partition("/")[2]: value for name, value in metrics.items()}


def _compared(metric: str, baselines: Mapping[str, float]) -> str:
    """Returns the baselines of a metric, such as " (majority 0.6838)"."""
    texts = [f"{label} {value:.4g}" for name, value in baselines.items() if (label := _label(name, metric))]
    return f" ({', '.join(texts)})" if texts else ""


def _label(baseline: str, metric: str) -> str:
    """Returns the words that a baseline's name adds to a metric's, or "" if the baseline is of another metric.

    It is "unigram" for "masked_lm_unigram_loss" and "masked_lm_loss".
    """
    head, _, tail = f"_{metric}".rpartition("_")
    name = f"_{baseline}"
    if name.startswith(head) and name.endswith(f"_{tail}"):
        return name[len(head) : -len(tail) - 1].strip("_").replace("_", " ")
    return ""
