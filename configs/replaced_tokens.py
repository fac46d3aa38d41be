"""Pretrains an encoder on replaced-token detection, as ELECTRA (Clark et al. 2020).

    python launch.py --config=configs/replaced_tokens.py:tiny --workdir=runs/electra
    python launch.py --config=configs/replaced_tokens.py:base --workdir=runs/electra_base \\
        --config.data.source='wiki/*.txt' --config.data.vocab_file=vocab.txt
    python launch.py --mode=predict --workdir=runs/electra --input=texts.txt --output=replaced.jsonl

A generator replaces masked tokens, and the discriminator learns which tokens are replaced. Fine-tuning with `init_from`
takes the discriminator. The variants are those of `configs/bert_pretraining.py`:

- Sizes: tiny, mini, small, medium, base, large, of the discriminator. Without a size, `init_from` determines it.
- `modern` has the structure and the optimizer of ModernBERT, and masks as many tokens as BERT.

`base` and `large` have ELECTRA's recipe. In the paper, the average on GLUE's test sets is 85.1 (base).
"""

from ml_collections import ConfigDict

from bertjax.configs import bert_pretraining
from bertjax.configs.sizes import SIZES

VARIANTS = (tuple(SIZES), ("modern",))
# Of the paper's table 6: batch size, updates, learning rate, masking rate, and width of the generator.
_PUBLISHED = {"base": (256, 766_000, 2e-4, 0.15, 1 / 3), "large": (2048, 400_000, 2e-4, 0.25, 1 / 4)}


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `base` or `tiny,modern`."""
    config = bert_pretraining.get_config(variant, "replaced_tokens")
    config.data.next_sentence = False
    config.masking.rate = 0.15
    config.masking.valid_rate = 0.0
    # Those of google-research/electra; the paper always masks.
    config.masking.mask_fraction = 0.85
    config.masking.random_fraction = 0.0
    config.masking.keep_fraction = 0.15
    config.checkpoint.best_metric = ""
    for size in set(variant.split(",")) & _PUBLISHED.keys():
        rows, updates, rate, masked, width = _PUBLISHED[size]
        config.batch_size = rows
        config.num_steps = updates
        config.masking.rate = masked
        config.generator.width = width
        config.optimizer.learning_rate = rate
    return config
