"""The summaries of articles: selected sentences, those of the baselines, and their metrics."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax import words
from bertjax.data.codecs.summarization.articles import Article
from bertjax.data.codecs.summarization.limits import LimitedArticle
from bertjax.data.codecs.summarization.prepared_articles import OF_OTHER_LETTERS, ascii_share
from bertjax.decoding import selection
from bertjax.decoding.selection import Selection, SelectionConfig
from bertjax.progress import log_once
from bertjax.scoring import bootstrap, rouge
from bertjax.scoring.rouge import RougeConfig

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_ENDS = ("", "_low", "_high")
_OVER_LEAD = tuple(f"over_lead{end}" for end in (*_ENDS, "_p"))

Rules = Callable[[LimitedArticle], SelectionConfig]  # the selection rules for an article
Scores = Float[np.ndarray, " E"]

REFERENCE_FIELDS = ("reference", "references")  # of `with_reference`


def with_reference(record: dict[str, Any], article: Article) -> dict[str, Any]:
    """Adds the `reference` to a record if the article has one, and the list of all `references` if it has several."""
    if article.summary is None:
        return record
    several = {"references": list(map(list, _references(article)))} if article.references else {}
    return {**record, "reference": list(article.summary), **several}


def scored(record: Mapping[str, Any], config: RougeConfig) -> dict[str, Any]:
    """Returns the "loss" of the summary in a record and the "gains" of its sentences, or a loss of None.

    The loss is 100 minus rougeLsum, in percent. The gain of a sentence is the rougeLsum of the summary minus that
    without the sentence. Without a reference the loss is None, and there are no gains.
    """
    reference = record.get("references") or record.get("reference")
    if not reference:
        return {"loss": None}
    summary = record["summary"]
    rests = [[*summary[:place], *summary[place + 1 :]] for place in range(len(summary))]
    scores = rouge.score([summary, *rests], [reference] * (1 + len(rests)), config)["rougeLsum"].tolist()
    return {"loss": 100 - scores[0], "gains": [round(scores[0] - score, 2) for score in scores[1:]]}


def texts(article: LimitedArticle) -> list[str]:
    """The sentences within the limits, not truncated."""
    return [article.article.sentences[number] for number in article.numbers]


def select(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> Selection:
    """Selects the sentences of the summary. N-gram blocking ignores case, as in PreSumm."""
    sentences = [text.lower() for text in texts(article)]
    selected = selection.select(scores, sentences, rules)
    shortest = min(len(words.split(text)) for text in sentences)
    if rules.word_budget and not selected.chosen and shortest > rules.word_budget:
        message = "a summary is empty: each sentence of its article has more words than selection.word_budget allows"
        log_once(message, logging.WARNING)
    return selected


def summary(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> list[str]:
    """The sentences of a summary."""
    sentences = texts(article)
    return [sentences[i] for i in select(article, scores, rules).chosen]


def lead(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The first sentences, as many as `rules` allow, without threshold and n-gram blocking."""
    return summary(article, selection.lead_scores(len(article.numbers)), selection.rules_for_baselines(rules))


def oracle(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The oracle's sentences, as many as `rules` allow, without threshold and n-gram blocking."""
    labels = np.flatnonzero(article.labels).tolist()
    return summary(article, selection.oracle_scores(labels, len(article.numbers)), selection.rules_for_baselines(rules))


def metric_names(config: RougeConfig) -> tuple[str, ...]:
    """Returns the names of the metrics of `metrics`."""
    return (*_rouge_names(config), *_OVER_LEAD)


def _rouge_names(config: RougeConfig) -> tuple[str, ...]:
    """Returns the names of F1, of recall if `words` limits the length, and of their interval ends."""
    parts = ("",) if config.words is None else ("", "_recall")
    return tuple(f"{name}{part}{end}" for part in parts for name in METRICS for end in _ENDS)


def baselines(scored: Mapping[str, Sequence[LimitedArticle]], rules: Rules, config: RougeConfig) -> dict[str, float]:
    """Returns metrics of `lead` and `oracle` on each split, such as "SPLIT/lead_rouge1", with 95 % intervals."""
    scores: dict[str, float] = {}
    for split, members in scored.items():
        _check_letters(members, config)
        references = [_references(member.article) for member in members]
        for name, choose in (("lead", lead), ("oracle", oracle)):
            summaries = [choose(member, rules(member)) for member in members]
            values = rouge.rouge(summaries, references, config, confidence=True)
            scores |= {f"{split}/{name}_{metric}": values[metric] for metric in _rouge_names(config)}
    return scores


def metrics(
    summaries: Sequence[Sequence[str]], articles: Sequence[LimitedArticle], rules: Rules, config: RougeConfig
) -> dict[str, float]:
    """Returns the metrics of summaries: ROUGE with 95 % intervals, and "over_lead".

    "over_lead" is the difference in rougeLsum to `lead`, with interval and p-value of a paired bootstrap.

    Args:
      summaries: the sentences of each summary.
      articles: the article of each summary.
      rules: the selection rules of `lead` for an article.
      config: the settings of ROUGE.
    """
    references = [_references(limited.article) for limited in articles]
    log_once(f"ROUGE settings: {rouge.signature(config, max(map(len, references)))}")
    _check_letters(articles, config)
    model_rouge = rouge.score(summaries, references, config)
    lead_rouge = rouge.score([lead(article, rules(article)) for article in articles], references, config)
    values = rouge.summarize(model_rouge, confidence=True)
    values |= dict(zip(_OVER_LEAD, bootstrap.compare(model_rouge["rougeLsum"], lead_rouge["rougeLsum"]), strict=True))
    return {name: values[name] for name in metric_names(config)}


def _check_letters(articles: Sequence[LimitedArticle], config: RougeConfig) -> None:
    """Warns if ROUGE ignores most letters of the summaries."""
    if config.flavor != "unicode" and (share := ascii_share(limited.article for limited in articles)) < 0.5:
        log_once(
            f"ROUGE reads ASCII letters only, {share:.0%} of the letters of the summaries; "
            f"for other languages, set {OF_OTHER_LETTERS}",
            logging.WARNING,
        )


def _references(article: Article) -> list[Sequence[str]]:
    return [article.summary or (), *article.references]
