"""Scores minimal pairs and single sentences by a language model (Warstadt et al. 2020; Salazar et al. 2020)."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax

from bertjax.config import Composed, Constrained, Count, Flat, always, one_of
from bertjax.contract import Batch, Example, Output, Params, ScoringTask
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.minimal_pairs import METHODS, SentenceCodec, check_source, read
from bertjax.data.readers import lines, tables
from bertjax.data.readers.lines import OnBadRow
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import VocabularyConfig, load_tokenizer
from bertjax.interop.published import Published
from bertjax.models.bert import BertForMaskedLM
from bertjax.tasks import bert, completion, minimal_pairs
from bertjax.tasks.bert import BertTask
from bertjax.tasks.evaluation_data import EvaluationData
from bertjax.tasks.language_models import LANGUAGE_MODELS, LanguageModel, check_objective, check_template

_LENGTHS = (8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 256)  # most sentences are short


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Constrained):
    """The config keys that this experiment reads.

    Attributes:
      experiment: the name of its file.
      init_from: a Hugging Face folder, a google-research checkpoint or a bertjax run, with a masked language model; or
        a run with objective "causal_lm".
      objective: "masked_lm", or "causal_lm". Default: that of the run in `init_from`, or "masked_lm". A run with causal
        rows has both, but one with these alone only "causal_lm".
      predict_at: where a masked token is predicted: its own position, or the one before it. Default: that of the run in
        `init_from`, or "same".
      method: what is masked to score a token: "original", this token (Salazar et al. 2020); "within_word_l2r", also the
        later tokens of its word, which would give it away (Kauf and Ivanova 2023).
      model: the encoder.
      data: which pairs to read, and how to encode them.
    """

    experiment: str
    init_from: str = always("")
    objective: Annotated[str, one_of(*LANGUAGE_MODELS)] = always(None)
    method: Annotated[str, one_of(*METHODS)] = always("original")
    predict_at: Annotated[str, one_of("same", "previous")] = "same"
    model: bert.InferenceModelConfig
    data: "DataConfig"

    def codec(self, tokenizer: EncoderTokenizer) -> SentenceCodec:
        columns = Columns("data.text_field", [self.data.text_field])
        model = LanguageModel(self.model, self.objective, self.predict_at)
        check_template(model, tokenizer)
        return minimal_pairs.codec(tokenizer, model, self.method, columns)


@dataclasses.dataclass(frozen=True)
class PairSourcesConfig(Constrained, prefix="data"):
    """The pairs to evaluate, and the sentences to predict on.

    Attributes:
      valid_source: a source to evaluate, scored as "valid/...".
      test_source: a source to evaluate, scored as "test/...".
      pair_columns: the columns of the acceptable and of the unacceptable sentence in a table. Default: "good" and
        "bad", or "sentence_good" and "sentence_bad", as in BLiMP's files.
      per_paradigm: the number of pairs of each paradigm, from the first on; 0 for all.
      text_field: the column of the sentence in a table to predict on.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    valid_source: str = always("")
    test_source: str = always("")
    pair_columns: tuple[str, ...] = always(())
    per_paradigm: Count = always(0)
    text_field: str = always("text")
    on_bad_row: OnBadRow = always("stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = self.pair_columns
        is_pair = len(columns) == len(set(columns)) == 2
        self.check(is_pair or not columns, "pair_columns", "two different columns, or none for those of BLiMP")


@dataclasses.dataclass(frozen=True)
class DataConfig(Composed, prefix="data"):
    """The keys of `data`."""

    pairs: Flat[PairSourcesConfig]
    vocabulary: Flat[VocabularyConfig]


def resolve(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Fills in what `init_from` determines: sizes, casing and objective. Raises UserError if they are contradicted."""
    config = completion.bert(config, published)
    masking = published.config.get("masking", {})
    is_causal = masking.get("causal_share") == 1
    is_mixed = masking.get("causal_share") or masking.get("causal_stages")
    if (config["objective"] == "causal_lm" and is_mixed) or (config["objective"] is None and is_causal):
        config = {**config, "objective": "causal_lm"}
        return {**config, "model": {**config["model"], "direction": "left_to_right"}}
    predict_at = masking.get("predict_at", "same")
    return {**config, "objective": check_objective(config["objective"], published), "predict_at": predict_at}


open_vocabulary = bert.open_vocabulary


class Data(EvaluationData):
    """Minimal pairs. Those of `data.valid_source` are the validation examples."""

    def __init__(self, config: Config, folder: Path, published: Published | None) -> None:
        self._config = config
        self._folder = folder
        self._rows = config.data.pairs
        check_source(self._rows.valid_source, "data.valid_source")

    def key(self) -> Any:
        files = tables.find_files(self._rows.valid_source, "data.valid_source")
        return [dataclasses.asdict(self._rows), *map(lines.fingerprint, files), self.vocabulary.key]

    @functools.cached_property
    def vocabulary(self) -> EncoderTokenizer:
        data = self._config.data
        return load_tokenizer(self._folder, data.lowercase, strip_accents=data.strip_accents)

    def validation_examples(self) -> Iterator[Example]:
        """Reads and checks all pairs first."""
        rows = self._rows
        codec = self._config.codec(self.vocabulary)
        policy = rows.per_paradigm, rows.on_bad_row, rows.pair_columns
        return minimal_pairs.examples(read(rows.valid_source, "data.valid_source", codec, *policy), codec)


class Task(BertTask[Config], ScoringTask):
    """Scores sentences by a masked language model or a causal one."""

    predicts_positions = True
    export = None  # type: ignore[assignment]  # the encoder is exported by its own experiment

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        model = config.model.encoder(vocabulary.vocab)
        super().__init__(config, vocabulary, model, BertForMaskedLM(model), model.max_positions)

    def predict_lengths(self) -> Sequence[int]:
        return (*(length for length in _LENGTHS if length < self._seq_len), self._seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        return minimal_pairs.infer(self._model, params, batch)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The (pseudo-)log-likelihood of a sentence, in nats, its mean per token, and the share of each token."""
        values = minimal_pairs.log_probabilities(example.rows, outputs)
        tokens = self._tokenizer.names(minimal_pairs.labels(example.rows).tolist())
        return {
            "text": example.source.item.text,
            "score": round(float(values.sum()), 6),
            "per_token_score": round(float(values.mean()), 6),
            "tokens": tokens,
            "log_probabilities": [round(float(value), 6) for value in values],
        }

    def record_fields(self) -> Sequence[str]:
        return ("text", "score", "per_token_score", "tokens", "log_probabilities")

    def score(self, results: Iterable[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The accuracies; see `scoring.minimal_pairs.accuracies`."""
        return minimal_pairs.score(results)
