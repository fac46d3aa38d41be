"""BERT (Devlin et al. 2019) and its pretraining heads, as in google-research/bert `modeling.py`.

Shapes: B batch, S length, H hidden size, W size of the embeddings, N heads, V vocabulary, L layers, P masked positions
or output positions, E instances packed into a row, each with its own [CLS].
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.config import Count, Size, above, at_least, one_of
from bertjax.models.attention.disentangled import Distances
from bertjax.models.attention.mask import CausalRows, make_mask
from bertjax.models.attention.relative import BucketedBias, PositionTable
from bertjax.models.convolution import Convolution
from bertjax.models.embeddings import BertEmbeddings, embedding_table
from bertjax.models.encoder import Encoder, take_positions
from bertjax.models.layers import Dense, word_logits
from bertjax.models.transformer import ACTIVATIONS, activate, keep_rows_split
from bertjax.models.transformer_config import LayerKind, TransformerConfig, dense, kernel_init, make_norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerConfig):
    """Sizes and options of BERT.

    Attributes:
      vocab_size: rows of the word embeddings. Default: the size of the vocabulary; may be larger.
      max_positions: the maximum number of tokens in a row, and rows of the position embeddings.
      type_vocab_size: number of token types: 2 for the segments of a pair; 1 for a type that all tokens have, as in
        RoBERTa; 0 for no embeddings of token types.
      positions: "learned", embeddings of positions; "sinusoidal", fixed ones; "rotary", queries and keys rotated by
        their positions (Su et al. 2021); or "none".
      rotary_base: base of the wavelengths of rotary positions.
      local_rotary_base: base of the wavelengths of rotary positions in local layers.
      local_attention: width of the attention of local layers: a token attends to those at most half of it away. 0 for
        no local layers.
      global_every: with local layers, layers 0, `global_every`, 2 `global_every`, ... attend to all tokens; 0 for none.
      relative_positions: "none"; "bucketed", a learned bias of the scores for each bucket of distances, the same in all
        layers (Raffel et al. 2020, section 2.1); or "disentangled", scores of tokens and embeddings of distances, from
        one table for all layers (He et al. 2021, DeBERTa, section 3.1).
      relative_buckets: number of buckets, half of them for keys after their query.
      relative_distance: the distance from which on all distances share a bucket.
      layer_groups: number of groups of consecutive layers, all of one size, that share their parameters (Lan et al.
        2020, section 3.1); 0 if each layer has its own.
      relative_terms: with "disentangled", the added scores: "content_to_position", queries of tokens times keys of
        distances; "position_to_content", queries of distances times keys of tokens; or "both".
      relative_norm: with "disentangled", whether the embeddings of distances are normalized.
      convolution_size: width in tokens, an odd number, of a convolution of the embeddings, which is added to the output
        of the first layer (DeBERTa-v2); 0 for none.
      convolution_activation: activation after that convolution.
      embedding_size: size of the embeddings and of the masked-LM head; a map with a bias projects them to hidden_size
        if it differs (Lan et al. 2020, section 3.1); 0 for hidden_size.
      embedding_norm: whether the embeddings are normalized.
      first_attention_norm: whether the first layer of a pre-norm model has a norm before its attention.
      direction: "both", "left_to_right" or "right_to_left": which positions a token may attend to.
      tie_output: whether the masked-LM head uses the word embeddings as its output embeddings, instead of its own.
      masked_lm_head: what the masked-LM head consists of: "transform", a map, activation and norm, and the output
        embeddings with a bias, as in BERT; or "linear", the output embeddings alone, as in EuroBERT.

    Raises:
      UserError: if a value is out of range.
    """

    vocab_size: Size
    max_positions: Size
    type_vocab_size: Count = 2
    positions: Annotated[str, one_of("learned", "sinusoidal", "rotary", "none")] = "learned"
    rotary_base: Annotated[float, above(0)] = 10_000.0
    local_rotary_base: Annotated[float, above(0)] = 10_000.0
    relative_positions: Annotated[str, one_of("none", "bucketed", "disentangled")] = "none"
    relative_buckets: Annotated[int, at_least(4)] = 32
    relative_distance: Size = 128
    relative_terms: Annotated[str, one_of("both", "content_to_position", "position_to_content")] = "both"
    relative_norm: bool = False
    convolution_size: Count = 0
    convolution_activation: Annotated[str, one_of("gelu", "tanh")] = "gelu"
    local_attention: Count = 0
    global_every: Count = 3
    layer_groups: Count = 0
    embedding_size: Count = 0
    embedding_norm: bool = True
    first_attention_norm: bool = True
    direction: Annotated[str, one_of("both", "left_to_right", "right_to_left")] = "both"
    tie_output: bool = True
    masked_lm_head: Annotated[str, one_of("transform", "linear")] = "transform"

    @property
    def word_size(self) -> int:
        """The size of the embeddings: `embedding_size` if set."""
        return self.embedding_size or self.hidden_size

    @property
    def stored_layers(self) -> int:
        """The number of layers whose parameters are stored: one per group of layers that share them."""
        return self.layer_groups or self.num_layers

    def kind(self, layer: int) -> LayerKind:
        """Returns the kind of a layer, counted from 0."""
        is_local = bool(self.local_attention) and not (self.global_every and layer % self.global_every == 0)
        base = self.local_rotary_base if is_local else self.rotary_base
        distances = Distances(self.relative_buckets, self.relative_distance, self.relative_terms)
        return LayerKind(
            window=self.local_attention // 2 if is_local else 0,
            rotary_base=base if self.positions == "rotary" else 0.0,
            bare_input=layer == 0 and not self.first_attention_norm,
            group=layer * self.layer_groups // self.num_layers if self.layer_groups else None,
            distances=distances if self.relative_positions == "disentangled" else None,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_even = self.positions != "rotary" or self.head_key_size % 2 == 0
        self.check(is_even, "positions", f"not rotary with heads of {self.head_key_size}, which is odd")
        is_even = self.positions != "sinusoidal" or self.word_size % 2 == 0
        self.check(is_even, "positions", f"not sinusoidal with embeddings of {self.word_size}, which is odd")
        is_even = not self.num_layers % self.stored_layers
        self.check(is_even, "layer_groups", f"0, or a divisor of num_layers={self.num_layers}")
        self.check(self.local_attention != 1, "local_attention", "0, or at least 2")
        single = self.relative_buckets // 4
        self.check(self.relative_distance > single, "relative_distance", f"above {single}, the buckets of one distance")
        has_scores = self.relative_positions == "none" or self.attention_backend in ("auto", "xla")
        self.check(has_scores, "relative_positions", f"none with model.attention_backend={self.attention_backend}")
        if self.relative_positions == "disentangled":
            most = 2 * self.relative_distance
            self.check(self.relative_buckets <= most, "relative_buckets", f"at most {most}, twice the distance")
            is_plain = self.positions != "rotary" and not self.local_attention and not self.qk_norm
            is_plain = is_plain and self.key_value_heads == self.num_heads
            expected = "another value with rotary positions, local attention, shared keys, or norms of queries and keys"
            self.check(is_plain, "relative_positions", expected)
        fits = not self.convolution_size or (self.convolution_size % 2 == 1 and self.num_layers > 1)
        self.check(fits, "convolution_size", "0 or an odd number, and 0 with model.num_layers=1")
        is_blind = not self.convolution_size or self.direction == "both"
        self.check(is_blind, "direction", "both with a convolution, which reads the next tokens")
        self.check(self.first_attention_norm or self.norm == "pre", "first_attention_norm", "True with model.norm=post")
        has_own = not self.tie_output and self.word_size == self.hidden_size
        expected = "transform, unless model.tie_output=False and model.embedding_size=0"
        self.check(self.masked_lm_head == "transform" or has_own, "masked_lm_head", expected)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig(BertConfig):
    """Sizes and options of BERT and of the heads that predict from its output.

    Attributes:
      head: what the classifiers of fine-tuning read: "pooler", the pooled [CLS] of whole rows and the encoder's output
        of tokens, as in BERT; or "transform", both after a map, activation and norm, as in ModernBERT.
      pooler_activation: the activation of the pooler: "tanh", as in BERT; "relu", as in DistilBERT; or "gelu".
      pooling: what represents a whole instance: "cls", its first token; "mean", the mean of its tokens; or, with
        model.head=pooler, "late", the mean of the pooled tokens, as in EuroBERT.
    """

    head: Annotated[str, one_of("pooler", "transform")] = "pooler"
    pooler_activation: Annotated[str, one_of("tanh", "relu", "gelu")] = "tanh"
    pooling: Annotated[str, one_of("cls", "mean", "late")] = "cls"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.pooling != "late" or self.head == "pooler", "pooling", "cls or mean with model.head=transform")


class BertInputs(NamedTuple):
    """A batch of rows of tokens: the input of BERT and of every model on top of it.

    A row holds one instance, which may consist of two segments, or several instances packed one after another.
    """

    input_ids: Array  # [B, S] int: the tokens
    token_type_ids: Array  # [B, S] int: 0 in an instance's first segment, 1 in its second
    segment_ids: Array  # [B, S] int: the number of the token's instance in its row, from 1 on; 0 at padding
    position_ids: Array | None = None  # [B, S] int: the token's position in its instance; None for 0 to S - 1
    cls_positions: Array | None = None  # [B, E] int: the [CLS] of each instance in its row; None for the first token
    causal_rows: Array | None = None  # [B] int: 1 where tokens attend only to those before them; None for no row

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> "BertInputs":
        """Makes inputs from the fields of a batch; other fields are ignored."""
        return cls(**{name: batch[name] for name in cls._fields if name in batch})

    @property
    def instance_positions(self) -> Int[Array, "B E"]:
        """The first position of each instance: `cls_positions`, or 0 with one instance per row."""
        return jnp.zeros_like(self.input_ids[:, :1]) if self.cls_positions is None else self.cls_positions


class BertOutput(NamedTuple):
    """The output of `Bert`."""

    hidden: Array  # [B, S, H]; [B, P, H] with `output_positions`
    pooled: Array | None  # [B, E, H]; None without a pooler
    attention: Array | None  # [L, B, N, S, S] float32; None if not requested
    layers: Array | None  # [L + 1, B, S, H]: the embeddings and each layer's output; None if not requested


class PreTrainingOutput(NamedTuple):
    """The output of `BertForPreTraining`."""

    masked_lm_logits: Array  # [B, P, V] float32
    next_sentence_logits: Array | None  # [B, E, 2] float32; class 0: the second segment follows the first, 1: random
    pooled: Array | None  # [B, E, H]
    attention: Array | None  # [L, B, N, S, S] float32


class Bert(nn.Module):
    """Embeddings, encoder, and a pooler (dense and an activation) if `pooler_activation` is set.

    Parameters: `embeddings`, `encoder`, `pooler`; with `relative_positions`, also `relative_embeddings`; with
    `convolution_size`, also `convolution`.
    """

    config: BertConfig
    pooler_activation: str = ""  # of the pooler; "" for none
    pooling: str = "cls"  # what the pooler reads; see `HeadConfig`

    def setup(self) -> None:
        """Makes the submodules."""
        config = self.config
        sizes = config.vocab_size, config.max_positions, config.type_vocab_size
        self.embeddings = BertEmbeddings(config, *sizes, config.positions, config.embedding_norm, config.word_size)
        size = config.convolution_size
        rows = config.relative_buckets
        self.convolution = Convolution(config, size, config.convolution_activation) if size else None
        self.encoder = Encoder(config, self.convolution)
        if config.relative_positions != "none":
            bias = BucketedBias(config, rows, config.relative_distance)
            table = PositionTable(config, rows, config.relative_norm)
            self.relative_embeddings = bias if config.relative_positions == "bucketed" else table
        if self.pooler_activation:
            self.pooler = dense(config, config.hidden_size, part="heads")

    def __call__(
        self,
        inputs: BertInputs,
        *,
        deterministic: bool,
        return_attention: bool,
        return_layers: bool = False,
        output_positions: Int[Array, "B P"] | None = None,
        first_rows: CausalRows | None = None,
    ) -> BertOutput:
        """Encodes a batch.

        Args:
          inputs: the batch; the pooler reads the tokens at `cls_positions`.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights.
          return_layers: whether to return the outputs of all layers; the last one equals `hidden`.
          output_positions: see `Encoder`. A pooler of single tokens reads the first E of these, which must be those in
            `cls_positions`.
          first_rows: the rows in `causal_rows` of the inputs, if they come first.
        """
        x = self.embeddings(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, deterministic=deterministic)
        mask = make_mask(inputs.segment_ids, self.config.direction, inputs.position_ids, inputs.causal_rows, first_rows)
        returns = {"return_attention": return_attention, "return_layers": return_layers}
        is_relative = self.config.relative_positions != "none"
        relative = self.relative_embeddings(inputs.input_ids.shape[1]) if is_relative else None
        hidden, attention, layers = self.encoder(
            x, mask, relative, deterministic=deterministic, output_positions=output_positions, **returns
        )
        pooled = None
        if self.pooler_activation:
            is_late = self.pooling == "late"
            activation = ACTIVATIONS[self.pooler_activation]
            if output_positions is not None:
                read = hidden[:, : inputs.instance_positions.shape[1]]
            else:
                read = hidden if is_late else instances(self.pooling, hidden, inputs)
            pooled = activation(self.pooler(read))
            pooled = instances("mean", pooled, inputs) if is_late else pooled
        return BertOutput(hidden, pooled, attention, layers)


def instances(pooling: str, hidden: Float[Array, "B S H"], inputs: BertInputs) -> Float[Array, "B E H"]:
    """Returns the vector of each instance of a row: that of its token in `cls_positions`, or the mean of its tokens."""
    if pooling == "cls":
        return hidden[:, :1] if inputs.cls_positions is None else take_positions(hidden, inputs.cls_positions)
    numbers = 1 + jnp.arange(inputs.instance_positions.shape[1])
    is_own = inputs.segment_ids[:, None] == numbers[:, None]
    weights = is_own / jnp.maximum(jnp.sum(is_own, axis=-1, keepdims=True), 1)
    return jnp.einsum("BES,BSH->BEH", weights.astype(hidden.dtype), hidden)


def transform(config: BertConfig, size: int, hidden: Float[Array, "*rows H"]) -> Float[Array, "*rows {size}"]:
    """Applies a map to `size`, the activation and a norm; the calling module owns its `transform` and `norm`."""
    return make_norm(config, "norm")(activate(config, dense(config, size, "transform", "heads")(hidden)))


class MaskedLanguageModelHead(nn.Module):
    """Predicts masked words; see `BertConfig.masked_lm_head`.

    Parameters: `transform`, `norm` and `bias` [V] unless the head is "linear", and `output_embeddings` [V, W] unless
    they are the word embeddings.
    """

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "B P H"], word_embeddings: Float[Array, "V W"]) -> Float32[Array, "B P V"]:
        """Returns the logits of all words at each masked position."""
        config = self.config
        x = keep_rows_split(hidden)
        is_linear = config.masked_lm_head == "linear"
        x = x if is_linear else transform(config, config.word_size, x)
        if not config.tie_output:
            word_embeddings = embedding_table(self, config, "output_embeddings", config.vocab_size, config.word_size)
        # Flat rows, as in the loss, whose reductions XLA then merges.
        bias = None if is_linear else jnp.asarray(self.param("bias", nn.initializers.zeros, (config.vocab_size,)))
        logits = word_logits(x.reshape(-1, x.shape[-1]), word_embeddings, bias)
        return logits.reshape(*x.shape[:-1], -1)


class BertForPreTraining(nn.Module):
    """BERT with the masked language model and, with `predicts_next`, the next-sentence head.

    Parameters: `bert`, `masked_lm`, `next_sentence` [H, 2]. Without `predicts_next`, there are no `next_sentence` and
    `bert/pooler`, because they would not be trained.
    """

    config: HeadConfig
    predicts_next: bool = True

    def setup(self) -> None:
        """Makes the submodules."""
        config = self.config
        self.bert = Bert(config, config.pooler_activation if self.predicts_next else "")
        self.masked_lm = MaskedLanguageModelHead(config)
        if self.predicts_next:
            self.next_sentence = Dense(2, kernel_init(config), "float32")

    def __call__(
        self,
        inputs: BertInputs,
        masked_positions: Int[Array, "G P"],
        *,
        deterministic: bool,
        return_attention: bool = False,
        first_rows: CausalRows | None = None,
    ) -> PreTrainingOutput:
        """Predicts words and the next sentence.

        Args:
          inputs: the batch, with some tokens masked.
          masked_positions: the positions to predict, of each row (G = B) or of each of G groups of consecutive rows,
            whose positions follow one another. The logits are computed only there; with G = B, so is the last layer,
            and at the [CLS] of each instance.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights, for which the last layer is computed everywhere.
          first_rows: the rows in `causal_rows` of the inputs, if they come first.
        """
        read = masked_positions
        is_grouped = len(masked_positions) != len(inputs.input_ids)
        everywhere = return_attention or is_grouped
        if self.predicts_next and not is_grouped:
            read = jnp.concatenate([inputs.instance_positions, masked_positions], axis=1)
        hidden, pooled, attention, _ = self.bert(
            inputs,
            deterministic=deterministic,
            return_attention=return_attention,
            output_positions=None if everywhere else read,
            first_rows=first_rows,
        )
        if is_grouped:
            hidden = hidden.reshape(len(masked_positions), -1, hidden.shape[-1])
        masked = take_positions(hidden, masked_positions) if everywhere else hidden[:, -masked_positions.shape[1] :]
        masked_lm_logits = self.masked_lm(masked, self.bert.embeddings.word_embeddings)
        next_sentence_logits = None if pooled is None else self.next_sentence(pooled)
        return PreTrainingOutput(masked_lm_logits, next_sentence_logits, pooled, attention)


class BertForMaskedLM(nn.Module):
    """BERT with the masked language model alone, for inference: its last layer computes only the masked positions.

    Parameters: `bert` and `masked_lm`, those of `BertForPreTraining`.
    """

    config: BertConfig

    def setup(self) -> None:
        """Makes the submodules."""
        self.bert = Bert(self.config)
        self.masked_lm = MaskedLanguageModelHead(self.config)

    def __call__(
        self, inputs: BertInputs, masked_positions: Int[Array, "B P"], *, deterministic: bool
    ) -> Float32[Array, "B P V"]:
        """Returns the logits of all words at the masked positions."""
        output = self.bert(
            inputs, deterministic=deterministic, return_attention=False, output_positions=masked_positions
        )
        return self.masked_lm(output.hidden, self.bert.embeddings.word_embeddings)
