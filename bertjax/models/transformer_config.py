"""Sizes and options of a stack of Transformer layers, and the modules that depend only on them.

Shapes: L layers, H hidden size, N heads, F feed-forward size.
"""

import dataclasses
from typing import Annotated

from flax import linen as nn

from bertjax.config import Constrained, Count, DropoutRate, Size, above, one_of
from bertjax.models.attention.disentangled import Distances
from bertjax.models.layers import Dense
from bertjax.models.norms import Norm

# The devices of the kernels of attention.
_DEVICES = {"cudnn": "NVIDIA GPUs", "triton": "NVIDIA GPUs", "rows": "TPUs", "splash": "TPUs"}


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """What may differ between the layers of a stack, apart from their parameters.

    Attributes:
      window: the largest distance of two tokens that may attend to each other; 0 for any distance.
      rotary_base: base of the rotary positions of self-attention; 0 for none.
      bare_input: whether a pre-norm layer has no norm before self-attention.
      group: the place of its parameters among those that are stored, if layers share them; None for its own.
      distances: the distances of disentangled self-attention; None for other self-attention.
    """

    window: int = 0
    rotary_base: float = 0.0
    bare_input: bool = False
    group: int | None = None
    distances: Distances | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(Constrained, prefix="model"):
    """Sizes and options of a stack of Transformer layers.

    Parameters, softmax, normalization statistics and logits are always float32.

    Attributes:
      hidden_size: size of the embeddings and of each layer's output; a multiple of num_heads.
      num_layers: number of layers; of encoder layers in an encoder-decoder.
      num_heads: attention heads.
      num_key_value_heads: heads of keys and values, each shared by as many query heads (Ainslie et al. 2023); 0 for
        num_heads.
      intermediate_size: size of the hidden layer of the feed-forward network.
      dropout: dropout of the embeddings and of each sub-layer's output.
      attention_dropout: dropout of the attention weights.
      attention_backend: "auto", the fastest for the device; "xla", on any device, without kernels for norms; or flash
        attention: "cudnn" and "triton" (also packed rows and local layers) on NVIDIA GPUs, "rows" (short rows) and
        "splash" on TPUs.
      activation_dropout: dropout of the activations inside the feed-forward network.
      activation: "gelu", exact, as in BERT's first release; "gelu_tanh", as in Google's code since 2019; "relu";
        "silu".
      norm: "post", after each residual sum; or "pre", before each sub-layer and after the last layer.
      norm_type: "layer", layer normalization; or "rms", which does not subtract the mean (Zhang and Sennrich 2019).
      norm_biases: whether norms have a bias. RMS norms never have one.
      norm_eps: epsilon of the norms, added to the variance.
      qk_norm: whether the queries and keys of each head are normalized (Henry et al. 2020).
      gated: whether the activations of the feed-forward network are multiplied by a second map of its input (Shazeer
        2020): GeGLU with a GELU, SwiGLU with "silu".
      biases: whether the maps of a layer, and of heads in front of the output layer, have biases.
      unbiased: maps without biases in any case: "none"; "intermediate", the first of the feed-forward network, as in
        GTE; "layers", all of the layers, as in NomicBERT and EuroBERT; or "classifiers", output layers of classifiers,
        as in ModernBERT's decoder.
      initializer: initializer of matrices: "truncated_normal", or "xavier_uniform" (Glorot and Bengio 2010).
      initializer_range: standard deviation of truncated normal matrices and embedding tables.
      depth_scaled_init: whether the maps whose results are added to the residual stream start smaller, by a factor of
        1 / sqrt(2 num_layers) (Radford et al. 2019, section 2.3).
      dtype: dtype of the activations, "float32" or "bfloat16".
      scan_layers: loop over one compiled layer (faster compilation) instead of unrolling all layers (faster steps).
      remat: the activations of a layer that the backward pass recomputes: "none"; "dots", all but the results of matrix
        products with weights; "norms", all but the inputs and statistics of the norms, which XLA then computes on all
        devices; or "full", all. False and True of earlier versions mean "none" and "full".

    Raises:
      UserError: if a value is out of range.
    """

    hidden_size: Size
    num_layers: Size
    num_heads: Size
    num_key_value_heads: Count = 0
    intermediate_size: Size
    dropout: DropoutRate
    attention_dropout: DropoutRate
    attention_backend: Annotated[str, one_of("auto", "xla", "cudnn", "triton", "rows", "splash")] = "auto"
    activation_dropout: DropoutRate = 0.0
    activation: Annotated[str, one_of("gelu", "gelu_tanh", "relu", "silu")]
    norm: Annotated[str, one_of("post", "pre")] = "post"
    norm_type: Annotated[str, one_of("layer", "rms")] = "layer"
    norm_biases: bool = True
    norm_eps: Annotated[float, above(0)]
    qk_norm: bool = False
    gated: bool = False
    biases: bool = True
    unbiased: Annotated[str, one_of("none", "intermediate", "layers", "classifiers")] = "none"
    initializer: Annotated[str, one_of("truncated_normal", "xavier_uniform")] = "truncated_normal"
    initializer_range: Annotated[float, above(0)] = 0.02
    depth_scaled_init: bool = False
    dtype: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    scan_layers: bool = False
    remat: Annotated[str, one_of("none", "dots", "norms", "full", formerly={"false": "none", "true": "full"})] = "none"

    @property
    def key_value_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def head_key_size(self) -> int:
        """The size of a head's queries and keys."""
        return self.hidden_size // self.num_heads

    @property
    def head_value_size(self) -> int:
        """The size of a head's values."""
        return self.hidden_size // self.num_heads

    @property
    def query_scale(self) -> float:
        """The factor of queries, whose products with keys are then divided by the square root of their size."""
        return 1.0

    @property
    def divides_hidden_size(self) -> bool:
        """Whether the heads divide the hidden size among them."""
        return True

    @property
    def stored_layers(self) -> int:
        """The number of layers whose parameters are stored."""
        return self.num_layers

    def kind(self, layer: int) -> LayerKind:
        """Returns the kind of a layer, counted from 0."""
        del layer
        return LayerKind()

    def __post_init__(self) -> None:
        super().__post_init__()
        divisible = self.hidden_size % self.num_heads == 0 or not self.divides_hidden_size
        self.check(divisible, "hidden_size", f"a multiple of num_heads={self.num_heads}")
        divides = self.num_heads % self.key_value_heads == 0
        self.check(divides, "num_key_value_heads", f"0, or a divisor of num_heads={self.num_heads}")
        device = _DEVICES.get(self.attention_backend, "")
        backend = f"with model.attention_backend={self.attention_backend}, for {device} only"
        if device:
            # These kernels never store the attention weights, so they cannot drop any.
            fix = "set --config.model.attention_backend=auto, or change --config.model.attention_dropout"
            self.check(not self.attention_dropout, "attention_dropout", f"0 {backend}", fix=fix)
        if self.attention_backend == "cudnn":
            head_size = self.hidden_size // self.num_heads
            fix = "set --config.model.attention_backend=auto, or change --config.model.dtype"
            self.check(self.dtype == "bfloat16", "dtype", f"bfloat16 {backend}", fix=fix)
            fits = head_size % 8 == 0 and head_size <= 128
            self.check(fits, "num_heads", f"heads of 8, 16, ... 128 {backend}, not of {head_size}")


