"""Titles of metrics, their baselines, and whether a higher or a lower value is better."""

from collections.abc import Collection

SPLITS = {"train": "training", "valid": "validation", "test": "test"}
BOUND = "oracle"  # the title of a baseline that is an upper bound
_TITLES = {
    "loss": "Loss",
    "epochs": "Epochs",
    "token_share": "Share of tokens",
    "train/loss": "Training loss",  # where it does not compare with others
    "masked_lm_loss": "Masked-LM loss",
    "masked_lm_accuracy": "Masked-LM accuracy",
    "causal_lm_loss": "Causal-LM loss",
    "causal_lm_accuracy": "Causal-LM accuracy",
    "replaced_loss": "Replaced-token loss",
    "replaced_accuracy": "Replaced-token accuracy",
    "replaced_precision": "Replaced tokens, precision",
    "replaced_recall": "Replaced tokens, recall",
    "replaced_share": "Replaced tokens, share",
    "next_sentence_loss": "Next-sentence loss",
    "next_sentence_accuracy": "Next-sentence accuracy",
    "pairs/accuracy": "Minimal pairs, accuracy",
    "pairs/per_token_accuracy": "Minimal pairs, accuracy per token",
    "pairs/shorter_accuracy": "Minimal pairs, accuracy of the shorter sentences",
    "pairs/total": "Minimal pairs, number",
    "accuracy@1": "Accuracy of the first text",
    "mrr@10": "Mean reciprocal rank, first 10",
    "ndcg@10": "nDCG, first 10",
    "f1": "F1",
    "micro_f1": "Micro F1",
    "macro_f1": "Macro F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "matthews_correlation": "Matthews correlation",
    "exact": "Exact match",
    "best_exact": "Exact match at the best threshold",
    "best_f1": "F1 at the best threshold",
    "bleu": "BLEU",
    "chrf": "chrF",
    "nll": "Negative log-likelihood",
    "rouge1": "ROUGE-1 F1",
    "rouge2": "ROUGE-2 F1",
    "rougeL": "ROUGE-L F1",
    "rougeLsum": "ROUGE-Lsum F1",
    "over_lead": "ROUGE-Lsum gain over the lead sentences",
    "tokenized_texts": "Tokenized texts, percent",
    "lowercased_texts": "Lowercased texts, percent",
    "step_seconds": "Seconds per step",
    "evaluation_row_seconds": "Seconds per validation row",
    "data_wait_fraction": "Fraction of time waiting for data",
    "save_wait_seconds": "Seconds waiting for checkpoints",
    "used_tokens": "Tokens used",
    "used_flops": "FLOPs used",
    "used_hours": "Hours of updates",
}
_BASELINES = {
    "unigram": "unigram baseline",
    "majority": "majority class",
    "entropy": "entropy of the share",
    "mean": "mean label",
    "lead": "lead sentences",
    "oracle": BOUND,
    "no_answer": "no answer",
    "whole_text": "whole text",
}
# Words before or after the name of another metric.
_BEFORE = {"HasAns_": "{}, answerable questions", "NoAns_": "{}, unanswerable questions", "f1_": "F1 of {}"}
_AFTER = {
    "_low": "{}, lower end of the 95 % interval",
    "_high": "{}, upper end of the 95 % interval",
    "_p": "{}, p-value",
    "_thresh": "{}, threshold",
}
_NEUTRAL = ("_p", "_thresh", "total", "learning_rate", "gradient_norm")
_LOWER = (
    *("loss", "nll", "perplexity", "nats_per_word", "nats_per_token", "bits_per_byte"),
    *("step_seconds", "row_seconds", "wait_seconds", "wait_fraction", "spikes", "recompilations"),
)
_HIGHER = (
    *("accuracy", "f1", "exact", "precision", "recall", "correlation", "pearson", "spearman"),
    *("mrr", "ndcg", "bleu", "chrf", "rouge", "over_lead", "tokens_per_second"),
)


def title(metric: str) -> str:
    """Returns the title of a metric without its split.

    >>> title("wiki/masked_lm_loss"), title("HasAns_f1"), title("rouge1_low")
    ('Masked-LM loss, wiki', 'F1, answerable questions', 'ROUGE-1 F1, lower end of the 95 % interval')
    """
    if metric in _TITLES:
        return _TITLES[metric]
    source, _, of_source = metric.rpartition("/")
    if source and of_source in _TITLES:
        return f"{_TITLES[of_source]}, {source}"
    for end, text in _AFTER.items():
        if metric.endswith(end):
            return text.format(title(metric.removesuffix(end)))
    for start, text in _BEFORE.items():
        if metric.startswith(start):
            rest = metric.removeprefix(start)
            return text.format(rest if start == "f1_" else title(rest))
    words = metric.replace("_", " ")
    return words[:1].upper() + words[1:]


def direction(metric: str) -> str:
    """Returns which direction of a metric is better, "lower" or "higher"; "" if neither is.

    >>> direction("perplexity"), direction("f1_PER"), direction("learning_rate")
    ('lower', 'higher', '')
    """
    if metric.endswith(_NEUTRAL):
        return ""
    stem = metric.removesuffix("_low").removesuffix("_high")
    if stem.endswith(_LOWER):
        return "lower"
    return "higher" if any(word in stem for word in _HIGHER) else ""


def better(metric: str) -> str:
    """Returns "lower is better", "higher is better" or ""; see `direction`."""
    word = direction(metric)
    return word and f"{word} is better"


def of(name: str) -> dict[str, str]:
    """Returns the title, the split and the better direction of a metric.

    >>> of("valid/f1")
    {'title': 'F1', 'split': 'validation', 'better': 'higher is better'}
    """
    split, _, metric = name.partition("/")
    return {"title": title(metric), "split": SPLITS.get(split, split), "better": better(metric)}


def baseline(name: str, metrics: Collection[str]) -> tuple[str, str] | None:
    """Returns the metric that a baseline is compared with, and the baseline's title; None if there is no such metric.

    The metric is the one with the longest name that remains when consecutive words are removed from `name`.

    >>> baseline("masked_lm_unigram_loss", ["masked_lm_loss", "loss"])
    ('masked_lm_loss', 'unigram baseline')
    """
    words = name.split("_")
    spans = [(start, end) for end in range(1, len(words) + 1) for start in range(end) if end - start < len(words)]
    removed = {"_".join(words[:start] + words[end:]): "_".join(words[start:end]) for start, end in spans}
    metric = max((remaining for remaining in removed if remaining in metrics), key=len, default=None)
    return None if metric is None else (metric, _BASELINES.get(removed[metric], removed[metric].replace("_", " ")))
