import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build
from bertjax.data.codecs.summarization.summary_rows import TARGET_TOKENS
from bertjax.errors import UserError
from bertjax.experiments import bertsum_abs
from bertjax.modes import stages
from bertjax.tasks import summaries
from bertjax.training.optimizers import OptimizerConfig, make_optimizer, make_rates
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, SIZES, done, flags, tree_of
from tests.showing import shown

NAMES = ("Ada", "Ben", "Cleo", "Dan")
PLACES = ("Rome", "Oslo", "Lima")
SMALL = {
    "num_steps": 300,
    "batch_size": 32,
    "log_every": 100,
    "evaluate_every": 300,
    "num_scored": 20,
    "target_len": 16,
    "label_smoothing": 0.0,
    "checkpoint.save_every": 300,
    "optimizer.schedule": "linear",
    "optimizer.warmup_steps": 20,
    "optimizer.learning_rate": 4e-3,
    "data.seq_len": 24,
    "data.window_overlap": 8,
    "data.vocab_size": 110,
    "data.limits.min_sentences": 1,
    "data.limits.min_words": 1,
    "data.limits.min_summary_words": 1,
    "decoding.num_beams": 2,
    "decoding.max_length": 18,
    "decoding.max_extra": 18,
    "decoding.min_extra": 1,
    **SIZES,
    "model.decoder_layers": 1,
    "model.decoder_heads": 2,
    "model.decoder_intermediate": 32,
    "model.decoder_dropout": 0.0,
    "model.initializer_range": 0.2,  # at this width, equivalent to 0.02 at 768
    **NO_DROPOUT,
}


def write_articles(path, count):
    """Writes articles whose second sentence says who travels where; the summary says the same."""
    rng = random.Random(str(path.name))
    rows = []
    for _ in range(count):
        name, place = rng.choice(NAMES), rng.choice(PLACES)
        article = f"It rains. Today {name} goes to {place}."
        rows.append({"article": article, "summary": f"{name} sees {place}.\nAll is well."})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def values_of(folder, **overrides):
    folder.mkdir(parents=True, exist_ok=True)
    sources = {"data.source": write_articles(folder / "train.jsonl", 400)}
    sources |= {f"data.{split}_source": write_articles(folder / f"{split}.jsonl", 20) for split in ("valid", "test")}
    return {**SMALL, **sources, **{key.replace("__", "."): value for key, value in overrides.items()}}


def ready(folder, **overrides):
    return tiny.ready(tree_of("bertsum_abs", "tiny", values_of(folder, **overrides)), folder / "data")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to generate the summaries."""
    folder = tmp_path_factory.mktemp("abstractive")
    done("--config=configs/bertsum_abs.py:tiny", f"--workdir={folder / 'run'}", *flags(values_of(folder)))
    return folder / "run"


@pytest.mark.slow
def test_a_run_learns_to_summarize(run):
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figures = {name: value for line in metrics for name, value in line.items()}
    assert figures["valid/nll"] < 0.2
    assert figures["valid/rouge1"] > 80 > figures["valid/lead_rouge1"]
    assert figures["test/rouge1"] > 80 and figures["test/over_lead_low"] > 0
    assert "valid/oracle_rougeLsum" in figures
    assert {"test/lead_rouge2", "test/rougeLsum_high"} <= metrics[-1].keys()
    assert set(TARGET_TOKENS) <= set((run / "vocab.txt").read_text().split())


@pytest.mark.slow
def test_predictions(run, tmp_path):
    article = "It rains. Today Cleo goes to Oslo."
    (tmp_path / "in.txt").write_text(article)
    target = tmp_path / "out.txt"
    command = ["--mode=predict", f"--workdir={run}", f"--input={tmp_path / 'in.txt'}"]
    done(*command, f"--output={target}")
    text = target.read_text()
    assert text.startswith("cleo sees ") and text.endswith(" . all is well .\n")
    done(*command, f"--output={target}", "--format=jsonl")
    record = json.loads(target.read_text())
    assert record["summary"] == [text.removesuffix(" all is well .\n"), "all is well ."] and record["score"] < 0
    assert record["article"] == ["It rains.", "Today Cleo goes to Oslo."]


def test_a_lower_max_length_limits_only_the_summary(tmp_path):
    """Articles can have as many tokens as rows."""
    task = ready(tmp_path, decoding__max_length=3, data__layout="line").task
    long, short = task.examples(iter(["It rains. Today Cleo goes to Oslo. " * 8, "It rains."]))
    assert len(long.rows[0]["input_ids"]) == 24 > len(short.rows[0]["input_ids"])
    assert (dict(long.limited), dict(short.limited)) == ({"truncated": "data.seq_len=24 tokens"}, {})


def test_evaluation_needs_no_training_articles(tmp_path, monkeypatch):
    ready(tmp_path).data.vocabulary.save(tmp_path / "kept")
    tree = tree_of("bertsum_abs", "tiny", values_of(tmp_path, data__source="", num_scored=5))
    data = stages.of_config(bertsum_abs, tree).data(tmp_path / "kept")
    assert next(data.batches("valid", 0, np.arange(4)))["labels"].shape == (4, 16)
    # Validation metrics and baselines use the same articles.
    assert len(list(data.validation_examples())) == 5
    monkeypatch.setattr(
        summaries, "baselines", lambda scored, *_: {split: float(len(found)) for split, found in scored.items()}
    )
    assert data.baselines().items() >= {"valid": 5, "test": 20}.items()


@pytest.mark.parametrize("dataset", ["cnndm", "xsum"])
def test_encoder_and_decoder_have_separate_warm_ups(dataset):
    tree = tree_of("bertsum_abs", dataset, {})
    config = build(OptimizerConfig, tree["optimizer"], "optimizer")
    params = {"bert": {"embeddings": jnp.zeros(())}, "decoder": {"bert": jnp.zeros(())}, "output": jnp.zeros(())}
    optimizer, rates = make_optimizer(config, params), make_rates(config)
    ones = jax.tree.map(jnp.ones_like, params)  # the first update of Adam is 1
    for step in (1, 10_000, 20_000, 30_000):
        updates, _ = optimizer.update(ones, optimizer.init(params), params, rates=rates(step - 1, tree["num_steps"]))
        found = [-each for each in jax.tree.leaves(updates)]
        # PreSumm's -lr_bert 0.002 -warmup_steps_bert 20000 -lr_dec 0.2 -warmup_steps_dec 10000
        bert, rest = (rate * min(step**-0.5, step * warmup**-1.5) for rate, warmup in ((0.002, 20_000), (0.2, 10_000)))
        np.testing.assert_allclose(found, [bert, rest, rest], rtol=1e-4)


def test_windows_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.long_articles: got 'windows'; expected cut"):
        ready(tmp_path, data__long_articles="windows")


def test_a_vocabulary_without_sentence_tokens_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(UserError, match="use BERT's published vocabulary"):
        ready(tmp_path, data__vocab_file=str(tmp_path / "vocab.txt"))


def test_samples_show_summaries_and_references(tmp_path):
    task, data, *_ = ready(tmp_path)
    for example in shown(task, data, tmp_path / "shown").examples:
        assert example["article"][0] == "It rains." and example["reference"][1] == "All is well."
