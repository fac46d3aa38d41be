"""Scores minimal pairs of an acceptable and an unacceptable sentence, such as BLiMP. Nothing is trained.

    python launch.py --mode=evaluate --config=configs/minimal_pairs.py --config.init_from=BERT_FOLDER \\
        --config.data.test_source=blimp.jsonl --output=blimp.json
    python launch.py --mode=predict --config=configs/minimal_pairs.py --config.init_from=BERT_FOLDER \\
        --input=sentences.txt

`init_from` is a run of bertjax or a published folder, with a masked language model; or a run with
`objective=causal_lm`. A pair is right if the acceptable sentence has the higher score, and ties count half.

- Masked language models: the pseudo-log-likelihood (Salazar et al. 2020), which masks one token at a time.
  `method=within_word_l2r` masks the later tokens of its word too, because they give the token away (Kauf and Ivanova
  2023).
- Causal language models: the log-likelihood.

Accuracies of all pairs, of each phenomenon and of each paradigm have Wilson's 95 % intervals. On all of BLiMP, Salazar
et al. (2020) report 82.6 % for GPT-2 (345M) and 86.5 % for RoBERTa (large); people have 88.6 %.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts

VARIANTS = ()


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config, which has no variants."""
    parts.chosen(variant, VARIANTS)
    config = parts.inference("minimal_pairs")
    del config.model.dtype  # always float32
    return config
