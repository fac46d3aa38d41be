"""A run on a mixture: its metrics by source, and the report of its preparation."""

import json
import random
import shutil

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.interop.published import open_weights
from tests import published, tiny
from tests.experiments.commands import done, flags, lines_of
from tests.experiments.test_minimal_pairs import write_model


@pytest.mark.parametrize("experiment", ["bert_pretraining", pytest.param("replaced_tokens", marks=pytest.mark.slow)])
def test_the_metrics_of_a_mixture(tmp_path, experiment):
    texts = [tiny.write_text(tmp_path / f"{name}.txt", documents=30, seed=i) for i, name in enumerate("ab")]
    mixture = (("a", str(texts[0]), 0.75), ("b", str(texts[1]), 0.25, {"valid_fraction": 0.3}))
    values = {"data__mixture": mixture, "data__next_sentence": False, "model__num_layers": 1, "num_steps": 4}
    command = tiny.arguments(texts[0], tmp_path / "run", **values, data__source="", log_every=4)
    command[0] = f"--config=configs/{experiment}.py:tiny"
    done(*command)
    *_, train, valid = [line for line in lines_of(tmp_path / "run" / "metrics.jsonl") if len(line) > 2]
    assert train["train/a/token_share"] + train["train/b/token_share"] == pytest.approx(1)
    assert train["train/a/token_share"] == pytest.approx(0.75, abs=0.1)
    losses = [valid[f"valid/{name}/masked_lm_loss"] for name in "ab"]
    assert valid["valid/masked_lm_loss"] == pytest.approx(0.75 * losses[0] + 0.25 * losses[1], rel=1e-6)
    report = json.loads((tmp_path / "run" / "rows.json").read_text())
    assert report["a"]["valid"]["documents"] < report["b"]["valid"]["documents"] < report["b"]["train"]["documents"]
    mean_epoch = train["train/b/epochs"]  # of the rows, from 0 to that of the last
    assert report["epochs"]["b"] == pytest.approx(2 * mean_epoch, rel=0.3)
    other = done("--mode=evaluate", f"--workdir={tmp_path / 'run'}", f"--config.data.valid_source={texts[1]}")
    assert "valid/masked_lm_loss" in json.loads(other.stdout) and "/b/" not in other.stdout


def test_a_model_is_adapted_with_words_of_the_first_source(tmp_path):
    write_model(tmp_path / "bert")
    files = {}
    for name, text in {"domain": "the cats sees birding .", "general": "the dogs sees the dogying bird ."}.items():
        documents = [" ".join(random.Random(number).choices(text.split(), k=12)) for number in range(30)]
        files[name] = tmp_path / f"{name}.txt"
        files[name].write_text("\n\n".join(documents))
    command = [
        "--config=configs/bert_pretraining.py:adaptation",
        f"--config.init_from={tmp_path / 'bert'}",
        f"--config.data.mixture={tuple((name, str(file), 0.5) for name, file in files.items())}",
        f"--config.word_likelihood.source={tuple((name, str(file)) for name, file in files.items())}",
        *flags({"data.valid_fraction": 0.2, "data.seq_len": 16, "data.workers": 1, "batch_size": 8, "num_steps": 2}),
        *flags({"optimizer.warmup_steps": 1, "word_likelihood.documents": 2, "evaluate_every": 1}),
    ]
    done(*command, f"--workdir={tmp_path / 'run'}")
    vocab = published.TOKENIZER.vocab
    assert open_weights(tmp_path / "run").tokenizer(True).vocab == (*vocab, "birding", "cats")
    scored = [line for line in lines_of(tmp_path / "run" / "metrics.jsonl") if "valid/domain/nats_per_word" in line]
    assert [line["step"] for line in scored] == [0, 2]
    assert [scored[0][f"valid/{name}/words"] for name in files] == [24, 24]
    shutil.move(tmp_path / "bert", tmp_path / "moved")
    done(*command, f"--workdir={tmp_path / 'run'}", "--config.checkpoint.keep=2")


def test_of_documents_in_two_sources_those_of_the_first_stay(tmp_path):
    one, two = (tiny.write_text(tmp_path / f"{name}.txt", documents=40, seed=i) for i, name in enumerate("ab"))
    copies = one.read_text().split("\n\n")[:20]
    two.write_text("\n\n".join([two.read_text().strip(), *copies]) + "\n")
    values = {"data__source": "", "data__next_sentence": False, "data__duplicates": "drop"}
    names = {"a": one, "b": two}
    for first, second in ("ab", "ba"):
        mixture = ((first, str(names[first]), 0.5), (second, str(names[second]), 0.5))
        tree = tiny.config(one, **values, data__mixture=mixture, data__max_removed=0.9)
        _, data, *_ = tiny.pretraining(tree)
        removal = data.report()["removal"]
        assert removal[second]["duplicates"] > 10 > 3 > removal[first].get("duplicates", 0)
        counts = {name: corpus.splits["train"].sentences.num_documents for name, corpus in data._corpora.items()}
        assert counts == {name: values["all"] - values["removed"] for name, values in removal.items()}
        assert next(data.batches("train", 0, np.arange(4)))["sources"].tolist() == [0, 1, 0, 1]
    tree["data"]["max_removed"] = 0.2
    with pytest.raises(UserError, match=r"the source 'a': got .* % of its documents to leave out"):
        tiny.pretraining(tree)


@pytest.mark.parametrize("length", [{"num_steps": 40}, {"num_steps": None, "budget__tokens": 20_000}])
def test_too_many_epochs_of_a_source_are_an_error_before_the_first_update(tmp_path, length):
    text = tiny.write_text(tmp_path / "text.txt")
    mixture = (("a", str(text), 0.1), ("b", str(text), 0.9))
    values = {"data__mixture": mixture, "data__max_epochs": 2.0, "data__source": "", "data__next_sentence": False}
    with pytest.raises(UserError, match=r"data\.max_epochs: got .* epochs of b; expected at most 2\. Fix: lower"):
        _, data, *_ = tiny.pretraining(tiny.config(text, **values, **length))
        next(data.batches("train", 0, np.arange(16)))
