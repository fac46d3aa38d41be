"""A run with uniform rates and causal rows: its evaluations, its samples, and both of its language models."""

import json

import pytest
import safetensors

from tests import tiny
from tests.experiments.commands import done, lines_of
from tests.experiments.test_bert_pretraining import NOISE
from tests.experiments.test_minimal_pairs import write_pairs

INPUTS = ["the cat [MASK]*4 .", "[MASK] dog", "the cat [MASK]*4 .", "", ""]
SAMPLED = ("--mode=predict", "--config.decoding.sampler=ancestral", "--config.decoding.num_samples=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    text = tiny.write_text(folder / "t.txt")
    held_out = tiny.write_text(folder / "held_out.txt", documents=6, seed=1)
    pairs = write_pairs(folder / "pairs.jsonl", vocab=tiny.WORDS)
    values = {
        **NOISE,
        "masking__predict_at": "previous",
        "evaluations": "causal_pairs,likelihood,minimal_pairs",
        "likelihood__source": held_out,
        "likelihood__seq_len": 16,
        "minimal_pairs__source": pairs,
        "causal_pairs__source": pairs,
        "model__num_layers": 1,
    }
    done(*tiny.arguments(text, folder / "run", **values))
    return folder / "run"


def sampled(run, inputs, *flags):
    lines = "\n".join([*inputs, ""]).encode()
    outcome = tiny.run(*SAMPLED, f"--workdir={run}", "--input=-", "--output=-", *flags, stdin=lines)
    assert outcome.status is None, outcome.status
    return [json.loads(line) for line in outcome.stdout.splitlines()]


@pytest.mark.parametrize(("objective", "prefix"), [("masked_lm", ""), ("causal_lm", "causal_")])
def test_a_run_has_the_likelihood_and_the_pairs_of_both_language_models(run, objective, prefix):
    figures = lines_of(run / "metrics.jsonl")[-1]
    assert figures[f"valid/{prefix}bits_per_byte"] > 0
    model = (f"--config.init_from={run}", f"--config.objective={objective}")
    pairs = f"--config.data.valid_source={run.parent / 'pairs.jsonl'}"
    outcome = done("--mode=evaluate", "--config=configs/minimal_pairs.py", *model, pairs)
    expected = figures[f"valid/{prefix}pairs/accuracy"]
    assert json.loads(outcome.stdout)["valid/pairs/accuracy"] == pytest.approx(expected)


def test_samples_fill_masks_and_empty_lines(run):
    records = sampled(run, INPUTS)
    assert [record["text"] for record in records[:2]] == ["the cat " + "[MASK]" * 4 + " .", "[MASK] dog"]
    texts = [[sample["text"] for sample in record["samples"]] for record in records]
    assert all(text.startswith("the cat ") and text.endswith(" .") for text in texts[0])
    assert "[MASK]" not in str(texts) and texts[0] != texts[2]  # equal inputs have other samples
    assert texts[0][0] != texts[0][1]
    lengths = json.loads((run / "config.json").read_text())["decoding"]["lengths"]
    assert len(lengths) == 32 and records[3]["text"].count("[MASK]") in lengths
    assert {len(record["samples"]) for record in records} == {2}
    assert all(-60 < sample["log_bound"] < 0 and sample["entropy"] >= 0 for sample in records[0]["samples"])


def test_samples_depend_neither_on_the_batch_nor_on_the_devices(run):
    texts = [f"{word} [MASK]*3 {other}" for word in tiny.WORDS[:8] for other in tiny.WORDS[:8]]
    expected = sampled(run, texts)
    alone = [sampled(run, texts[number : number + 1])[0] for number in (0, 63)]
    assert alone == [expected[0], expected[63]]
    assert sampled(run, texts[:7]) == expected[:7]
    one = done(*SAMPLED, f"--workdir={run}", "--input=-", "--output=-", stdin="\n".join(texts))
    on_one = [json.loads(line)["samples"] for line in one.stdout.splitlines()]
    assert [[sample["text"] for sample in samples] for samples in on_one] == [
        [sample["text"] for sample in record["samples"]] for record in expected
    ]


def test_a_head_that_predicts_one_position_earlier_is_not_exported(run, tmp_path):
    outcome = done("--mode=export", f"--workdir={run}", f"--output={tmp_path / 'model'}")
    assert "masked-LM head is not exported" in outcome.stderr
    with safetensors.safe_open(tmp_path / "model" / "model.safetensors", "np") as file:
        names = list(file.keys())
    assert "embeddings.word_embeddings.weight" in names and not [name for name in names if name.startswith("cls.")]
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == ["BertModel"]
