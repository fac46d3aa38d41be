"""What all summarization has in common: a run's articles and their vocabulary, and figures of summaries."""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax import words
from bertjax.config import build_all
from bertjax.contract import Example
from bertjax.data.readers.lines import BadRows
from bertjax.data.summarization import article_text, articles
from bertjax.data.summarization.article_rows import ArticleRowsConfig
from bertjax.data.summarization.article_text import ArticleText, LabelsConfig, TrainedVocabularyConfig
from bertjax.data.summarization.articles import Article, ArticlesConfig
from bertjax.data.summarization.limits import LimitedArticle, limit
from bertjax.data.text.given_vocabulary import given_vocabulary
from bertjax.data.text.tokenizers import SPECIALS, WordPiece
from bertjax.decoding import selection
from bertjax.decoding.selection import Selection, SelectionConfig
from bertjax.interop import presumm
from bertjax.progress import tell_once
from bertjax.scoring import bootstrap, rouge
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import inputs, pretrained

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# Where neither the config nor `init_from` says what rows are like.
_ROWS = {"data.words": "bert", "data.interval_segments": True}
# Keys of `data` that may differ when a trained run is used: how articles are read and labeled.
FREE_AFTER_TRAINING = tuple(
    f"data.{key}"
    for key in (
        *("layout", "article_field", "summary_field", "gold_field", "gold_as", "splitter"),
        *("limits", "oracle", "seq_len", "long_articles", "window_overlap"),
    )
)
_SEQ_LEN, _OVERLAP = 512, 128  # the defaults
# What to say where few letters of the summaries are ASCII.
OF_OTHER_LETTERS = "--config.data.oracle.letters=unicode --config.rouge.flavor=unicode --config.rouge.stem=False"
_LOOKED_AT = 1000  # articles, which tell the letters of all
_ENDS = ("", "_low", "_high")
_OVER_LEAD = tuple(f"over_lead{end}" for end in (*_ENDS, "_p"))

Make = Callable[[LimitedArticle], Example]
Rules = Callable[[LimitedArticle], SelectionConfig]  # by which an article's sentences are chosen
Scores = Float[np.ndarray, " E"]
_DATA = (ArticlesConfig, LabelsConfig, ArticleRowsConfig, TrainedVocabularyConfig)  # in the order of `ArticleData`


def resolve(config: Mapping[str, Any], otherwise: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines, and how articles become rows.

    Args:
      config: the whole of it.
      otherwise: see `pretrained.resolve`.
    Raises:
      UserError: contradictions.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN, extends_positions=True, otherwise={**_ROWS, **otherwise})
    data = config["data"]
    if data.get("window_overlap", 0) is None and isinstance(length := data.get("seq_len"), int):
        data["window_overlap"] = _OVERLAP if length > _OVERLAP else length // 4
    return config


class ArticleData(NamedTuple):
    """What `config.data` says."""

    articles: ArticlesConfig
    labels: LabelsConfig
    rows: ArticleRowsConfig
    vocabulary: TrainedVocabularyConfig

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "ArticleData":
        """Reads it. Raises UserError for keys or values that are not right."""
        return cls(*build_all(_DATA, data, "data"))

    def read(self, split: str) -> tuple[LimitedArticle, ...]:
        """See `article_text.read`."""
        return article_text.read(self.articles, self.labels, split)

    def scored(self) -> dict[str, tuple[LimitedArticle, ...]]:
        """The articles of all splits but "train"."""
        return {split: self.read(split) for split in article_text.splits(self.articles)[1:]}

    def with_min_words(self, min_words: int) -> "ArticleData":
        """Returns the same, of sentences that have more than `min_words` words."""
        limits = dataclasses.replace(self.labels.limits, min_words=min_words)
        return self._replace(labels=dataclasses.replace(self.labels, limits=limits))

    def of_lines(self, lines: Iterator[str], make: Make) -> Iterator[Example]:
        """Makes an example of all lines, or one of each: see `ArticleFormat.layout`."""
        bad_rows = BadRows(self.articles.on_bad_row)
        return self._examples(articles.parse(lines, self.articles, bad_rows), make, bad_rows)

    def of_files(self, path: str, make: Make) -> Iterator[Example]:
        """Makes an example of each article of files or of a folder; see `article_formats.read`."""
        bad_rows = BadRows(self.articles.on_bad_row)
        return self._examples(articles.read(path, "--input", self.articles, bad_rows), make, bad_rows)

    def _examples(self, found: Iterator[Article], make: Make, bad_rows: BadRows) -> Iterator[Example]:
        return inputs.examples(found, lambda article: make(self._limited(article)), bad_rows)

    def _limited(self, article: Article) -> LimitedArticle:
        found = limit(article, article.gold or (), self.labels.limits, drops=False)
        assert found is not None
        return found

    def seen_rows(self) -> dict[str, Any]:
        """What those who use the model have to make rows alike."""
        return {"words": self.rows.words, "interval_segments": self.rows.interval_segments}

    def text(self, workdir: Path, more: tuple[str, ...]) -> ArticleText:
        """What training reads: the articles, and a vocabulary that is kept in the run's folder.

        Args:
          workdir: of the run.
          more: tokens of a vocabulary that is trained on them, beside its own.
        """
        return ArticleText(workdir / "data", self.articles, self.vocabulary, self.rows.words, more)

    def tokenizer(self, vocab_dir: Path | None, more: tuple[str, ...]) -> WordPiece:
        """The vocabulary.

        Args:
          vocab_dir: a folder with it, or a checkpoint that has none and leaves it to the config; without it the special
            tokens stand in.
          more: tokens that are there beside these.
        """
        if vocab_dir is None:
            return WordPiece((*SPECIALS, *more), lowercase=True)
        if presumm.is_checkpoint(vocab_dir):
            return article_text.given(self.vocabulary)
        return given_vocabulary(vocab_dir, self.vocabulary.lowercase)


