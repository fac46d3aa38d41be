"""The sizes of the published models."""

# BERT (Devlin et al. 2019; Turc et al. 2019 for sizes below Base): layers and hidden size. The number of heads is
# hidden / 64, the size of the feed-forward layer is 4 * hidden.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
# ModernBERT (Warner et al. 2024, appendix A) and Ettin (Weller et al. 2025, table 1): layers, hidden size and size of
# the feed-forward layer.
MODERNBERT_SIZES = {
    "ettin_17m": (7, 256, 384),
    "ettin_32m": (10, 384, 576),
    "ettin_68m": (19, 512, 768),
    "ettin_150m": (22, 768, 1152),
    "modernbert_base": (22, 768, 1152),
    "modernbert_large": (28, 1024, 2624),
}
