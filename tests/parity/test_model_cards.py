"""The code of model cards on exports, compared with our predictions (slow)."""

import json
import re

import numpy as np
import pytest

import bertjax
from tests import published, tiny
from tests.experiments.commands import done, flags
from tests.parity.test_families import PLAIN, their_model, write_tokenizer

pytestmark = pytest.mark.slow

TEXT = "A text."
OTHER = "Another text."
QUESTION = "A question?"


def write_encoder(name, head):
    """A function that writes a folder of transformers with random weights."""

    def write(folder):
        import transformers

        if name == "bert":
            published.TOKENIZER.save(folder, 40)
        else:
            write_tokenizer(folder, PLAIN)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "cls", "sep")}
        their_model(name, head, vocab_size=len(tokenizer), **ids).save_pretrained(folder)

    return write


def write_kind(name, **prompts):
    """A function that writes a folder of sentence-transformers with additional prompts."""

    def write(folder):
        from tests.robustness import fuzz_settings

        fuzz_settings.KINDS[name].write(folder)
        file = folder / "config_sentence_transformers.json"
        settings = json.loads(file.read_text())
        file.write_text(json.dumps({**settings, "prompts": {**settings["prompts"], **prompts}}))

    return write


def probabilities(model, names):
    (record,) = model.predict([TEXT])
    outputs = names["outputs"]
    return [record["probabilities"][output["label"]] for output in outputs], [output["score"] for output in outputs]


def masks(model, names):
    (record,) = model.predict([f"A {names['model'].tokenizer.mask_token} text."])
    return record["masks"][0]["probabilities"], [output["score"] for output in names["outputs"]]


def vectors(model, names):
    return model.encode([TEXT, OTHER]), names["outputs"]


def document_vectors(model, names):
    return model.encode([TEXT, OTHER], prompt_name="document"), names["outputs"]


def scores(model, names):
    return [record["score"] for record in model.predict([(QUESTION, TEXT), (QUESTION, OTHER)])], names["outputs"]


CASES = {
    "bert, masks": ("bert_pretraining.py", write_encoder("bert", "words"), masks),
    "bert, classes": ("classification.py", write_encoder("bert", "classes"), probabilities),
    "vectors": ("features.py:sentence", write_kind("bi-encoder", query=""), vectors),
    "vectors of documents": ("features.py:sentence", write_kind("bi-encoder", document="the dog "), document_vectors),
    "scores": ("reranker.py", write_kind("cross-encoder"), scores),
}


@pytest.mark.parametrize("case", CASES)
def test_the_code_of_a_card_predicts_the_same(case, tmp_path, monkeypatch):
    config, write, compared = CASES[case]
    write(tmp_path / "theirs")
    folder = tmp_path / "모델"
    values = {"init_from": tmp_path / "theirs", **({"data.next_sentence": False} if compared is masks else {})}
    done("--mode=export", f"--config=configs/{config}", *flags(values), f"--output={folder}")
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    with tiny.few_devices(1):
        model = bertjax.load(folder, "reranker" if config == "reranker.py" else "")
        ours, theirs = compared(model, names)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
