"""Trains an encoder-decoder on pairs of texts: summaries, translations or any others.

    python launch.py --config=configs/text_to_text.py:summarization --workdir=runs/summaries \\
        --config.init_from=bart-base --config.data.source=train.jsonl --config.data.valid_source=valid.jsonl
    python launch.py --config=configs/text_to_text.py:tiny,summarization --workdir=runs/tiny ...
    python launch.py --config=configs/text_to_text.py --workdir=runs/answers --config.init_from=t5-small \\
        --config.data.source=train.tsv --config.data.source_column=question --config.data.target_column=answer \\
        --config.data.source_prefix="('answer: ',)"

The variant, after the colon, is a model and a task, separated by a comma:

- Models: tiny, base, big, rnn, as in configs/translation.py, whose keys these are. Without a model, `init_from`
  determines it, and its folder how to decode.
- Tasks: summarization reads the columns `article` and `summary`, and truncates both to 1,024 and 128 tokens. From a
  folder with settings for summaries (`task_specific_params`), as T5 and BART, `task=summarization` takes these and the
  prefix of sources.
  translation, and without a task any other pairs: as configs/translation.py.
- Metrics of summaries: ROUGE with 95 % intervals (`rouge.flavor`); rougeL takes a summary as one sequence of words,
  rougeLsum its sentences, which are split at line breaks or, without any, by rules.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts, translation

VARIANTS = (translation.VARIANTS[0], ("translation", "summarization"))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `summarization` or `tiny,summarization`."""
    model, task = parts.chosen(variant, VARIANTS)
    config = translation.get_config(model)
    config.data.source = ""
    if task == "summarization":
        _summarize(config, is_small=model in ("tiny", "rnn"))
    return config


def _summarize(config: ConfigDict, is_small: bool) -> None:
    config.metrics = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    config.checkpoint.best_metric = "valid/rougeLsum"
    config.data.source_column = "article"
    config.data.target_column = "summary"
    config.data.seq_len = 512 if is_small else 1024
    config.data.target_len = 128
    config.data.on_long_pair = "truncate"
    config.data.on_long_line = "truncate"
    config.decoding.length_penalty = "length"
    config.decoding.alpha = 1.0
    config.decoding.block_ngrams = 3
    config.decoding.max_ratio = 0.0
    config.decoding.max_extra = 128
    config.decoding.max_length = 128
