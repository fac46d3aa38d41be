"""Builds reference/keys.md: the keys of each config file with default, published value, allowed values and meaning.

    python -m docs.build_keys

`bertjax.keys` reads them from the code.
"""

import functools
import importlib
import re
import types
import typing
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from bertjax import keys
from bertjax.files import completed
from bertjax.keys import Key

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/keys.md"
_ALIASES = ("text_to_text",)  # whose keys are those of another config
CONFIGS = tuple(
    path.stem
    for path in sorted((ROOT / "configs").glob("*.py"))
    if "\ndef get_config(" in path.read_text() and path.stem not in _ALIASES
)
_HEAD = """# Config keys

Every key is a flag: `--config.data.seq_len=128`. A key that does not exist, or a value of the wrong type, is an error
before anything starts. `python launch.py --config=FILE --keys=PATTERN` prints the keys of one file.

An entry has the key, its default without a variant, the constraint on the key alone, and its meaning. A default
without names of experiments is that of all others; a meaning without names is that of all, or of those in the heading
above. An entry without a meaning has that of the entry before it. Numbers of tokens include special tokens. *Unset*:
`init_from`, the size or the data determine the value, unless the meaning says otherwise. *Published*: the value in the
paper or its code, where the default is another one. Names of several experiments:

{groups}

Sources of published values:

{sources}

`python -m docs.build_keys` writes this page from the code.
"""
# Names of several configs. A list of configs is written with the largest of these that it contains.
_GROUPS = {
    "encoders": set(CONFIGS) - {"translation", "denoising"},
    "training": set(CONFIGS) - {"features", "minimal_pairs", "retrieval"},
    "BERT": set(CONFIGS) - {"embeddings", "features", "minimal_pairs", "reranker", "retrieval", "translation"},
    "fine-tuning": {"classification", "multiple_choice", "question_answering", "tagging"},
    "vectors": {"embeddings", "features", "retrieval"},
    "ranking": {"embeddings", "reranker"},
    "pretraining": {"bert_pretraining", "denoising", "replaced_tokens"},
    "BERT pretraining": {"bert_pretraining", "replaced_tokens"},
    "encoder-decoders": {"denoising", "translation"},
    "summarization": {"bertsum_abs", "bertsum_ext"},
}
# So many keys with the same experiments have a heading.
_SEVERAL = 3
# Words of constraints, and what the page has instead.
_SYMBOLS = {" and": ",", "at least": "≥", "at most": "≤", "above": ">", "below": "<"}


class Published(typing.NamedTuple):
    """Where published values of a config come from.

    Attributes:
      source: the paper or code.
      variant: the variant of the config that has them.
      keys: a regular expression for the keys that the source defines.
      others: the values that no variant has.
    """

    source: str
    variant: str
    keys: str
    others: Mapping[str, Any] = types.MappingProxyType({})


