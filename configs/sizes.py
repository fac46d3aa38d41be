"""The sizes of the published BERT models (Devlin et al. 2019; Turc et al. 2019 for those below Base)."""

# name: (layers, hidden size); heads are hidden / 64 and the feed-forward layer is 4 * hidden.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
