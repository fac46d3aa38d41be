"""Builds reference/keys.md: the keys of each config file with default, published value, allowed values and meaning.

    python -m docs.build_keys

`bertjax.keys` reads them from the code.
"""

import importlib
import itertools
import re
import types
import typing
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax import keys
from bertjax.files import completed
from bertjax.keys import Key

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/keys.md"
CONFIGS = tuple(
    path.stem for path in sorted((ROOT / "configs").glob("*.py")) if "\ndef get_config(" in path.read_text()
)
# A key is common if this many configs describe it in the same words.
_COMMON = 5
_HEAD = """# Config keys

Every key is a flag: `--config.data.seq_len=128`. A key that does not exist, or a value of the wrong type, is an error
before anything starts.

- **Default**: the value without a variant. Empty: `init_from`, the size or the data determine the value, unless the
  meaning says otherwise.
- **Published**: the value in the paper or its code. Empty: neither states one, or the key is ours.
- **Allowed**: the constraint on the key alone. Further constraints depend on several keys.

`python -m docs.build_keys` writes this page from the code.
"""


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
    """Returns the whole page, in Markdown: the common keys, then those of each config."""
    of_configs = {name: keys.of_file(name) for name in CONFIGS}
    common = _common(of_configs)
    sections = "".join(_section(name, found, common) for name, found in of_configs.items())
    rows = [(_code(key.name), _value(key.default), key.allowed, key.meaning) for key in common.values()]
    return f"{_HEAD}\n## Common keys\n\n{_table(('key', 'default', 'allowed', 'meaning'), rows)}{sections}"


def _common(of_configs: Mapping[str, list[Key]]) -> dict[str, Key]:
    """The keys that several configs describe in the same words, with their most frequent default."""
    described = defaultdict(list)
    for key in itertools.chain(*of_configs.values()):
        described[key.name, key.allowed, key.meaning].append(key.default)
    return {
        name: Key(name, _most_frequent(defaults), allowed, meaning)
        for (name, allowed, meaning), defaults in sorted(described.items())
        if len(defaults) >= _COMMON
    }


def _most_frequent(defaults: list[Any]) -> Any:
    """The most frequent value; None if all differ."""
    found = max(defaults, key=defaults.count)
    return found if defaults.count(found) > 1 else None


def _section(name: str, found: Sequence[Key], common: Mapping[str, Key]) -> str:
    """The section of a config: its own keys, and common ones with another default or a published value."""
    rows, of_papers = [], _published(name)
    for key in found:
        is_common = key.name in common and common[key.name][2:] == key[2:]
        published = of_papers.get(key.name)
        if not is_common or published is not None or key.default != common[key.name].default:
            described = ("", "[common](#common-keys)") if is_common else key[2:]
            rows.append((_code(key.name), _value(key.default), _value(published), *described))
    lacking = [_code(key) for key in sorted(common.keys() - {key.name for key in found})]
    notes = [f"Published: {_PUBLISHED[name].source}."] if name in _PUBLISHED else []
    notes += [f"Common keys that it lacks: {', '.join(lacking)}."] if lacking else []
    text = "".join(f"{note}\n\n" for note in notes)
    return f"\n## configs/{name}.py\n\n{text}{_table(('key', 'default', 'published', 'allowed', 'meaning'), rows)}"


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


def _code(name: str) -> str:
    return f"`{name}`"


def _value(value: Any) -> str:
    return "" if value is None else f"`{value!r}`"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


if __name__ == "__main__":
    main()
