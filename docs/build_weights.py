"""Builds reference/weights.md, and the table of published encoders in README.md, from the records of families.

    python -m docs.build_weights

What was compared with transformers is what `tests/parity/test_families.py` compares.
"""

import re
from collections.abc import Sequence, Set
from pathlib import Path

from bertjax.files import completed
from bertjax.interop import families
from bertjax.interop.families import Family
from tests.parity.test_families import CASES, CLASSES_OF, CONFIGS

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs/reference/weights.md", ROOT / "README.md"
# The task of each class of transformers, by the end of its name.
_TASKS = {
    "Model": "encoder",
    "ForPreTraining": "pretraining",  # next sentence; of ELECTRA, replaced tokens
    "ForMaskedLM": "masked LM",
    "ForCausalLM": "causal LM",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "questions",
    "ForMultipleChoice": "multiple choice",
}
# Most families have all of these.
_FINE_TUNING = "classification, tagging, questions, multiple choice"
_CORNER = "usual tokenizer"  # of the README's table
_HEAD = """# Published weights

`init_from` and `bertjax.load` open the folders of transformers and sentence-transformers of these families, with
safetensors or torch weights. `model_type` in config.json names the family. The run records it in `model.family`, and
exports have the same form. A folder of any class starts any task: heads that it lacks are initialized at random, heads
that the task lacks are ignored.

- **out**: the classes of transformers that open exports, each with the end of its task below.
- **tasks**: the tasks whose runs can be exported, in addition to summarization, whose exports of all families have the
  scorer or the decoder, too. Runs of other tasks train and predict, but are not exported.
- **tokenizer**: that of most published models. A folder may have any tokenizer that bertjax opens.
- **fine-tuning**: classification, tagging, questions, multiple choice.
- **compared**: the heads whose outputs (2e-5) and gradients (1e-5) were compared with those of transformers, with
  random weights, in padded and packed rows, after reading a folder of transformers and before writing one.

"""
_REST = """
| end of the class | task |
| --- | --- |
{ends}
## Other weights

| weights | in | out | tasks |
| --- | --- | --- | --- |
{others}| google-research/bert | checkpoint of TensorFlow with bert_config.json | no | all tasks of BERT |
| PreSumm | .pt file | no | summaries |
| runs of bertjax | a run's folder | as above | all |

## Folders that are refused

- A `model_type` that is in neither table. The error names it and lists the supported ones.
- A folder with code of its own (`auto_map` in config.json), unless its `model_type` is in a table. The code is never
  run, in any case.
- A config.json with a value that the family supports in transformers and bertjax does not, or such a setting of
  sentence-transformers, tokenizers or generation. The error names the key. A warning names keys that are not known.
- Tensors of LoRA adapters, which some folders of jina-embeddings-v3 have besides the weights.
- Missing files, such as a shard that model.safetensors.index.json lists; and torch files that contain code.

`python -m docs.build_weights` writes this page from the code.
"""


def main() -> None:
    """Writes the page and the table of the README."""
    for path, text in ((PAGE, page()), (README, readme())):
        with completed(path) as partial:
            partial.write_text(text)


def page() -> str:
    """Returns the whole page, in Markdown."""
    rows = [
        (
            family.label,
            f"`{family.name}`",
            f"`{family.class_name('Bert')}...`",
            _tasks(family, family.heads.keys() - {"BertModel"}),
            family.tokenizer,
            _tasks(family, {CLASSES_OF[head] for name, head in CASES if CONFIGS[name][0] == family.name}),
        )
        for family in map(families.find, families.ENCODERS)
    ]
    ends = "".join(f"| `{end}` | {task} |\n" for end, task in _TASKS.items())
    columns = ("family", "in: `model_type`", "out", "tasks", "tokenizer", "compared")
    others = "".join(
        f"| {family.label} | `{family.name}` | `{family.architecture}` | pairs of texts |\n"
        for family in (families.module(name).FAMILY for name in families.SEQ2SEQ)
    )
    return _HEAD + _table(columns, rows) + _REST.format(ends=ends, others=others)


def readme() -> str:
    """Returns the README with a new table of encoders, one column for each kind of tokenizer."""
    groups: dict[str, list[Family]] = {}
    for family in map(families.find, families.ENCODERS):
        if family.fixed["direction"] == "both":
            groups.setdefault(family.tokenizer, []).append(family)
    rows = [("in and out", *(", ".join(family.label for family in group) for group in groups.values()))]
    table = _table((_CORNER, *groups), rows)
    return re.sub(rf"\| {_CORNER} .*\n(\|.*\n)*", lambda _: table, README.read_text(), count=1)


def _tasks(family: Family, classes: Set[str]) -> str:
    """Returns the tasks of classes, which have the names of BERT's."""
    ends = {family.class_name(name).removeprefix(family.prefix) for name in classes}
    return ", ".join(task for end, task in _TASKS.items() if end in ends).replace(_FINE_TUNING, "fine-tuning")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))


if __name__ == "__main__":
    main()