_BERT = (
    r"model\.(num_layers|hidden_size|num_heads|intermediate_size|max_positions|type_vocab_size|activation|norm|norm_eps"
    r"|direction|dropout|attention_dropout|classifier_dropout|initializer|initializer_range)"
)
_ADAM = r"optimizer\.(name|learning_rate|schedule|warmup_steps|weight_decay|beta1|beta2|eps|bias_correction|clip_norm)"
_FINE_TUNING = f"{_BERT}|{_ADAM}|batch_size|num_epochs|warmup_fraction"
_DEVLIN = "Devlin et al. 2019 and google-research/bert, BERT-Base"
# google-research/bert never corrects Adam's bias.
_UNCORRECTED = {"optimizer.bias_correction": False}
_PUBLISHED = {
    "bert_pretraining": Published(
        f"{_DEVLIN}, first phase",
        "base",
        rf"{_BERT}|{_ADAM}|masking\..*|batch_size|num_steps|objective"
        r"|data\.(next_sentence|random_next_prob|short_seq_prob|vocab_size)",
        {"data.seq_len": 128, "masking.mode": "static"},
    ),
    "replaced_tokens": Published(
        "Clark et al. 2020 and google-research/electra, Base",
        "base",
        rf"{_BERT}|{_ADAM}|masking\.(rate|.*_fraction)|batch_size|num_steps|generator\..*|discriminator_weight",
        {"data.seq_len": 512},
    ),
    "denoising": Published(
        "Lewis et al. 2020, BART-Base",
        "base,bart",
        r"noise\..*|objective|num_steps|batch_size|data\.seq_len"
        r"|model\.(num_layers|num_decoder_layers|hidden_size|num_heads|intermediate_size|activation|dropout)",
    ),
    "classification": Published(_DEVLIN, "base", _FINE_TUNING, _UNCORRECTED),
    "multiple_choice": Published(f"{_DEVLIN} on SWAG", "base,swag", _FINE_TUNING, _UNCORRECTED),
    "question_answering": Published(
        f"{_DEVLIN} on SQuAD 1.1",
        "base,squad",
        rf"{_FINE_TUNING}|data\.(doc_stride|max_query_length|max_answer_length|n_best|null_threshold)",
        {**_UNCORRECTED, "data.seq_len": 384},
    ),
    "tagging": Published(_DEVLIN, "base", _FINE_TUNING, _UNCORRECTED),
    "bertsum_ext": Published(
        "PreSumm's code (Liu and Lapata 2019), BERT-Base",
        "base,transformer,presumm",
        rf"{_BERT}|{_ADAM}|model\.scorer.*|num_steps|loss_reduction|positions|rouge\.(flavor|stem)"
        r"|selection\.(block_ngrams|min_words|num_sentences|order)"
        r"|data\.(limits\..*|long_articles|oracle\.(counts|first_sentences|letters|method|ngrams|num_sentences)|words)",
    ),
    "bertsum_abs": Published(
        "PreSumm's code (Liu and Lapata 2019), BERT-Base on CNN/Daily Mail",
        "base,cnndm",
        rf"{_BERT}|{_ADAM}|optimizer\.groups|model\.decoder.*|num_steps|positions|copy_embeddings|target_len"
        r"|label_smoothing|smoothing_denominator"
        r"|decoding\.(alpha|block_ngrams|length_penalty|max_extra|min_extra|num_beams|stopping)|rouge\.(flavor|stem)",
    ),
    "translation": Published(
        "Vaswani et al. 2017, base",
        "base",
        r"model\.(num_layers|num_decoder_layers|hidden_size|num_heads|intermediate_size|activation|norm|dropout"
        r"|positions|share_embeddings|tie_output|scale_embeddings)"
        r"|optimizer\.(learning_rate|schedule|warmup_steps|beta1|beta2|eps)|num_steps|label_smoothing|checkpoint\.final"
        r"|decoding\.(num_beams|alpha|length_penalty|max_extra)",
    ),
}


def main() -> None:
    """Writes the page."""
    with completed(PAGE) as partial:
        partial.write_text(page())


def page() -> str:
    """Returns the whole page, in Markdown: a section for each part of the configs, with an entry for each key."""
    parts: dict[str, dict[str, dict[str, Key]]] = defaultdict(dict)
    for name, of_config in _by_name().items():
        parts[name.partition(".")[0] if "." in name else "Top level"][name] = of_config
    sections = [f"\n## {part}\n\n{_section(parts[part])}" for part in sorted(parts)]
    groups = "\n".join(f"- {name}: {_members(configs)}" for name, configs in _GROUPS.items())
    sources = "\n".join(f"- {name}: {published.source}" for name, published in _PUBLISHED.items())
    return _HEAD.format(groups=groups, sources=sources) + "".join(sections)


def _by_name() -> dict[str, dict[str, Key]]:
    """Returns the key of each config that has it, for each name."""
    by_name: dict[str, dict[str, Key]] = defaultdict(dict)
    for config in CONFIGS:
        for key in keys.of_file(config):
            by_name[key.name][config] = key
    return dict(sorted(by_name.items()))