def texts(article: LimitedArticle) -> list[str]:
    """The sentences that were taken, uncut."""
    return [article.article.sentences[number] for number in article.numbers]


def select(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> Selection:
    """Which of the sentences that were taken make the summary; compared in lower case, as PreSumm does."""
    found = [text.lower() for text in texts(article)]
    selected = selection.select(scores, found, rules)
    if rules.word_budget and not selected.chosen and min(len(words.split(text)) for text in found) > rules.word_budget:
        told = "a summary is empty: each sentence of its article has more words than selection.word_budget allows"
        tell_once(told, logging.WARNING)
    return selected


def summary(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> list[str]:
    """The sentences of a summary."""
    found = texts(article)
    return [found[i] for i in select(article, scores, rules).chosen]


def lead(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The first sentences: as many, but with no rules for their scores."""
    return summary(article, selection.lead_scores(len(article.numbers)), selection.plain(rules))


def oracle(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The sentences that are to be learned: as many, but with no rules for their scores."""
    labels = np.flatnonzero(article.labels).tolist()
    return summary(article, selection.oracle_scores(labels, len(article.numbers)), selection.plain(rules))


def figure_names(config: RougeConfig) -> tuple[str, ...]:
    """The names that `figures` gives."""
    return (*_rouge_names(config), *_OVER_LEAD)


def _rouge_names(config: RougeConfig) -> tuple[str, ...]:
    """F1, and recall where the words are limited, each with its interval."""
    parts = ("",) if config.words is None else ("", "_recall")
    return tuple(f"{name}{part}{end}" for part in parts for name in METRICS for end in _ENDS)


def ascii_share(found: Sequence[LimitedArticle]) -> float:
    """The share of the letters of the summaries that ASCII has, by which the oracle and ROUGE may go."""
    return words.ascii_share(sentence for summary in _references(found[:_LOOKED_AT]) for sentence in summary)


def baselines(scored: Mapping[str, Sequence[LimitedArticle]], rules: Rules, config: RougeConfig) -> dict[str, float]:
    """What `lead` and `oracle` score on each split, as "SPLIT/lead_rouge1" and so on, with 95 % intervals."""
    found: dict[str, float] = {}
    for split, members in scored.items():
        _check_letters(members, config)
        for name, choose in (("lead", lead), ("oracle", oracle)):
            summaries = [choose(each, rules(each)) for each in members]
            values = rouge.rouge(summaries, _references(members), config, confidence=True)
            found |= {f"{split}/{name}_{metric}": values[metric] for metric in _rouge_names(config)}
    return found


def figures(
    summaries: Sequence[Sequence[str]], found: Sequence[LimitedArticle], rules: Rules, config: RougeConfig
) -> dict[str, float]:
    """`figure_names`: ROUGE of summaries with 95 % intervals; "over_lead", by how much their rougeLsum is above that of
    `lead`, with interval and p by a paired bootstrap.

    Args:
      summaries: the sentences of each.
      found: their articles.
      rules: of each article's `lead`.
      config: what is counted.
    """
    references = _references(found)
    tell_once(f"ROUGE is {rouge.signature(config)}")
    _check_letters(found, config)
    ours = rouge.score(summaries, references, config)
    theirs = rouge.score([lead(article, rules(article)) for article in found], references, config)
    values = rouge.summarize(ours, confidence=True)
    values |= dict(zip(_OVER_LEAD, bootstrap.compare(ours["rougeLsum"], theirs["rougeLsum"]), strict=True))
    return {name: values[name] for name in figure_names(config)}


def _check_letters(found: Sequence[LimitedArticle], config: RougeConfig) -> None:
    """Warns if ROUGE does not see most of the letters."""
    if config.flavor != "unicode" and (share := ascii_share(found)) < 0.5:
        told = f"ROUGE sees {share:.0%} of the letters of the summaries, those of ASCII; for the others set"
        tell_once(f"{told} {OF_OTHER_LETTERS}", logging.WARNING)


def _references(found: Sequence[LimitedArticle]) -> list[Sequence[str]]:
    return [article.article.summary or () for article in found]
