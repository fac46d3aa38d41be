"""Base class of tasks whose inputs and outputs are texts: prediction, and export to transformers."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.contract import Attended, Batch, Example, Output, Params, Vocabulary
from bertjax.data.codecs.translation.rows import PairCodec, join_parts
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.decoding import generation
from bertjax.errors import UserError
from bertjax.interop import encoder_decoders
from bertjax.interop.encoder_decoders import SpecialIds
from bertjax.interop.published import Published
from bertjax.interop.vocabularies import SavedVocabularies
from bertjax.models.encoder_decoder import EncoderDecoderConfig
from bertjax.models.transformer import TENSOR_RULES
from bertjax.progress import log_once
from bertjax.tasks import pretrained, seq2seq, translators
from bertjax.tasks.seq2seq import Seq2SeqTask, TargetIds

_log = logging.getLogger(__name__)

_EXAMPLES = 10  # the number of unknown characters in a message


class TextToTextTask(Seq2SeqTask):
    """A task that generates a text for each text, or scores given ones."""

    _codec: PairCodec

    def __init__(self, config: Any, vocabulary: SavedVocabularies) -> None:
        """Makes the model of a config with `model`, `start_token`, `decoding`, `seed` and `codec`."""
        self._config = config
        self._vocabularies = vocabulary
        self._model = translators.make_model(config.model, [side.vocab_size for side in vocabulary])
        self._codec = config.codec(vocabulary)
        self._decoding = config.decoding
        self._ids = _target_ids(config.start_token, vocabulary.target)

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def tokenizer(self) -> Vocabulary:
        return self._vocabularies

    def warm_start(self, params: Params, published: Published) -> Params:
        return pretrained.warm_start(params, published)

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        return TENSOR_RULES

    def numbered(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Yields the examples, numbered if sampling needs it, and then logs the unknown characters of the sources."""
        vocabulary = self._vocabularies.source
        unknown = Counter[str]()
        count = affected = 0
        for example in seq2seq.numbered(examples, self._decoding):
            count += 1
            if any(vocabulary.unk_id in row["input_ids"] for row in example.rows):
                affected += 1
                unknown.update(vocabulary.unknown(example.source.item.source))
            yield example
        if unknown:
            some = ", ".join(f"{text!r} ({number:,})" for text, number in unknown.most_common(_EXAMPLES))
            characters = f"{unknown.total():,} unknown characters"
            log_once(f"{affected:,} of {count:,} texts have {characters}: {some}", logging.WARNING)

    def predict_lengths(self) -> Sequence[int]:
        return bucket_lengths(self._codec.config.seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The `n_best` translations of each row, or the given one: ids [B, n, T], lengths and scores [B, n]."""
        if self._decoding.method == "forced":
            return seq2seq.score_given(self._model, params, batch, self._decoding, self._ids)
        return seq2seq.generate(self._model, params, batch, self._decoding, self._ids, self._config.seed)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The text, its translation and score, all `n_best` if more than one, and the reference if its row has one.

        "complete" is false if a translation was truncated at its maximum length.
        """
        text, score = self._translation(outputs, 0)
        is_complete = all(self.is_complete(output, 0) for output in outputs)
        record = {"source": example.source.item.source, "translation": text, "score": score, "complete": is_complete}
        if self._decoding.n_best > 1:
            translations = [self._translation(outputs, rank) for rank in range(self._decoding.n_best)]
            record["n_best"] = [{"translation": text, "score": score} for text, score in translations]
        if (reference := example.source.item.target) and not self._codec.scores_targets:
            record["reference"] = reference
        return record

    def record_fields(self) -> Sequence[str]:
        has_reference = bool(self._codec.files.target_column) and not self._codec.scores_targets
        more = ["n_best"] * (self._decoding.n_best > 1) + ["reference"] * has_reference
        return ("source", "translation", "score", "complete", *more)

    def line(self, record: Mapping[str, Any]) -> str:
        """The translation in a record or, for a given target, its score."""
        return str(record["score" if self._decoding.method == "forced" else "translation"])

    def _translation(self, outputs: Sequence[Output], rank: int) -> tuple[str, float]:
        """The text and the score of a rank. For a text in several rows, joins the texts and adds the scores."""
        parts = [self._codec.translation(o["ids"][rank, : o["lengths"][rank]]) for o in outputs]
        return join_parts(parts), round(sum((float(o["scores"][rank]) for o in outputs), 0.0), 6)

    def attention(self, params: Params, example: Example, outputs: Sequence[Output]) -> Mapping[str, Attended]:
        """The weights of encoder, decoder and cross-attention, for the best translation."""
        source = example.rows[0]["input_ids"]
        target = outputs[0]["ids"][0, : outputs[0]["lengths"][0]]
        batch = {"input_ids": source[None], "labels": target[None]}
        batch |= {"segment_ids": np.ones_like(source[None]), "target_segment_ids": np.ones_like(target[None])}
        model = seq2seq.with_attention(self._model)
        output = seq2seq.apply(
            model, params, jax.tree.map(jnp.asarray, batch), self._ids.start, None, return_attention=True
        )
        sources = _pieces(self._vocabularies.source, source)
        targets = _pieces(self._vocabularies.target, target)
        # The decoder's queries and keys are its inputs.
        fed = ["<s>", *targets[:-1]]
        kinds = {
            "encoder": (output.encoder_attention, sources, sources),
            "decoder": (output.decoder_attention, fed, fed),
            "cross": (output.cross_attention, targets, sources),
        }
        return {
            name: Attended(np.asarray(weights)[:, 0], queries, keys)
            for name, (weights, queries, keys) in kinds.items()
            if weights is not None
        }

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that transformers opens with a class of its model's values, with the vocabularies."""
        model = self._model.config
        if not isinstance(model, EncoderDecoderConfig):
            raise UserError("--mode=export", got="a recurrent model", expected="a Transformer", fix="predict with it")
        ids = self._ids
        decoding = generation.to_generation(self._decoding, eos_id=ids.end, pad_id=ids.pad, unk_id=ids.unk)
        special = SpecialIds(ids.pad, ids.start, ids.end)
        prefixes = {*self._codec.files.source_prefix}
        if len(prefixes) > 1:
            _log.warning("%s states none of the prefixes of data.source_prefix: put one before each text", folder)
        prefix = prefixes.pop() if len(prefixes) == 1 else ""
        encoder_decoders.save(folder, params, model, special, decoding, self._codec.config.seq_len, prefix)
        self._vocabularies.save(folder, for_transformers=True)


def _target_ids(start_token: str, vocabulary: Tokenizer) -> TargetIds:
    """The special tokens of the target vocabulary. `start_token` is the decoder's first input."""
    start = {"begin": vocabulary.cls_id, "pad": vocabulary.pad_id, "end": vocabulary.sep_id}[start_token]
    return TargetIds(start, vocabulary.sep_id, vocabulary.pad_id, vocabulary.unk_id)


def _pieces(vocabulary: Tokenizer, ids: np.ndarray) -> list[str]:
    """Returns each token as text."""
    return ["</s>" if token == vocabulary.sep_id else vocabulary.decode([token]) for token in ids.tolist()]
