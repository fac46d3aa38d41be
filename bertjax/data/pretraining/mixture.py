"""Mixtures: several sources of text by weight, and the phases of training, which change the weights.

The row at a place of a run is a pure function of the seed and the place. `RowOrder` finds the source of a row and the
number of the row in its source, `EpochPlan.rows_at` the text. Each source has its own order and its own epochs.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from bertjax.config import Constrained, above
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation, training_counts
from bertjax.data.pretraining.preparation import train_tokenizer
from bertjax.data.pretraining.sentence_pairs import MIN_SEQ_LEN
from bertjax.data.pretraining.stages import check_stages, number
from bertjax.data.text.word_counts import weighted
from bertjax.errors import UserError
from bertjax.files import MANIFEST, PARTS, Fingerprint, made_once

_log = logging.getLogger(__name__)

Weights = tuple[int, ...]  # the rows of each source in `THOUSAND` rows
THOUSAND = 1000
_OPTIONS = ("text_field", "valid_source", "valid_fraction", "lines", "splitter")


class Phase(NamedTuple):
    """A part of training.

    Attributes:
      share: its share of all updates; the last phase has the rest.
      seq_len: the tokens of a row.
      rate: the masking rate; None for `masking.rate`, which may change.
      weights: the weights of the sources; empty without a mixture.
    """

    share: float
    seq_len: int
    rate: float | None
    weights: Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureConfig(Constrained, prefix="data"):
    """Several sources of text, and the phases of training.

    Attributes:
      mixture: named sources in place of `source`, each with its weight, the share of rows in thousandths, such as
        (("wiki", "wiki/*.parquet", 0.7), ("notes", "notes/*.txt", 0.3)). A fourth element is a dict of `text_field`,
        `valid_source`, `valid_fraction`, `lines` or `splitter` of this source. All have one vocabulary.
      phases: phases before the last one, which has the values of `mixture`, `seq_len` and `masking.rate`: pairs of a
        fraction of all updates and a dict of other values, such as
        ((0.8, {"seq_len": 128, "rate": 0.3, "weights": {"wiki": 1.0}}),). `stages` changes `seq_len` alone.
      max_epochs: the most epochs of a source of a mixture. A run that needs more is an error. Default: no limit.
    """

    mixture: tuple[Any, ...] = ()
    phases: tuple[Any, ...] = ()
    max_epochs: Annotated[float, above(0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, entry in enumerate(self.mixture):
            is_source = isinstance(entry, (tuple, list)) and len(entry) in (3, 4) and _is_source(*entry)
            expected = f"a name, files, a weight from 0 to 1, and perhaps a dict of {', '.join(_OPTIONS)}"
            fix = 'write mixture=(("wiki", "wiki/*.txt", 0.7), ("notes", "notes/*.txt", 0.3))'
            self.check(is_source, f"mixture[{i}]", expected, got=repr(entry), fix=fix)
        self.check(len(set(self.names)) == len(self.names), "mixture", "different names")
        if self.mixture:
            self._thousandths({entry[0]: entry[2] for entry in self.mixture}, "mixture")
        check_stages(self, "phases", "a dict of seq_len, rate or weights", _is_phase)
        for i, (_, values) in enumerate(self.phases):
            unknown = [name for name in values.get("weights", {}) if name not in self.names]
            expected = f"weights of {', '.join(self.names)}" if self.names else "no weights without data.mixture"
            self.check(not unknown, f"phases[{i}]", expected, got=", ".join(unknown), fix="correct the names")
            if "weights" in values:
                self._thousandths(values["weights"], f"phases[{i}]")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources."""
        return tuple(entry[0] for entry in self.mixture)

    @property
    def weights(self) -> Weights:
        """The weights of the last phase."""
        return self._thousandths({entry[0]: entry[2] for entry in self.mixture}, "mixture") if self.mixture else ()

    def _thousandths(self, weights: Mapping[str, float], key: str) -> Weights:
        """Returns the weights of all sources. Raises UserError unless they are thousandths that add up to 1."""
        values = [weights.get(name, 0.0) for name in self.names]
        counts = [round(value * THOUSAND) for value in values]
        is_exact = all(abs(value - count / THOUSAND) < 1e-9 for value, count in zip(values, counts, strict=True))
        expected = "weights that are multiples of 0.001 and add up to 1"
        fix = f"such as {', '.join(map(str, balanced(values)))}"
        self.check(is_exact and sum(counts) == THOUSAND, key, expected, got=dict(weights), fix=fix)
        return tuple(counts)

    def schedule(self, stages: Iterable[Sequence[Any]], seq_len: int) -> tuple[Phase, ...]:
        """Returns all phases in order.

        Args:
          stages: `InstanceRowsConfig.stages`, phases that change the length of rows alone.
          seq_len: the tokens of a row in the last phase.
        Raises:
          UserError: if there are both stages and phases, or the length of rows decreases.
        """
        fix = "write the lengths of stages as seq_len of phases"
        self.check(not (stages and self.phases), "phases", "() if data.stages is set", fix=fix)
        changes = [*self.phases, *((share, {"seq_len": length}) for share, length in stages), (0.0, {})]
        phases = []
        for share, values in changes:
            weights = self._thousandths(values["weights"], "phases") if "weights" in values else self.weights
            phases.append(Phase(share, values.get("seq_len", seq_len), values.get("rate"), weights))
        lengths = [phase.seq_len for phase in phases]
        self.check(lengths == sorted(lengths), "phases", f"lengths of rows that increase up to data.seq_len={seq_len}")
        return tuple(phases)

    def check_source(self, corpus: CorpusConfig) -> None:
        """Raises UserError unless the config names one text, or a mixture."""
        if not self.mixture:
            corpus.check_source()
            return
        for key in ("source", "valid_source"):
            value = getattr(corpus, key)
            fix = f"set --config.data.{key}=''" + ", or give the option valid_source of a source" * (key != "source")
            corpus.check(not value, key, "'' with data.mixture, which names the text", got=value, fix=fix)

    def texts(self, corpus: CorpusConfig) -> dict[str, CorpusConfig]:
        """Returns the text of each source, and how to prepare it; {"": corpus} without a mixture."""
        if not self.mixture:
            return {"": corpus}
        return {
            name: dataclasses.replace(corpus, source=source, **dict(*options))
            for name, source, _, *options in self.mixture
        }