def kernel_init(config: TransformerConfig, scale: float = 1.0) -> nn.initializers.Initializer:
    """Returns the initializer of matrices, multiplied by `scale`.

    "truncated_normal" is `tf.truncated_normal_initializer(initializer_range)` as in google-research/bert: values beyond
    two standard deviations are redrawn, and the resulting standard deviation (0.88 of the range) is not rescaled.
    """
    if config.initializer == "xavier_uniform":
        return nn.initializers.variance_scaling(scale**2, "fan_avg", "uniform")
    return nn.initializers.truncated_normal(config.initializer_range * scale)


def dense(config: TransformerConfig, features: int, name: str | None = None, part: str = "layers") -> Dense:
    """Returns a Dense layer with the initializer, biases and dtype of the config.

    `part` is "intermediate" for the first maps of the feed-forward network, "layers" for other maps of layers, and
    "heads" for those of heads.
    """
    return Dense(features, kernel_init(config), config.dtype, _has_biases(config, part), name=name)


def residual_dense(config: TransformerConfig) -> Dense:
    """Returns a Dense layer whose result is added to the residual stream."""
    scale = (2 * config.num_layers) ** -0.5 if config.depth_scaled_init else 1.0
    return Dense(config.hidden_size, kernel_init(config, scale), config.dtype, _has_biases(config, "layers"))


def _has_biases(config: TransformerConfig, part: str) -> bool:
    return config.biases and (part == "heads" or config.unbiased not in (part, "layers"))


def make_norm(config: TransformerConfig, name: str | None = None) -> Norm:
    """Returns a norm of the type, epsilon and dtype of the config."""
    centered = config.norm_type == "layer"
    # Rematerialization by norms stores what a plain norm reads. To run the kernel again would take its inputs.
    is_fused = config.remat != "norms" and config.attention_backend != "xla"
    return Norm(config.norm_eps, config.dtype, centered, centered and config.norm_biases, is_fused, name=name)
