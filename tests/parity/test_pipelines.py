"""Pipelines of transformers on exports, compared with our predictions (slow)."""

import json

import numpy as np
import pytest

import bertjax
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from tests import published, tiny
from tests.parity.test_families import MASKED, PLAIN, their_model, write_tokenizer

pytestmark = pytest.mark.slow

FAMILIES = ("bert", "distilbert", "modernbert", "roberta", "mpnet")
WORDS = "the bird sees the cat"  # each is one token
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
# For each strategy, texts on which the words of the pipeline are ours: for "simple", every word is one token.
ENTITIES = {
    "first": [
        "the bird\r\nsees 😀 the cats",
        "  cafe\u0301 the dogging, Jane's dogs.",
        "😀Jane sees the cafe\u0301\u0301s -bird",
        "the\u00a0dog\tsees\u3000e\u0301e the 👨\u200d👩\u200d👧 cat",
    ],
    "simple": ["the bird\r\nsees 😀 the cat", " the bird,Jane \u3000the the bird bird e\u0301 "],
}


def opened(name, head, folder, **changes):
    """A folder of a random model, with changes of its config, as our model, and its export."""
    import transformers

    theirs, ours = folder / "theirs", folder / "ours"
    if name in ("bert", "distilbert"):
        published.TOKENIZER.save(theirs, 40, token_types=name == "bert")
    else:
        write_tokenizer(theirs, [*PLAIN, WORDS])
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs)
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "cls", "sep")}
    their_model(name, head, vocab_size=len(tokenizer), **ids, **changes).save_pretrained(theirs)
    model = bertjax.load(theirs)
    model.export(ours)
    return model, ours


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("task", ["fill-mask", "text-classification"])
def test_pipelines_on_an_export_predict_the_same(name, task, tmp_path):
    import transformers

    heads = {"fill-mask": "words", "text-classification": "classes"}
    with tiny.few_devices(1):
        model, folder = opened(name, heads[task], tmp_path)
        pipeline = transformers.pipeline(task, model=str(folder), tokenizer=str(folder))
        if task == "fill-mask":
            for record, expected in zip(model.predict(MASKED), pipeline(MASKED), strict=True):
                (mask,) = record["masks"]
                assert mask["tokens"] == model.tokenizer.names([each["token"] for each in expected])
                close(mask["probabilities"], [each["score"] for each in expected])
        else:
            for record, expected in zip(model.predict(PLAIN), pipeline(PLAIN, top_k=None), strict=True):
                assert record["label"] == expected[0]["label"]
                close(
                    [record["probabilities"][each["label"]] for each in expected], [each["score"] for each in expected]
                )


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_multi_label_folders_have_the_same_probabilities_both_ways(name, tmp_path):
    import transformers

    with tiny.few_devices(1):
        model, folder = opened(name, "classes", tmp_path, problem_type="multi_label_classification")
        records = model.predict(PLAIN)
    for each in (tmp_path / "theirs", folder):
        pipeline = transformers.pipeline("text-classification", model=str(each), tokenizer=str(each))
        for record, expected in zip(records, pipeline(PLAIN, top_k=None), strict=True):
            scores = {each["label"]: each["score"] for each in expected}
            close([record["probabilities"][label] for label in scores], [*scores.values()])
            assert set(record["labels"]) == {label for label, score in scores.items() if score >= 0.5}
    assert any(len(record["labels"]) != 1 for record in records)


def test_entities_have_the_characters_and_probabilities_of_the_pipeline(tmp_path):
    import transformers

    pieces = "the,bird,sees,cat,dog,Jane,e,##s,##e,##ing,caf,😀,.,',##\u0301,e\u0301"
    names = [*SPECIALS, *pieces.split(","), ","]
    WordPiece(names, lowercase=False).save(tmp_path, 64)
    their_model("bert", "tokens", vocab_size=len(names)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"id2label": dict(enumerate(TAGS)), "label2id": {tag: i for i, tag in enumerate(TAGS)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    merged = 0
    with tiny.few_devices(1):
        model = bertjax.load(tmp_path)
        model.export(tmp_path / "ours")
        for strategy, texts in ENTITIES.items():
            options = {"model": str(tmp_path / "ours"), "aggregation_strategy": strategy}
            pipeline = transformers.pipeline("token-classification", **options)
            for text, record in zip(texts, model.predict(texts), strict=True):
                found, expected = record["entities"], pipeline(text)
                merged += len(record["words"]) - len(found)
                assert [text[a:b] for a, b in zip(record["start"], record["end"], strict=True)] == record["words"]
                places = [(each["entity_group"], each["start"], each["end"]) for each in expected]
                assert [(each["type"], each["start"], each["end"]) for each in found] == places
                assert all(each["text"] == text[each["start"] : each["end"]] for each in found)
                close([each["probability"] for each in found], [each["score"] for each in expected])
    assert merged  # entities with several words