def balanced(sizes: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Returns weights of sources in proportion to the powers `temperature` of their sizes, in thousandths.

    Temperatures below 1 give small languages more rows (Devlin et al., multilingual BERT: 0.7; Conneau et al. 2020,
    XLM-R: 0.3). The largest remainders are rounded up, so that the weights add up to 1.

    >>> balanced([900.0, 100.0], temperature=0.5)
    (0.75, 0.25)
    """
    powers = np.power(sizes, temperature) * (np.asarray(sizes) > 0)
    exact = THOUSAND * powers / max(powers.sum(), 1e-300)
    counts = np.floor(exact)
    largest = np.argsort(counts - exact, kind="stable")[: round(THOUSAND - counts.sum())]
    counts[largest] += 1
    return tuple((counts / THOUSAND).tolist())


def mean_shares(schedule: Sequence[Phase]) -> tuple[float, ...]:
    """Returns the share of each source in all rows of training; empty without a mixture."""
    shares = [*(phase.share for phase in schedule[:-1]), 1 - sum(phase.share for phase in schedule[:-1])]
    weights = zip(*(phase.weights for phase in schedule), strict=True)
    return tuple(sum(map(math.prod, zip(shares, of_source, strict=True))) / THOUSAND for of_source in weights)


def check_epochs(epochs: Mapping[str, float], config: MixtureConfig) -> None:
    """Logs the epochs of each source in a run. Raises UserError for more than `max_epochs`."""
    _log.info("epochs of the sources: %s", ", ".join(f"{name} {count:.3g}" for name, count in epochs.items()))
    most = config.max_epochs
    weights = dict(zip(config.names, config.weights, strict=True))
    for name, count in epochs.items():
        if most and count > most:
            weight = weights[name] / THOUSAND
            fits = math.floor(weights[name] * most / count) / THOUSAND
            fix = f"lower its weight from {weight} to {fits}, and as much in phases; or add text, or raise this key"
            got = f"{count:.3g} epochs of {name}"
            raise UserError("config key data.max_epochs", got=got, expected=f"at most {most:g}", fix=fix)


def _is_source(name: Any, source: Any, weight: Any, options: Any = None) -> bool:
    is_named = isinstance(name, str) and name.replace("-", "_").isidentifier()
    is_option = options is None or (isinstance(options, Mapping) and set(options) <= set(_OPTIONS))
    return is_named and isinstance(source, str) and source != "" and 0 <= number(weight, -1.0) <= 1 and is_option


def _is_phase(values: Any) -> bool:
    if not isinstance(values, Mapping) or not values or not set(values) <= {"seq_len", "rate", "weights"}:
        return False
    length = values.get("seq_len", MIN_SEQ_LEN)
    weights = values.get("weights", {"": 1.0})
    is_mapping = isinstance(weights, Mapping) and all(0 <= number(weight, -1.0) <= 1 for weight in weights.values())
    return type(length) is int and length >= MIN_SEQ_LEN and 0 < number(values.get("rate", 1.0)) <= 1 and is_mapping


class Preparations:
    """The preparation of every source of a config, with one vocabulary.

    Attributes:
      fingerprint: a digest of everything that determines the prepared bytes. Each source has one of its own, so that
        another source, with a given vocabulary, does not prepare the others again.
    """

    def __init__(self, configs: Mapping[str, CorpusConfig], shares: Sequence[float], default_dir: Path) -> None:
        """Computes the fingerprint.

        Args:
          configs: the text of each source by its name.
          shares: the share of each source in the words that a vocabulary is trained on.
          default_dir: as in `Preparation`.
        Raises:
          UserError: if a text cannot be read.
        """
        self._configs = configs
        self._shares = shares
        self._default_dir = default_dir
        self._first = next(iter(configs.values()))
        untrained = {name: Preparation(config, default_dir) for name, config in configs.items()}
        self._vocab_dir: Path | None = None
        self.fingerprint: str = untrained[next(iter(configs))].fingerprint
        if self._shares:
            parts = {name: preparation.fingerprint for name, preparation in untrained.items()}
            # A vocabulary is trained on all sources by their shares, and learns words of the first one.
            learned_from: Sequence[Any] = () if self._first.vocab_file else shares
            if self._first.add_words:
                learned_from = [*configs][:1]
            self.fingerprint = Fingerprint.of([parts, learned_from], length=16, sort_keys=True)
            if learned_from:
                home = Path(self._first.prepared_dir or default_dir).absolute()
                self._vocab_dir = home / f"vocabulary-{self.fingerprint}"
        self._untrained = untrained

    @functools.cached_property
    def _preparations(self) -> dict[str, Preparation]:
        """The preparations; those of a mixture need its vocabulary."""
        if not self._vocab_dir:
            return self._untrained
        changes: dict[str, Any] = {"vocab_file": str(self._vocab_dir), "add_tokens": (), "add_words": 0}
        configs = {name: dataclasses.replace(config, **changes) for name, config in self._configs.items()}
        return {name: Preparation(config, self._default_dir) for name, config in configs.items()}

    def is_finished(self) -> bool:
        """Whether all text has been prepared."""
        has_vocabulary = self._vocab_dir is None or (self._vocab_dir / MANIFEST).exists()
        return has_vocabulary and all(preparation.is_finished() for preparation in self._preparations.values())

    def run(self) -> None:
        """Trains the vocabulary and prepares all text; see `Preparation.run`."""
        if self._vocab_dir:
            made_once(self._vocab_dir, self._write_vocabulary)
        for name, preparation in self._preparations.items():
            if name:
                _log.info("source %s", name)
            preparation.run()

    def corpora(self) -> dict[str, Corpus]:
        """Opens the text of each source."""
        return {name: preparation.corpus() for name, preparation in self._preparations.items()}

    def _write_vocabulary(self, folder: Path) -> Mapping[str, Any]:
        """Trains the vocabulary on all sources, or adds words of the first one, and returns the manifest."""
        configs = {"": self._first} if self._first.add_words else self._configs
        counts = [training_counts(config, folder / PARTS / name) for name, config in configs.items()]
        together = counts[0] if self._first.add_words else weighted(counts, self._shares)
        train_tokenizer(together, self._first).save(folder)
        return {"fingerprint": self.fingerprint}


class RowOrder:
    """The sources of the rows of a phase, in order: a table of one period, and a division.

    After any number of rows of the phase, the rows of each source differ from its share by less than one, and in any
    window by less than two (Tijdeman 1980, "The chairman assignment problem"). After a period they do not differ.
    """

    def __init__(self, weights: Weights, earlier: Iterable[tuple[int, Weights]] = ()) -> None:
        """Makes the table.

        Args:
          weights: the weights of the sources.
          earlier: the number of rows and the weights of earlier phases whose rows are counted on.
        """
        divisor = math.gcd(*weights)
        self._counts = np.array(weights, np.int64) // divisor  # the rows of each source in a period
        self._sources = _tijdeman(self._counts.tolist())
        is_of = self._sources[:, None] == np.arange(len(weights))
        self._before = np.cumsum(is_of, axis=0) - is_of  # rows of each source before each place of a period
        self._first = np.zeros(len(weights), np.int64)
        for rows, other in earlier:
            self._first += RowOrder(other).counts(rows)

    def locate(self, places: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Returns the source of each row of the phase, and the number of the row among all rows of that source."""
        period, place = np.divmod(places, len(self._sources))
        sources = self._sources[place]
        return sources, self._first[sources] + period * self._counts[sources] + self._before[place, sources]

    def counts(self, rows: int) -> Int64[np.ndarray, " sources"]:
        """Returns the rows of each source in the first rows of the phase and in the earlier phases."""
        period, place = divmod(rows, len(self._sources))
        return self._first + period * self._counts + self._before[place]


def _tijdeman(counts: Sequence[int]) -> Int64[np.ndarray, " period"]:
    """Returns the source of each row of a period in which source i has `counts[i]` rows, by Tijdeman's rule.

    A row goes to the source, of those that are behind by at least 1 / (2 k - 2) rows, that would first be behind by
    1 - 1 / (2 k - 2), where k sources have rows.
    """
    period = sum(counts)
    scale = max(2 * sum(count > 0 for count in counts) - 2, 1)
    done = [0] * len(counts)
    deadlines = [-(-(scale - 1) * period // (scale * count)) if count else 0 for count in counts]
    order = np.zeros(period, np.int64)
    for place in range(period):
        behind = [i for i, n in enumerate(done) if scale * (place + 1) * counts[i] >= (scale * n + 1) * period]
        order[place] = i = min(behind, key=deadlines.__getitem__)
        done[i] += 1
        deadlines[i] = -(-(scale * done[i] + scale - 1) * period // (scale * counts[i]))
    return order
