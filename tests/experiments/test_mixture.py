"""A run on a mixture: its metrics by source, and the report of its preparation."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from tests import tiny
from tests.experiments.commands import done, lines_of


@pytest.mark.parametrize("experiment", ["bert_pretraining", "replaced_tokens"])
def test_the_metrics_of_a_mixture(tmp_path, experiment):
    texts = [tiny.write_text(tmp_path / f"{name}.txt", documents=30, seed=i) for i, name in enumerate("ab")]
    mixture = (("a", str(texts[0]), 0.75), ("b", str(texts[1]), 0.25, {"valid_fraction": 0.3}))
    values = {"data__mixture": mixture, "data__next_sentence": False, "model__num_layers": 1, "num_steps": 4}
    command = tiny.arguments(
        texts[0], tmp_path / "run", **values, data__source="", data__valid_fraction=0.2, log_every=4
    )
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
