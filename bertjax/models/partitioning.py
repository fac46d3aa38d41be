"""Which dimensions of a Transformer's parameters a tensor-parallel mesh axis splits (Megatron-LM's scheme).

Heads and feed-forward columns are split, and the products after them summed: one reduction for each sub-layer.
"""

# (path pattern, mesh axis of each of the last dimensions); what matches nothing is not split.
TENSOR_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"attention/(query|key|value)/kernel$", (None, "tensor")),
    (r"attention/(query|key|value)/bias$", ("tensor",)),
    (r"attention/output/kernel$", ("tensor", None)),
    (r"intermediate/kernel$", (None, "tensor")),
    (r"intermediate/bias$", ("tensor",)),
    (r"layers/output/kernel$", ("tensor", None)),
)
