"""Denoising pretraining of an encoder-decoder, as BART (Lewis et al. 2020) and T5 (Raffel et al. 2020)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from jaxtyping import Int32

from bertjax.config import always, build_part, one_of
from bertjax.contract import Batch, Metrics, Params, Sums, Vocabulary
from bertjax.data.codecs.translation.parallel_text import ParallelTextConfig
from bertjax.data.codecs.translation.rows import PairCodec, TranslationRowsConfig
from bertjax.data.pretraining.batches import dtype_of
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.pretraining.denoising import OBJECTIVES, NoiseConfig
from bertjax.data.pretraining.denoising_batches import DenoisingBatchConfig, DenoisingBatches
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import casing
from bertjax.decoding.config import DecodingConfig
from bertjax.interop.published import Published
from bertjax.interop.vocabularies import SavedVocabularies
from bertjax.tasks import bert, pretraining, seq2seq, translators
from bertjax.tasks.completion import contradiction
from bertjax.tasks.pretraining import PreparedTextConfig, PretrainingData
from bertjax.tasks.seq2seq import SmoothingConfig
from bertjax.tasks.targets import scored
from bertjax.tasks.text_to_text import TextToTextTask

FREE_AFTER_TRAINING = (*(key for key in pretraining.FREE_AFTER_TRAINING if not key.startswith("masking.")), "decoding")
_UNUSED = {
    "next_sentence": False,
    "packing": False,
    "stages": (),
    "phases": (),
    "mixture": (),
    "add_tokens": (),
    "add_words": 0,
}
_NO_SMOOTHING = SmoothingConfig(label_smoothing=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PreparedTextConfig):
    """The config keys that this experiment reads.

    Attributes:
      init_from: a bertjax run or the folder of a BART of transformers to continue; or "".
      objective: "infilling" (BART): each hidden span, which may be empty, is one mask, and the target is the whole
        text; or "span_corruption" (T5): each span is a sentinel, and the target is the spans after their sentinels.
      noise: the hidden spans.
      model: the sizes and options of the encoder-decoder.
      start_token: the decoder's first input: "pad" (as in T5) or "end" (as in BART).
      decoding: how predictions are generated.
    """

    objective: Annotated[str, one_of(*OBJECTIVES)] = always("infilling")
    noise: NoiseConfig
    model: translators.TransformerKeys
    start_token: Annotated[str, one_of("begin", "pad", "end")] = always(None)
    decoding: DecodingConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value in _UNUSED.items():
            expected = f"{value}, because a row is one text, in the order of the source and of the vocabulary"
            self.data.check(getattr(self.data, key) == value, key, expected)
        is_ordered = self.objective == "infilling" or not self.noise.permute_sentences
        self.noise.check(is_ordered, "permute_sentences", "False with objective=span_corruption")
        translators.check_positions(self)
        marks = OBJECTIVES[self.objective].marks
        (spans,) = self.noise.num_spans(np.array([self.data.seq_len])).tolist()
        expected = f"at most {len(marks)} spans of a row, the number of sentinels"
        fix = "raise it, or lower --config.data.seq_len"
        self.noise.check(not marks or spans <= len(marks), "mean_span", expected, got=f"{spans} spans", fix=fix)

    @property
    def vocab_size(self) -> int | None:
        return self.model.target_vocab_size

    @property
    def batches(self) -> DenoisingBatchConfig:
        data = self.data
        rows = data.pairs, MaskingConfig(), data.rows, self.objective, "both", self.seed, self.batch_size
        return DenoisingBatchConfig(*rows, self.num_steps, noise=self.noise)

    def codec(self, vocabularies: SavedVocabularies) -> "MarkedCodec":
        """Returns the kind of the texts to predict on."""
        rows = TranslationRowsConfig(seq_len=self.data.seq_len)
        files = ParallelTextConfig(source_column=self.data.text_field)
        return MarkedCodec(vocabularies, rows, files, scores_targets=self.decoding.method == "forced")


class MarkedCodec(PairCodec):
    """Texts with [MASK] or sentinels to predict on."""

    kind = "MarkedPairs"

    def _ids(self, side: int, texts: list[str]) -> list[Int32[np.ndarray, " n"]]:
        vocabulary = self.vocabularies[side]
        assert isinstance(vocabulary, EncoderTokenizer)
        return [np.array(vocabulary.template.row([vocabulary.encode_with_masks(text)])[0], np.int32) for text in texts]


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines.

    Raises:
      UserError: if the model is missing, or a key contradicts the folder.
    """
    data = {**config["data"]}
    if published:
        for key, value in {"vocab_file": config["init_from"], "lowercase": casing(published.path)}.items():
            if data[key] not in (None, "", value):
                raise contradiction(f"data.{key}", data[key], value, config["init_from"], "size")
            data[key] = value
    of_text = {key: data[key] for key in ("source", "seq_len")}
    of_translation = {"architecture": "transformer", "task": "", "data": of_text}
    resolved = translators.complete({**config, **of_translation}, published)
    data["seq_len"] = resolved["data"]["seq_len"]
    return {**{key: resolved[key] for key in config}, "data": data}


def open_vocabulary(config: Config, published: Published) -> EncoderTokenizer:
    """Returns the vocabulary of a run or of weights."""
    return OBJECTIVES[config.objective].tokenizer(published.tokenizer(config.data.lowercase), is_published=True)


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Raises UserError if the config names no text."""
    build_part(Config, config).data.check_source()
    return bert.example_config(config)


class Data(PretrainingData[Config]):
    """Prepared text, in `data.prepared_dir`, by default in the folder."""

    kind = DenoisingBatches

    @functools.cached_property
    def _corpora(self) -> Mapping[str, Corpus]:
        corpora = super()._corpora
        for corpus in corpora.values():
            objective = OBJECTIVES[self._config.objective]
            corpus.tokenizer = objective.tokenizer(corpus.tokenizer, is_published=bool(self._config.init_from))
        return corpora

    def baselines(self) -> Mapping[str, float]:
        """The loss of predicting the hidden tokens by their frequency in the training text."""
        costs = self.costs()
        if costs is None:
            return {}
        totals = np.zeros(2)
        for batch in self.batches("valid", 0, np.arange(self._config.batch_size)):
            hidden = batch["hidden_weights"]
            totals += np.sum(costs[batch["labels"]] * hidden), hidden.sum()
        return {"valid/hidden_unigram_loss": float(totals[0] / totals[1])}


class Task(TextToTextTask):
    """Predicts targets of texts with hidden spans. The metric "hidden_loss" is the loss of the hidden tokens alone."""

    decodes = False

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        self.loss_name = config.objective
        super().__init__(config, SavedVocabularies(vocabulary, vocabulary))

    @property
    def tokenizer(self) -> Vocabulary:
        return self._vocabularies.source

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        shapes = self._config.batches.row_shapes(self._vocabularies.source.template.num_special(1))
        return [{name: jax.ShapeDtypeStruct(shape, dtype_of(name)) for name, shape in shapes.items()}]

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy of the targets; see `TrainingTask.loss`."""
        output = seq2seq.apply(self._model, params, batch, self._ids.start, rng, return_attention=False)
        total, metrics = seq2seq.loss(output.logits, batch, _NO_SMOOTHING, self._ids.pad)
        _, of_hidden = scored(output.logits, batch["labels"], {"hidden": batch["hidden_weights"]})
        return {self.loss_name: total}, {**metrics, **of_hidden}