def _section(by_name: Mapping[str, Mapping[str, Key]]) -> str:
    """Returns the entries of a section. Keys that the same experiments have share a heading if there are several."""
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, of_config in by_name.items():
        has_heading = sum(other.keys() == of_config.keys() for other in by_name.values()) >= _SEVERAL
        groups[frozenset(of_config if has_heading else CONFIGS)].append(name)
    text = ""
    for configs, names in sorted(groups.items(), key=lambda group: (-len(group[0]), _names(group[0]))):
        text += f"### {_names(configs)}\n\n" if len(configs) < len(CONFIGS) else ""
        before = ""
        for name in names:
            head, meaning = _entry(name, by_name[name], configs)
            text += head + (meaning if meaning != before else "") + "\n\n"
            before = meaning
    return text


def _entry(name: str, of_config: Mapping[str, Key], common: Set[str]) -> tuple[str, str]:
    """Returns the entry of a key: its name and defaults; its meanings, and published values that are not defaults.

    A meaning of all experiments in `common` is without their names.
    """
    are_names = all(key.default == config for config, key in of_config.items())
    defaults = {c: "each its own" if are_names else _value(key.default) for c, key in of_config.items()}
    limits = {_limit(key) for key in of_config.values()}
    limit = limits.pop() if len(limits) == 1 else ""
    meanings = {
        c: f"{key.meaning} *{_limit(key)}*" if limits and _limit(key) else key.meaning for c, key in of_config.items()
    }
    head = f'<a id="{name}"></a>**`{name}`**: {_listed(defaults, of_config)}{limit and f"; *{limit}*"}'
    lines = []
    for meaning, configs in _inverse(meanings).items():
        lines.append(meaning if set(configs) == common else f"{_names(configs)}: {meaning}")
    published = {config: _published(config).get(name) for config in of_config}
    others = {c: _value(value) for c, value in published.items() if value not in (None, of_config[c].default)}
    if others:
        lines.append(f"Published: {_listed(others, of_config)}.")
    return head, "".join(f"  \n{line}" for line in lines)


def _limit(key: Key) -> str:
    """Returns the constraint on a key, with symbols; "" if its meaning already names the allowed values."""
    values = re.sub(r"^(each )?one of ", "", key.allowed).split(", ")
    if all(f'"{value}"' in key.meaning for value in values):
        return ""
    return re.sub("|".join(_SYMBOLS), lambda words: _SYMBOLS[words[0]], key.allowed)


def _listed(values: Mapping[str, str], configs: Collection[str]) -> str:
    """Returns values with the names of the configs that have them.

    Without names for the value of all `configs`, and for the most frequent one if each of these has a value.
    """
    (first, of_first), *others = _inverse(values).items()
    is_unnamed = len(values) == len(configs) and (len(of_first) > 1 or not others)
    named = others if is_unnamed else [(first, of_first), *others]
    return "; ".join([first] * is_unnamed + [f"{value} ({_names(names)})" for value, names in named])


def _inverse(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the configs of each value, the most frequent value first."""
    configs: dict[str, list[str]] = defaultdict(list)
    for config, value in values.items():
        configs[value].append(config)
    return dict(sorted(configs.items(), key=lambda item: -len(item[1])))


def _names(configs: Collection[str]) -> str:
    """Returns the names of configs, with those of groups, the largest first."""
    rest, names = set(configs), []
    for group, members in _GROUPS.items():
        if members <= rest:
            names.append(group)
            rest -= members
    return ", ".join([*names, *sorted(rest)])


def _members(configs: Set[str]) -> str:
    """Returns the names of the configs of a group, or of the fewer others."""
    others = set(CONFIGS) - configs
    return ", ".join(sorted(configs)) if len(configs) < len(others) else f"all but {', '.join(sorted(others))}"


@functools.cache
def _published(name: str) -> dict[str, Any]:
    """The published values of a config's keys."""
    if name not in _PUBLISHED:
        return {}
    source = _PUBLISHED[name]
    config = importlib.import_module(f"bertjax.configs.{name}").get_config(source.variant)
    values = dict(_leaves(config.to_dict(), ""))
    return {key: value for key, value in values.items() if re.fullmatch(source.keys, key)} | dict(source.others)


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _value(value: Any) -> str:
    return "unset" if value is None else f"`{value!r}`"


if __name__ == "__main__":
    main()
