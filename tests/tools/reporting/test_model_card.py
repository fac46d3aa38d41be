"""Model cards: fields that the reader of huggingface_hub parses, facts of the run, and no paths."""

import json
import re

import pytest
import yaml

from bertjax.tools.reporting import model_card
from tests.experiments.commands import tree_of

HOME = "/home/kim/자료"
COMMAND = [
    *("python", f"{HOME}/launch.py", f"--config={HOME}/분류.py:tiny,a", f"--workdir={HOME}/run"),
    *("--config.optimizer.learning_rate=1e-3", f"--config.data.source={HOME}/뉴스.tsv", "--config.mesh.data=1"),
    *("--config.data.labels=('가', '나')", f"--config.data.separator={HOME}"),
]
RECORDS = [
    {"step": 0, "valid/majority_accuracy": 0.5},
    {"step": 2, "valid/accuracy": 0.625, "valid/accuracy_low": 0.5, "valid/accuracy_high": 0.75},
    {"step": 4, "valid/accuracy": 0.875, "valid/f1_가": 0.5, "valid/loss": float("nan"), "train/loss": 1.0},
    {"step": 4, "test/accuracy": 0.75, "test/majority_accuracy": 0.5},
]
TASKS = {
    "classification": ("text-classification", "transformers"),
    "tagging": ("token-classification", "transformers"),
    "question_answering": ("question-answering", "transformers"),
    "multiple_choice": ("multiple-choice", "transformers"),
    "bert_pretraining": ("fill-mask", "transformers"),
    "translation": ("translation", "transformers"),
    "embeddings": ("sentence-similarity", "sentence-transformers"),
    "reranker": ("text-ranking", "sentence-transformers"),
    "bertsum_ext": ("summarization", None),
}


