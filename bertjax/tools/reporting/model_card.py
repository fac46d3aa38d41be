"""Writes README.md of an exported folder, a model card in the form of the Hugging Face Hub.

Facts come from the run, the exported folder and the command line. A field without a source is omitted.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bertjax.files import completed
from bertjax.runs import run_folder
from bertjax.tools.reporting import configs, titles
from bertjax.tools.reporting.runs import Run, read_object, read_run

_SOURCES = {"train": ("source", "target"), "valid": ("valid_source",), "test": ("test_source",)}  # keys of `data`
# Settings that hold paths: by key, or by the form of an absolute path, because other packages have keys of their own.
_PATH_KEYS = re.compile(r"(^|\.)init_from$|^data\.((valid_|test_)?(source|target)|\w+_(file|dir))$")
_PATHS = re.compile(r"""(^|[\s,:='"\[(])(~|\.{0,2})/""")
_HUB_CACHE = re.compile(r"/models--([^/]+)/")  # in the path of a folder that huggingface_hub downloaded
# Files of exports and their keys of the maximum length, the first of which applies.
_LENGTHS = {
    "sentence_bert_config.json": "max_seq_length",
    "tokenizer_config.json": "model_max_length",
    "config.json": "max_position_embeddings",
}


class _Use(NamedTuple):
    """How a library uses an export: the hub's names of task and library, and code with the placeholders NAME and TEXT.

    The library is "" if transformers opens only the encoder.
    """

    tag: str
    library: str
    code: str


def _pipeline(tag: str, options: str, call: str) -> _Use:
    code = f'from transformers import pipeline\n\nmodel = pipeline("{tag}", model=NAME{options})\noutputs = {call}'
    return _Use(tag, "transformers", code)


def _auto(tag: str, name: str, inputs: str, outputs: str) -> _Use:
    code = f"""import torch
from transformers import {name}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(NAME)
model = {name}.from_pretrained(NAME)
inputs = tokenizer({inputs}, return_tensors="pt")
with torch.no_grad():
    {outputs}"""
    return _Use(tag, "transformers", code)


_VECTORS = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer(NAME)
outputs = model.encode(["A text.", "Another text."])
print(model.similarity(outputs, outputs))"""
_SEARCH = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer(NAME)
outputs = model.encode_document(["A text.", "Another text."])
print(model.similarity(model.encode_query("A question?"), outputs))"""
_RANKING = """from sentence_transformers import CrossEncoder

model = CrossEncoder(NAME)
outputs = model.predict([("A question?", "A text."), ("A question?", "Another text.")])"""
_ANSWER = """scores = model(**inputs)
start = scores.start_logits.argmax()
end = start + scores.end_logits[0, start:].argmax()
outputs = tokenizer.decode(inputs.input_ids[0, start : end + 1])"""
_LOGITS = "outputs = model(**{name: ids[None] for name, ids in inputs.items()}).logits"
_GENERATED = "outputs = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)"
_SENTENCES = _Use("sentence-similarity", "sentence-transformers", _VECTORS)
_SUMMARIES = _Use("summarization", "", "import bertjax\n\nmodel = bertjax.load(NAME)\noutputs = model.predict([TEXT])")
_QUESTION = '"A question?", "A text with the answer."'
_USES = {
    "bert_pretraining": _pipeline("fill-mask", "", 'model(f"A {model.tokenizer.mask_token} text.")'),
    "causal_lm": _pipeline("text-generation", "", "model(TEXT)"),
    "classification": _pipeline("text-classification", "", "model(TEXT, top_k=None, truncation=True)"),
    "tagging": _pipeline("token-classification", ', aggregation_strategy="first"', "model(TEXT)"),
    "question_answering": _auto("question-answering", "AutoModelForQuestionAnswering", _QUESTION, _ANSWER),
    "multiple_choice": _auto(
        "multiple-choice", "AutoModelForMultipleChoice", '["A text."] * 2, ["One.", "Two."], padding=True', _LOGITS
    ),
    "translation": _auto("translation", "AutoModelForSeq2SeqLM", "TEXT", _GENERATED),
    "replaced_tokens": _auto("", "AutoModelForPreTraining", "TEXT", "outputs = model(**inputs).logits"),
    "encoder": _auto("feature-extraction", "AutoModel", "TEXT", "outputs = model(**inputs).last_hidden_state"),
    "embeddings": _SENTENCES,
    "features": _SENTENCES,
    "search": _Use("sentence-similarity", "sentence-transformers", _SEARCH),
    "reranker": _Use("text-ranking", "sentence-transformers", _RANKING),
    "bertsum_ext": _SUMMARIES,
    "bertsum_abs": _SUMMARIES,
}


def write(
    path: Path,
    run: Path | None,
    config: Mapping[str, Any],
    checkpoint: str,
    *,
    is_final: bool,
    fields: Mapping[str, Sequence[str]],
) -> None:
    """Writes a model card.

    Args:
      path: the file in the exported folder.
      run: the folder of the run; None for weights in `init_from`.
      config: the config of the run, or the complete config for weights in `init_from`.
      checkpoint: the step of the exported checkpoint; several steps joined by "+" for a mean.
      is_final: whether this is the checkpoint that the test split was scored with.
      fields: the values of the hub's fields that the user sets: language, license, base_model and datasets.
    Raises:
      UserError: for a damaged file of the run.
    """
    folder = path.parent
    name = folder.resolve().name
    data = config["data"]
    use = _use(folder, str(config["experiment"]))
    files = {split: [_file_name(data[key]) for key in keys if data.get(key)] for split, keys in _SOURCES.items()}
    files["train"] += [_file_name(source) for _, source, *_ in data.get("mixture") or ()]
    results = _results(read_run(run), checkpoint, is_final) if run and (run / "metrics.jsonl").exists() else {}
    front = _front_matter(use, config, fields)
    front["metrics"] = list(dict.fromkeys(result["type"] for metrics in results.values() for result in metrics))
    if use and use.tag and results:
        datasets = front["datasets"]
        kind = datasets[0] if len(datasets) == 1 else "unknown"  # the hub requires a value
        entries = []
        for split, metrics in results.items():
            names = ", ".join(files[split] or files["train"]) or kind
            dataset = {"type": kind, "name": names, "split": titles.SPLITS[split]}
            entries.append({"task": {"type": use.tag}, "dataset": dataset, "metrics": metrics})
        front["model-index"] = [{"name": name, "results": entries}]
    sections = {
        "Use": _code(use.code, name, data) if use else "",
        "Limits": _limits(folder, data),
        "Metrics": _table(results),
        "Training": _block(_training(run, config, checkpoint)),
        "Training data": _block(_data(run, files)) if run else "",
    }
    text = "".join(f"\n## {title}\n\n{content}\n" for title, content in sections.items() if content)
    with completed(path) as partial:
        partial.write_text(f"---\n{_yaml(front)}---\n\n# {name}\n{text}", encoding="utf-8")


def _use(folder: Path, experiment: str) -> _Use | None:
    """How the folder is used; None for an experiment of another package."""
    architecture = next(iter(_json(folder / "config.json").get("architectures", ())), "")
    prompts = _json(folder / "config_sentence_transformers.json").get("prompts", {})
    if architecture.endswith("ForCausalLM"):
        experiment = "causal_lm"
    elif experiment in ("replaced_tokens", "bert_pretraining") and architecture.endswith("Model"):
        experiment = "encoder"
    elif prompts.get("query") or prompts.get("document"):
        experiment = "search"
    return _USES.get(experiment)


def _front_matter(use: _Use | None, config: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the fields of the front matter, except those of metrics."""
    downloaded = _HUB_CACHE.search(config.get("init_from") or "")
    return {
        "library_name": use and use.library,
        "pipeline_tag": use and use.tag,
        "base_model": downloaded and downloaded[1].replace("--", "/", 1),
        **{field: values[0] if len(values) == 1 else [*values] for field, values in fields.items()},
        "datasets": [*fields.get("datasets", ())],
    }


def _results(run: Run, checkpoint: str, is_final: bool) -> dict[str, list[dict[str, Any]]]:
    """Returns the metrics of the checkpoint by split, in the hub's form, without baselines and metrics of groups.

    Validation metrics are those of its step; the log has none of a mean of checkpoints.
    """
    records = [record for record in run.records if str(record["step"]) == checkpoint]
    logged = {name: value for record in records for name, value in record.items() if name.startswith("valid/")}
    if is_final:
        logged |= {name: value for name, (_, value) in run.last_metrics().items() if name.startswith("test/")}
    results: dict[str, list[dict[str, Any]]] = {}
    for name, value in logged.items():
        split, _, metric = name.partition("/")
        is_detail = metric.startswith("f1_") or metric.count("/") > 1 or metric.endswith(("_low", "_high"))
        if is_detail or metric in run.levels() or not titles.direction(metric) or not math.isfinite(value):
            continue
        result = {"type": metric, "value": value, "name": titles.title(metric)}
        if f"{name}_low" in logged and f"{name}_high" in logged:
            interval = {end: logged[f"{name}_{end}"] for end in ("low", "high")}
            result["args"] = {"confidence_level": 0.95, **interval}
        results.setdefault(split, []).append(result)
    return results


def _code(code: str, name: str, data: Mapping[str, Any]) -> str:
    """Returns the code block for a working directory that contains the folder."""
    text: Any = next(iter(data.get("source_prefix") or ()), "") + "A text."
    if len(data.get("text_columns") or ()) == 2:
        text = {"text": text, "text_pair": "Another text."}
    values = {"NAME": name, "TEXT": text}
    block = re.sub("NAME|TEXT", lambda match: json.dumps(values[match[0]], ensure_ascii=False), code)
    return f"```python\n{block}\nprint(outputs)\n```"


def _limits(folder: Path, data: Mapping[str, Any]) -> str:
    lengths = [_json(folder / file).get(key) for file, key in _LENGTHS.items()]
    limits = {
        "Maximum length of inputs, special tokens included": next(filter(None, lengths), None),
        "Maximum length of training rows": data.get("source") and data.get("seq_len"),
        "Lowercase": _json(folder / "tokenizer_config.json").get("do_lower_case") and "the tokenizer lowercases texts",
    }
    return "\n".join(f"- {what}: {value}" for what, value in limits.items() if value)


def _table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = ["| split | metric | value | 95 % interval |", "| --- | --- | --- | --- |"]
    for split, metrics in results.items():
        for result in metrics:
            interval = "{low:.4g} to {high:.4g}".format(**result["args"]) if "args" in result else ""
            lines.append(f"| {titles.SPLITS[split]} | {result['name']} | {result['value']:.4g} | {interval} |")
    return "\n".join(lines) if results else ""


def _training(run: Path | None, config: Mapping[str, Any], checkpoint: str) -> dict[str, Any]:
    """Returns the settings of the command that started the run, without paths, and what it trained."""
    environment = _json(run / "environment.json") if run else {}
    flags = [re.fullmatch(r"--?config(\.[^=]+)?(=.*)?", word, re.DOTALL) for word in environment.get("command", ())]
    keys = configs.set_keys(environment.get("command", ()))
    settings = {
        key: value
        for key, value in run_folder.lasting(config).items()
        if key in keys and not (_PATH_KEYS.search(key) or _PATHS.search(json.dumps(value)))
    }
    weights = config.get("init_from") or ""
    commit = environment.get("commit") if run else run_folder.source_commit(Path(__file__))
    return {
        "initial weights": "" if _HUB_CACHE.search(weights) else Path(weights).name,
        "config": "".join(Path(flag[2][1:]).name for flag in flags if flag and flag[2] and not flag[1]),
        "settings": settings,
        "updates": int(checkpoint) if checkpoint.isdecimal() else checkpoint,
        "parameters": environment.get("parameters"),
        "commit of bertjax": commit,
    }


def _data(run: Path, files: Mapping[str, list[str]]) -> dict[str, Any]:
    """Returns the names of the files, the counts of preparation, and the fingerprint of the prepared text."""
    fingerprint = run / "text_fingerprint"
    counts = _json(run / "rows.json").items()
    return {
        "files": {titles.SPLITS[split]: names for split, names in files.items() if names},
        "counts": {name: value for name, value in counts if value != {} and name not in ("lengths", "removal_samples")},
        "fingerprint": fingerprint.read_text().strip() if fingerprint.exists() else "",
    }


def _file_name(source: str) -> str:
    """Returns the names of files, which commas separate, without folders. Data sets of TFDS have no folder."""
    parts = map(str.strip, source.split(","))
    return ", ".join(part if part.startswith("tfds:") else Path(part).name for part in parts)


def _json(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _block(facts: Mapping[str, Any]) -> str:
    content = _yaml(facts)
    return f"```yaml\n{content}```" if content else ""


def _yaml(values: Mapping[str, Any]) -> str:
    """Returns the values that are not empty."""
    lines = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    return str(yaml.safe_dump(lines, allow_unicode=True, sort_keys=False, width=100)) if lines else ""
