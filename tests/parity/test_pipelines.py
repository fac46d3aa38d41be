"""Pipelines of transformers on exports, compared with our predictions (slow)."""

import itertools
import json

import numpy as np
import pytest

import bertjax
from bertjax.data.text.tokenizers import SPECIALS, WordPiece
from tests import published, tiny
from tests.parity.test_families import MASKED, PLAIN, their_model, write_tokenizer

pytestmark = pytest.mark.slow

FAMILIES = ("bert", "distilbert", "modernbert", "roberta", "mpnet")
WORDS = "the bird sees the cat"  # each is one token
# Pipelines tokenize punctuation marks together with their words, and the model has few positions.
CONFIGS = {"tokens": {"data.split_punctuation": False}, "spans": {"data.max_query_length": 8}}
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
QUESTION = {"question": "the cat", "context": "the dog sees the birding. The bird sees two dogs"}


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
    model = bertjax.load(theirs, config=CONFIGS.get(head, {}))
    model.export(ours)
    return model, ours


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("task", ["fill-mask", "text-classification", "token-classification", "question-answering"])
def test_pipelines_on_an_export_predict_the_same(name, task, tmp_path):
    import transformers

    heads = {"fill-mask": "words", "text-classification": "classes", "token-classification": "tokens"}
    with tiny.few_devices(1):
        model, folder = opened(name, heads.get(task, "spans"), tmp_path)
        if task == "question-answering":
            check_answer(model.predict([QUESTION])[0], folder)
            return
        pipeline = transformers.pipeline(task, model=str(folder), tokenizer=str(folder))
        if task == "fill-mask":
            for record, expected in zip(model.predict(MASKED), pipeline(MASKED), strict=True):
                (mask,) = record["masks"]
                assert mask["tokens"] == model.tokenizer.names([each["token"] for each in expected])
                close(mask["probabilities"], [each["score"] for each in expected])
        elif task == "text-classification":
            for record, expected in zip(model.predict(PLAIN), pipeline(PLAIN, top_k=None), strict=True):
                assert record["label"] == expected[0]["label"]
                close(
                    [record["probabilities"][each["label"]] for each in expected], [each["score"] for each in expected]
                )
        else:
            check_tags(model, folder)


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


def check_tags(model, folder):
    """Tags of words are those of their first tokens. Groups of the strategy "simple" are runs of equal tags."""
    import transformers

    def entities(strategy, text):
        options = {"model": str(folder), "tokenizer": str(folder), "ignore_labels": []}
        return transformers.pipeline("token-classification", aggregation_strategy=strategy, **options)(text)

    for text, record in zip(PLAIN, model.predict(PLAIN), strict=True):
        tokens, place = entities("none", text), 0
        for word, tag in zip(record["words"], record["tags"], strict=True):
            place = text.index(word, place)
            assert next(each["entity"] for each in tokens if each["start"] <= place < each["end"]) == tag
    (record,) = model.predict([WORDS])
    runs = itertools.groupby(zip(record["tags"], record["words"], strict=True), key=lambda pair: pair[0])
    expected = [(tag, " ".join(word for _, word in pairs)) for tag, pairs in runs]
    assert [(each["entity_group"], each["word"].strip()) for each in entities("simple", WORDS)] == expected


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


def check_answer(record, folder):
    """transformers has no pipeline for answers any more: this is the best span of its model."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(*QUESTION.values(), return_tensors="pt", return_offsets_mapping=True)
    offsets, owners = inputs.pop("offset_mapping")[0].tolist(), inputs.sequence_ids()
    with torch.no_grad():
        output = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()(**inputs)
    places = [place for place, owner in enumerate(owners) if owner == 1]
    scores = {
        (a, b): float(output.start_logits[0, a] + output.end_logits[0, b]) for a in places for b in places if a <= b
    }
    start, end = max(scores, key=scores.get)
    text = QUESTION["context"][offsets[start][0] : offsets[end][1]]
    np.testing.assert_allclose(record["score"], scores[start, end], atol=2e-5)
    assert record["answer"] == text.strip(), (record, scores)
