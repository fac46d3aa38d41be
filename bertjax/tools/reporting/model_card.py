"""Writes the model card of an exported folder, README.md in the form of the Hugging Face Hub.

A field without a source is omitted: facts come from the run's folder, the exported folder and the command line.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bertjax.files import completed
from bertjax.runs import run_folder
from bertjax.tools.reporting import titles
from bertjax.tools.reporting.runs import Run, read_object, read_run

FILE = "README.md"
_SOURCES = {"train": ("source", "target"), "valid": ("valid_source",), "test": ("test_source",)}  # keys of `data`
# Config keys that hold paths. Absolute paths are also recognized by their form, for experiments of other packages.
_PATH_KEY = re.compile(r"init_from$|source$|^data\.(valid_|test_)?target$|_(file|dir)$")
_PATH = re.compile(r"""(^|[\s,:='"\[(])(~|\.{0,2})([/\\]|[A-Za-z]:[/\\])""")
_HUB_CACHE = re.compile(r"models--(.+?)--(.+)")  # a folder in the cache of huggingface_hub


class _Use(NamedTuple):
    """How a library uses the exports of an experiment.

    Attributes:
      tag: the task in the terms of the hub; "" if it has none.
      library: the library that the hub names; "" for exports of which transformers opens only the encoder.
      code: Python code that sets `outputs`. NAME stands for the folder, TEXT for an input.
    """

    tag: str
    library: str
    code: str


def _pipeline(tag: str, arguments: str, call: str) -> _Use:
    code = f'from transformers import pipeline\n\nmodel = pipeline("{tag}", model=NAME{arguments})\noutputs = {call}'
    return _Use(tag, "transformers", code)


def _auto(tag: str, kind: str, inputs: str, outputs: str) -> _Use:
    code = f"""import torch
from transformers import {kind}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(NAME)
model = {kind}.from_pretrained(NAME)
inputs = tokenizer({inputs}, return_tensors="pt")
with torch.no_grad():
{outputs}"""
    return _Use(tag, "transformers", code)


_SENTENCES = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer(NAME)
queries = model.encode_query(["A question?"])
outputs = model.encode_document(["A text.", "Another text."])
print(model.similarity(queries, outputs))"""
_RANKING = """from sentence_transformers import CrossEncoder

model = CrossEncoder(NAME)
outputs = model.predict([("A question?", "A text."), ("A question?", "Another text.")])"""
_ANSWER = """    scores = model(**inputs)
start = scores.start_logits.argmax()
end = scores.end_logits.argmax()
outputs = tokenizer.decode(inputs.input_ids[0, start : end + 1])"""
_CHOICES = "    outputs = model(**{name: array[None] for name, array in inputs.items()}).logits"
_GENERATE = "    tokens = model.generate(**inputs)\noutputs = tokenizer.batch_decode(tokens, skip_special_tokens=True)"
_TOKENS = "    outputs = model(**inputs)"
_SUMMARY = "import bertjax\n\nmodel = bertjax.load(NAME)\noutputs = model.predict([TEXT])"
_USES = {
    "bert_pretraining": _pipeline("fill-mask", "", 'model(f"A {model.tokenizer.mask_token} text.")'),
    "classification": _pipeline("text-classification", "", "model(TEXT, top_k=None, truncation=True)"),
    "tagging": _pipeline("token-classification", ', aggregation_strategy="first"', "model(TEXT)"),
    "question_answering": _auto(
        "question-answering", "AutoModelForQuestionAnswering", '"A question?", "A text with the answer."', _ANSWER
    ),
    "multiple_choice": _auto(
        "multiple-choice", "AutoModelForMultipleChoice", '["A text."] * 2, ["One.", "Two."], padding=True', _CHOICES
    ),
    "translation": _auto("translation", "AutoModelForSeq2SeqLM", "TEXT", _GENERATE),
    "replaced_tokens": _auto("", "AutoModelForPreTraining", "TEXT", _TOKENS),
    "encoder": _auto("feature-extraction", "AutoModel", "TEXT", _TOKENS),
    "embeddings": _Use("sentence-similarity", "sentence-transformers", _SENTENCES),
    "features": _Use("sentence-similarity", "sentence-transformers", _SENTENCES),
    "reranker": _Use("text-ranking", "sentence-transformers", _RANKING),
    "bertsum_ext": _Use("summarization", "", _SUMMARY),
    "bertsum_abs": _Use("summarization", "", _SUMMARY),
}


class _Score(NamedTuple):
    """A metric of a split, with its 95 % interval; None without one."""

    split: str
    metric: str
    value: float
    interval: tuple[float, float] | None


def write(
    folder: Path,
    run: Path | None,
    config: Mapping[str, Any],
    checkpoint: str,
    *,
    is_final: bool,
    fields: Mapping[str, Sequence[str]],
) -> bool:
    """Writes README.md, unless the folder has one. Returns whether it was written.

    Args:
      folder: the exported folder.
      run: the folder of the run; None for weights in `init_from`.
      config: the complete config.
      checkpoint: the step of the exported checkpoint; several steps joined by "+" for a mean.
      is_final: whether this is the checkpoint that the test split was scored with.
      fields: what the user states, by the name of the field of the hub: language, license, base_model or datasets.
    Raises:
      UserError: for a file of the run that cannot be read.
    """
    path = folder / FILE
    if path.exists():
        return False
    name = folder.resolve().name
    sources = {split: _file_names(config["data"], keys) for split, keys in _SOURCES.items()}
    scores = _scores(read_run(run), checkpoint, is_final) if run and (run / "metrics.jsonl").exists() else []
    use = _use(folder, str(config["experiment"]))
    sections = {
        "Use": _code(use.code, name, config["data"]) if use else "",
        "Limits": _limits(folder, config["data"]),
        "Metrics": _table(scores),
        "Training": _training(run, config, checkpoint),
        "Training data": _data(run, sources),
    }
    front = _front_matter(name, use, config, scores, sources, fields)
    text = "".join(f"\n## {title}\n\n{content}\n" for title, content in sections.items() if content)
    with completed(path) as partial:
        partial.write_text(f"---\n{_yaml(front)}---\n\n# {name}\n{text}", encoding="utf-8")
    return True


def _use(folder: Path, experiment: str) -> _Use | None:
    """How the folder is used; None for experiments of other packages."""
    file = folder / "config.json"
    architectures = read_object(file).get("architectures", ()) if file.exists() else ()
    has_head = experiment != "replaced_tokens" or "ElectraForPreTraining" in architectures
    return _USES.get(experiment if has_head else "encoder")


def _front_matter(
    name: str,
    use: _Use | None,
    config: Mapping[str, Any],
    scores: Sequence[_Score],
    sources: Mapping[str, Sequence[str]],
    fields: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Returns the fields of the hub that have a source."""
    stated = {field: values[0] if len(values) == 1 else list(values) for field, values in fields.items()}
    identifier = _HUB_CACHE.search(config.get("init_from") or "")
    front = {
        "library_name": use and use.library,
        "pipeline_tag": use and use.tag,
        "base_model": identifier and f"{identifier[1]}/{identifier[2].split('/')[0]}",
        "metrics": list(dict.fromkeys(score.metric for score in scores)),
        **stated,
        "datasets": list(fields.get("datasets", ())),
    }
    if use and use.tag and scores:
        results = []
        for split in dict.fromkeys(score.split for score in scores):
            dataset = ", ".join(sources[split] or sources["train"])
            kind = front["datasets"][0] if len(front["datasets"]) == 1 else "unknown"  # the hub requires a value
            metrics = [_result(score) for score in scores if score.split == split]
            described = {"type": kind, "name": dataset or kind, "split": titles.SPLITS[split]}
            results.append({"task": {"type": use.tag}, "dataset": described, "metrics": metrics})
        front["model-index"] = [{"name": name, "results": results}]
    return {field: value for field, value in front.items() if value}


def _result(score: _Score) -> dict[str, Any]:
    result = {"type": score.metric, "value": score.value, "name": titles.title(score.metric)}
    if score.interval is None:
        return result
    low, high = score.interval
    return {**result, "args": {"confidence_level": 0.95, "low": low, "high": high}}


def _scores(run: Run, checkpoint: str, is_final: bool) -> list[_Score]:
    """Returns the metrics of the checkpoint. A mean of checkpoints has no validation metrics in the log."""
    records = [record for record in run.records if str(record["step"]) == checkpoint]
    logged = {name: value for record in records for name, value in record.items() if name.startswith("valid/")}
    if is_final:
        logged |= {name: value for name, (_, value) in run.last_metrics().items() if name.startswith("test/")}
    baselines = {f"{split}/{name}" for split in titles.SPLITS for name in run.levels()}
    scores = []
    for name, value in logged.items():
        split, _, metric = name.partition("/")
        is_of_group = metric.count("/") > 1 or metric.startswith("f1_")
        is_interval = metric.endswith(("_low", "_high"))
        if name in baselines or is_of_group or is_interval or not titles.direction(metric) or not math.isfinite(value):
            continue
        interval = logged.get(f"{name}_low"), logged.get(f"{name}_high")
        scores.append(_Score(split, metric, value, None if None in interval else interval))  # type: ignore[arg-type]
    return scores


def _code(code: str, name: str, data: Mapping[str, Any]) -> str:
    """Returns the code block of a folder, for which the working directory contains the folder."""
    prefix = next(iter(data.get("source_prefix") or ()), "")
    text: Any = f"{prefix}A text."
    if len(data.get("text_columns") or ()) == 2:
        text = {"text": text, "text_pair": "Another text."}
    values = {"NAME": name, "TEXT": text}
    block = re.sub("NAME|TEXT", lambda match: json.dumps(values[match[0]], ensure_ascii=False), code)
    return f"```python\n{block}\nprint(outputs)\n```"


def _limits(folder: Path, data: Mapping[str, Any]) -> str:
    """Returns the maximum length of inputs, that of training rows, and the casing."""
    keys = {"sentence_bert_config.json": "max_seq_length", "tokenizer_config.json": "model_max_length"}
    lengths = [read_object(folder / file).get(key) for file, key in keys.items() if (folder / file).exists()]
    length = next(filter(None, lengths), None)
    rows = data.get("seq_len")
    lines = [f"- Inputs have at most {length:,} tokens, special tokens included."] if length else []
    lines += [f"- Training rows had at most {rows:,} tokens."] if rows and (data.get("source") or "") else []
    lines += ["- The tokenizer lowercases texts."] if data.get("lowercase") else []
    return "\n".join(lines)


def _table(scores: Iterable[_Score]) -> str:
    rows = [
        f"| {titles.SPLITS[score.split]} | {titles.title(score.metric)} | {score.value:.4g} | "
        + (f"{score.interval[0]:.4g} to {score.interval[1]:.4g} |" if score.interval else "|")
        for score in scores
    ]
    return "\n".join(["| split | metric | value | 95 % interval |", "| --- | --- | --- | --- |", *rows]) if rows else ""


def _training(run: Path | None, config: Mapping[str, Any], checkpoint: str) -> str:
    """Returns the settings of the command that started the run, without paths, and the commit of bertjax."""
    environment = read_object(run / "environment.json") if run and (run / "environment.json").exists() else {}
    commit = environment.get("commit", "") if run else run_folder.source_commit(Path(__file__))
    words = [re.fullmatch(r"--?config(\.[^=]+)?(=.*)?", word, re.DOTALL) for word in environment.get("command", ())]
    lasting = run_folder.lasting(config)
    keys = [word[1].removeprefix(".") for word in words if word and word[1]]
    settings = {key: lasting[key] for key in dict.fromkeys(keys) if key in lasting and not _has_path(key, lasting[key])}
    files = [Path(word[2].removeprefix("=")).name for word in words if word and word[2] and not word[1]]
    weights = config.get("init_from") or ""
    facts = {
        "initial weights": Path(weights).name if not _HUB_CACHE.search(weights) else "",
        "config": "".join(files),
        "updates": checkpoint,
        "settings": settings,
        "bertjax": commit and f"commit {commit}",
    }
    facts = {name: value for name, value in facts.items() if value}
    return f"```yaml\n{_yaml(facts)}```" if facts else ""


def _data(run: Path | None, sources: Mapping[str, Sequence[str]]) -> str:
    """Returns the names of the files, the counts of rows, and the fingerprint of the prepared text."""
    if run is None:
        return ""
    counts = read_object(run / "rows.json") if (run / "rows.json").exists() else {}
    fingerprint = run / "text_fingerprint"
    facts = {
        "files": {titles.SPLITS[split]: list(names) for split, names in sources.items() if names},
        **{name: value for name, value in counts.items() if name != "lengths"},
        "fingerprint": fingerprint.read_text().strip() if fingerprint.exists() else "",
    }
    facts = {name: value for name, value in facts.items() if value not in ("", {}, [])}
    return f"```yaml\n{_yaml(facts)}```" if facts else ""


def _file_names(data: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Returns the names of the files or data sets in some keys of `data`, without their folders."""
    names = [name for key in keys for name in str(data.get(key) or "").split(",") if name]
    return [name if name.startswith("tfds:") else Path(name).name for name in names]


def _has_path(key: str, value: Any) -> bool:
    return bool(_PATH_KEY.search(key) or _PATH.search(str(value)))


def _yaml(values: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(values), allow_unicode=True, sort_keys=False, width=100))