@pytest.fixture
def card_of(tmp_path):
    """A function that writes a run and the card of its export, and returns the card as the hub reads it."""

    def make(
        experiment="classification", checkpoint="4", is_final=True, has_run=True, fields=None, architecture="", **values
    ):
        from huggingface_hub import ModelCard

        sources = {"data.source": f"{HOME}/뉴스.tsv"} if has_run else {}
        config = tree_of(experiment, "" if experiment == "features" else "tiny", {**sources, **values})
        run = tmp_path / "run"
        run.mkdir()
        (run / "config.json").write_text(json.dumps(config))
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
        (run / "environment.json").write_text(json.dumps({"command": COMMAND, "commit": "abc123", "parameters": 7}))
        rows = {"rows": {"train": 51}, "lengths": {"8": 51}, "left_out": {}, "removal_samples": {"min_words": [HOME]}}
        (run / "rows.json").write_text(json.dumps(rows))
        (run / "text_fingerprint").write_text("feed\n")
        path = tmp_path / "내 모델: \U0001f600" / "README.md"
        path.parent.mkdir()
        (path.parent / "tokenizer_config.json").write_text('{"model_max_length": 512, "do_lower_case": true}')
        (path.parent / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        options = {"is_final": is_final, "fields": fields or {}}
        model_card.write(path, run if has_run else None, config, checkpoint if has_run else "", **options)
        card = ModelCard.load(path)
        assert "/home" not in str(card) and str(tmp_path) not in str(card)
        return card

    return make


def blocks(card):
    """The facts of training and of the data."""
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", card.text, re.DOTALL)]


@pytest.mark.parametrize("experiment", TASKS)
def test_the_hub_reads_the_task_and_the_metrics(card_of, experiment):
    card = card_of(experiment)
    assert (card.data.pipeline_tag, card.data.library_name) == TASKS[experiment]
    assert card.data.model_name == "내 모델: \U0001f600"
    valid, test = card.data.eval_results
    assert (valid.task_type, valid.metric_type, valid.metric_value) == (TASKS[experiment][0], "accuracy", 0.875)
    assert (valid.dataset_split, test.dataset_split, test.metric_value) == ("validation", "test", 0.75)
    assert valid.dataset_name == "뉴스.tsv"
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    compile(code, "README.md", "exec")
    assert '"내 모델: \U0001f600"' in code


@pytest.mark.parametrize(
    ("experiment", "architecture", "tag"),
    [
        ("replaced_tokens", "ElectraForPreTraining", None),
        ("replaced_tokens", "BertModel", "feature-extraction"),
        ("bert_pretraining", "ModernBertDecoderForCausalLM", "text-generation"),
        ("bert_pretraining", "ModernBertForMaskedLM", "fill-mask"),
    ],
)
def test_the_task_is_that_of_the_exported_head(card_of, experiment, architecture, tag):
    assert card_of(experiment, architecture=architecture).data.pipeline_tag == tag


@pytest.mark.parametrize(
    ("experiment", "values", "inputs"),
    [
        ("classification", {"data.text_columns": ("a", "b")}, '{"text": "A text.", "text_pair": "Another text."}'),
        ("translation", {"data.source_prefix": (">>de<< ",)}, 'tokenizer(">>de<< A text."'),
    ],
)
def test_inputs_have_the_form_of_training(card_of, experiment, values, inputs):
    assert inputs in card_of(experiment, **values).text


@pytest.mark.parametrize(
    ("checkpoint", "is_final", "expected"),
    [
        ("2", False, [("validation", 0.625)]),
        ("4", True, [("validation", 0.875), ("test", 0.75)]),
        ("2+4", True, [("test", 0.75)]),
        ("2+4", False, []),
    ],
)
def test_metrics_are_those_of_the_checkpoint(card_of, checkpoint, is_final, expected):
    results = card_of(checkpoint=checkpoint, is_final=is_final).data.eval_results or []
    assert [(result.dataset_split, result.metric_value) for result in results] == expected


def test_intervals_are_in_the_metric_and_in_the_table(card_of):
    card = card_of(checkpoint="2")
    assert card.data.eval_results[0].metric_args == {"confidence_level": 0.95, "low": 0.5, "high": 0.75}
    assert "| validation | Accuracy | 0.625 | 0.5 to 0.75 |" in card.text


def test_facts_are_those_of_the_run(card_of):
    settings = {"optimizer.learning_rate": 1e-3, "data.labels": ["가", "나"]}
    source = {"data.source": f"{HOME}/뉴스.tsv, {HOME}/*.tsv,tfds:glue/mrpc"}
    training, data = blocks(card_of(**settings, **source, **{"data.separator": HOME, "mesh.data": 1}))
    assert training == {
        **{"config": "분류.py:tiny,a", "settings": settings, "updates": 4},
        **{"parameters": 7, "commit of bertjax": "abc123"},
    }
    assert data == {
        "files": {"training": ["뉴스.tsv, *.tsv, tfds:glue/mrpc"]},
        "counts": {"rows": {"train": 51}},
        "fingerprint": "feed",
    }


def test_limits(card_of):
    card = card_of(**{"data.seq_len": 64})
    lines = re.findall("^- .*: (.*)$", card.text, re.MULTILINE)
    assert lines == ["512", "64", "the tokenizer lowercases texts"]


@pytest.mark.parametrize(
    ("init_from", "base_model"),
    [
        ("/home/kim/.cache/huggingface/hub/models--klue--bert-base/snapshots/abc", "klue/bert-base"),
        ("/home/kim/models--bert-base-uncased/snapshots/abc", "bert-base-uncased"),
        ("/home/kim/bert", None),
    ],
)
def test_the_base_model_is_that_of_the_hub(card_of, init_from, base_model):
    card = card_of(init_from=init_from)
    assert card.data.base_model == base_model
    assert blocks(card)[0].get("initial weights") == (None if base_model else "bert")


def test_the_user_sets_other_fields(card_of):
    fields = {"language": ["ko", "en"], "license": ["mit"], "datasets": ["klue/klue"], "base_model": ["klue/bert-base"]}
    data = card_of(fields=fields, init_from="/x/models--a--b/snapshots/c").data
    assert (data.language, data.license, data.datasets) == (["ko", "en"], "mit", ["klue/klue"])
    assert (data.base_model, data.eval_results[0].dataset_type) == ("klue/bert-base", "klue/klue")


def test_fields_without_a_source_are_omitted(card_of):
    card = card_of("features", has_run=False, init_from="/home/kim/bert")
    assert card.data.to_dict() == {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    assert "## Metrics" not in card.text and "## Training data" not in card.text
