"""`launch.py` end to end on a tiny text: as a process where that is the point, else in this one on one device."""

import base64
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from bertjax import launch as launcher
from bertjax import modes
from bertjax.configs import sizes
from bertjax.runs import goodput, run_folder
from bertjax.runs.checkpoints import num_parameters, restore_params
from bertjax.training import loop
from tests import processes, tiny
from tests.experiments.commands import done, lines_of, metrics_of
from tests.tiny import run_on_one
from tests.tools.reporting.pages import Page

ROOT = Path(__file__).parents[1]
# The best checkpoint is told by a loss that grows, so that it is not the last.
VALUES = {"evaluate_every": 2, "checkpoint__keep": 1, "checkpoint__best_metric": "valid/next_sentence_loss"}


def launch(*arguments: str, stdin: str = "", status: int = 0) -> subprocess.CompletedProcess:
    """Runs `python launch.py` as on a machine with one device."""
    command, env = [sys.executable, "launch.py", *arguments], processes.environment()
    done = subprocess.run(command, cwd=ROOT, env=env, input=stdin, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with `text.txt` and a `run` trained on it, with a report."""
    home = tmp_path_factory.mktemp("launch")
    text = tiny.write_text(home / "text.txt")
    trained = done("--report", *tiny.arguments(text, home / "run", **VALUES))
    assert trained.stdout == ""
    number = r"[\d.e-]+"
    update = rf"step 4/6  loss {number}  masked_lm_accuracy {number}  next_sentence_accuracy {number}  lr {number}  "
    assert re.search(update + r"[\d.]+[kM]? tokens/s  [\d:]+ left\n", trained.stderr), trained.stderr
    scores = rf"step 6/6  valid: next_sentence_loss {number}  .*masked_lm_loss {number} \(unigram {number}\)"
    assert re.search(scores, trained.stderr), trained.stderr
    last = trained.stderr.splitlines()[-1]
    assert re.search(rf" valid/next_sentence_loss {number}; report", last)
    assert last.endswith(f"; report: {home / 'run' / 'report.html'}")
    assert f"training {num_parameters(home / 'run'):,} parameters for 6 updates on " in trained.stderr
    return home


@pytest.fixture(scope="module")
def published(home):
    """The run's weights as Hugging Face has them."""
    folder = home / "published"
    outcome = done("--mode=export", f"--workdir={home / 'run'}", f"--output={folder}")
    of_transformers = f'BertForPreTraining.from_pretrained("{folder}") of transformers'
    assert f'exported to {folder}: bertjax.load("{folder}") opens it, and {of_transformers}\n' in outcome.stderr
    return folder


def scores_of(run: Path, step: int) -> dict:
    """The held-out figures of a step."""
    found = [
        line for line in lines_of(run / "metrics.jsonl") if line["step"] == step and "valid/masked_lm_loss" in line
    ]
    assert len(found) == 1
    return {key: value for key, value in found[0].items() if key != "step"}


def predict(*arguments: str, stdin: str = "", run: Callable[..., tiny.Outcome] = run_on_one) -> list[dict]:
    outcome = run("--mode=predict", *arguments, stdin=stdin.encode())
    assert outcome.status is None, outcome.status
    return [json.loads(line) for line in outcome.stdout.splitlines()]


# Training.


def test_a_run_has_a_log_for_tensorboard_and_no_unfinished_files(home):
    assert list((home / "run" / "tensorboard").glob("events.out.tfevents.*"))
    assert not [path for path in (home / "run").rglob("*") if "partial" in path.name or "tmp" in path.name]


def test_the_names_of_the_metrics(home):
    lines = metrics_of(home / "run")
    assert [line["step"] for line in lines] == [0, 2, 2, 4, 4, 6, 6]
    assert lines[0].keys() == {"step", "valid/masked_lm_unigram_loss", "valid/next_sentence_majority_accuracy"}
    terms = ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy")
    others = ("loss", "gradient_norm", "learning_rate", "step_seconds", "tokens_per_second")
    others += ("data_wait_fraction", "save_wait_seconds")
    for train, valid in zip(lines[1::2], lines[2::2], strict=True):
        assert train.keys() == {"step", *(f"train/{name}" for name in (*terms, *others))}
        assert valid.keys() == {"step", *(f"valid/{name}" for name in terms)}
        total = train["train/masked_lm_loss"] + train["train/next_sentence_loss"]
        assert train["train/loss"] == pytest.approx(total, 0.05)
    # Warm-up of 2 steps from 0 to 2e-3 or what the config says, then linear decay to 0 after the last.
    peak = json.loads((home / "run" / "config.json").read_text())["optimizer"]["learning_rate"]
    rates = [line["train/learning_rate"] for line in lines[1::2]]
    assert rates == pytest.approx([peak / 2, peak * (1 - 3 / 6), peak * (1 - 5 / 6)])


def test_a_run_of_an_earlier_version_resumes_with_its_values(home, tmp_path):
    """The masking rate could be cut, and `seed` drew validation rows. The same command sets neither."""
    run = shutil.copytree(home / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["masking"]["max_predictions"] = 3
    del config["data"]["valid_seed"]
    (run / "config.json").write_text(json.dumps(config))
    done(*tiny.arguments(home / "text.txt", run, **VALUES))
    config["data"]["valid_seed"] = None
    assert json.loads((run / "config.json").read_text()) == config


def test_a_run_stopped_by_sigterm_has_status_75(home, tmp_path, monkeypatch):
    run = shutil.copytree(home / "run", tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "6")
    settle = loop.Trainer.settle
    monkeypatch.setattr(loop.Trainer, "settle", lambda *_: (os.kill(os.getpid(), signal.SIGTERM), settle(*_)))
    assert run_on_one(*tiny.arguments(home / "text.txt", run, **VALUES)).status == 75


def test_a_run_with_a_renamed_text_resumes_from_its_last_checkpoint(home, tmp_path):
    """Keys that do not change the result may differ."""
    run = shutil.copytree(home / "run", tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "6")
    changed = {**VALUES, "log_every": 1, "checkpoint__keep": 2, "model__remat": "full", "model__scan_layers": True}
    outcome = done(*tiny.arguments(shutil.copy(home / "text.txt", tmp_path / "renamed.txt"), run, **changed))
    assert "resuming after step" in outcome.stderr
    assert [line["step"] for line in metrics_of(run)] == [0, 2, 2, 3, 4, 4, 5, 6, 6]
    assert scores_of(run, 6) == pytest.approx(scores_of(home / "run", 6), rel=1e-4)


def test_prepare_writes_only_the_text(tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    assert done("--mode=prepare", *tiny.arguments(text, tmp_path / "run")).stdout == ""
    manifests = sorted((tmp_path / "prepared").glob("*/manifest.json"))
    assert len(manifests) == 2 and manifests[1].parent.name.startswith("removal-")
    counts = json.loads(manifests[0].read_text())["counts"]
    assert counts["train"]["documents"] + counts["valid"]["documents"] == 40
    assert not (tmp_path / "run").exists()


def test_help_lists_flags_experiments_and_variants():
    script = "import sys; from bertjax import launch; sys.argv[:] = ['launch.py', '--help']\n"
    script += "try: launch.run()\nfinally: assert not {'jax', 'flax'} & set(sys.modules)"
    command, env = [sys.executable, "-c", script], processes.environment()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "  python launch.py --mode=export --workdir=runs/demo --output=FOLDER" in lines
    for group in launcher.GROUPS:
        assert group in lines
    for path in (ROOT / "experiments").glob("[a-z]*.py"):
        (number,) = (i for i, line in enumerate(lines) if re.match(rf"  {path.stem} ", line))
        module = importlib.import_module(f"bertjax.configs.{path.stem}")
        for name in (name for group in module.VARIANTS for name in group if name not in sizes.SIZES):
            assert re.search(rf"\b{name}\b", " ".join(lines[number + 1 : number + 6])), name
    assert "  --keys " in done.stdout
    assert len(lines) < 115 and max(map(len, lines)) <= 120


@pytest.mark.parametrize("buffering", [(), ("-u",)])
def test_help_ends_silently_when_its_reader_exits(buffering):
    command = [sys.executable, *buffering, "launch.py", "--help"]
    pipe, end = os.pipe()
    os.close(pipe)
    with os.fdopen(end, "wb") as closed:
        done = subprocess.run(command, cwd=ROOT, env=processes.environment(), stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_each_flag_is_in_one_group_of_the_help():
    names = [name for group in launcher.GROUPS.values() for name in group]
    ours = {flag.name for flag in flags.FLAGS.flags_by_module_dict()["bertjax.launch"]}
    hidden = {name for name in ours if name.startswith("config.")} | {"run_config"}
    assert len(names) == len(set(names))
    assert set(names) - {"config.KEY=VALUE", "help", "helpfull"} == ours - hidden


@pytest.mark.parametrize("form", [["--config={}"], ["-config={}"], ["--config", "{}"]])
def test_the_packages_configs_are_found_from_any_folder(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [word.format("configs/classification.py:mrpc") for word in form]
    assert launcher._load([*arguments, "--config.batch_size=8"])["batch_size"] == 8


@pytest.mark.parametrize(
    ("program", "start"),
    [("launch.py", ["python", "launch.py"]), ("../launch.py", ["python", "../launch.py"]), ("a/bertjax", ["bertjax"])],
)
def test_a_command_starts_the_program_that_was_called(program, start):
    assert modes.command(Path(program), ["--mode=check"]) == [*start, "--mode=check"]


@pytest.mark.parametrize("name", ["experiments.classification", "configs.sweeps.parts"])
def test_experiments_and_configs_have_one_name(name):
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    package = name.partition(".")[0]
    assert f"UserError: import {package}: got a second copy" in done.stderr
    assert f"Fix: import bertjax.{package}.\n" in done.stderr


def test_a_checkout_without_symbolic_links_is_a_user_error(tmp_path):
    (tmp_path / "bertjax").mkdir()
    for name in ("launch.py", "bertjax/__init__.py", "bertjax/errors.py", "bertjax/fitting.py", "bertjax/loading.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bertjax/experiments").write_text("../experiments")
    done = subprocess.run([sys.executable, "launch.py", "--help"], cwd=tmp_path, capture_output=True, text=True)
    message = "experiments: got no folder; expected a symbolic link to ../experiments. Fix: clone with git "
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {tmp_path}/bertjax/{message}")


def test_a_user_error_is_one_line_with_status_1():
    done = launch("--mode=evaluate", "--workdir=no/such/run", status=1)
    assert done.stdout == ""
    assert done.stderr.startswith("error: --workdir=no/such/run: got no readable config.json")
    assert done.stderr.count("\n") == 1


def test_a_run_records_its_environment(home):
    environment = json.loads((home / "run" / "environment.json").read_text())
    assert environment["command"][:2] == ["python", "launch.py"] and "--config.num_steps=6" in environment["command"]
    assert environment["defaults"]["num_steps"] != 6
    ((kind, count),) = environment["devices"].items()
    assert kind == f"{run_folder._processor()} (cpu)" and count == 1
    assert environment["packages"].keys() >= {"jax", "flax", "optax"}
    assert environment["parameters"] == num_parameters(home / "run")
    trained = sum(goodput.summary(home / "run").values())
    assert environment["usage"]["seconds"] > trained > 0 and environment["usage"]["memory"] > 1e8


def test_an_evaluation_can_be_a_page_of_errors(home, tmp_path):
    done("--mode=evaluate", f"--workdir={home / 'run'}", f"--output={tmp_path / 'page.html'}")
    page = Page((tmp_path / "page.html").read_text())
    assert "valid/masked_lm_loss" in [row[-1] for row in page.tables["last-metrics"]]
    predictions = lines_of(home / "run" / "predictions.jsonl")
    losses = [one["loss"] for one in predictions]
    assert losses == sorted(losses, reverse=True) and len(page.tables["worst"]) > min(20, len(losses))


def test_a_run_has_samples_of_validation_text(home):
    examples = [line for line in lines_of(home / "run" / "samples.jsonl") if line["kind"] == "masks"]
    assert 1 <= len(examples) <= 8
    for example in examples:
        assert example["checkpoint"] == "6"
        assert example["is_next"] in (True, False) and 0 <= example["is_next_probability"] <= 1
        for mask in example["masks"]:
            assert len(mask["tokens"]) == 5 and mask["label"] and 0 < mask["position"] < len(example["words"])
    attended = [example["attention"]["encoder"] for example in examples if "attention" in example]
    assert len(attended) == min(3, len(examples))
    for one in attended:
        count = len(one["keys"])
        assert one["weights"]["shape"] == [2, 2, count, count]
        rows = np.frombuffer(base64.b64decode(one["weights"]["data"]), np.uint8).reshape(-1, count)
        assert rows.sum(axis=1) == pytest.approx(np.full(len(rows), 255), abs=count)
    pictures = {line["title"] for line in lines_of(home / "run" / "samples.jsonl") if line["kind"] == "matrix"}
    assert pictures == {"Position embeddings", "Similarity of positions", "Attention mask of a row"}


def test_a_report_is_written_into_the_folder_of_the_run(home, tmp_path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    (run / "report.html").unlink()
    (run / "samples.jsonl").unlink()
    outcome = done("--mode=report", f"--workdir={run}")
    path = Path(outcome.stdout.strip())
    assert path.resolve() == (run / "report.html").resolve()
    assert "masked_lm_loss" in path.read_text() and 'id="samples"' in path.read_text()
    assert (run / "samples.jsonl").read_text() == (home / "run" / "samples.jsonl").read_text()


# Evaluation.


def test_a_run_is_evaluated_on_other_text(home, tmp_path):
    text = tiny.write_text(tmp_path / "other.txt", documents=6, seed=5)
    record = tiny.evaluate_elsewhere(home / "run", tmp_path, data__test_source=text)
    assert set(record) == {
        *(f"test/{name}_{what}" for name in ("masked_lm", "next_sentence") for what in ("loss", "accuracy")),
        "test/next_sentence_majority_accuracy",
    }
    outcome = run_on_one("--mode=report", f"--workdir={home / 'run'}", "--config.data.valid_rows=3")
    what, got = "config key data.valid_rows", "--mode=report and no --config"
    tiny.check_message(outcome.error, what=what, got=got, expected="a mode that uses a trained run", fix="add --config")


def test_a_run_is_used_on_another_number_of_devices(home, tmp_path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config |= {"mesh": {"data": 3, "fsdp": 2, "tensor": 1}, "batch_size": 18}  # and there are eight
    (run / "config.json").write_text(json.dumps(config))
    outcome = tiny.run("--mode=evaluate", f"--workdir={run}")
    assert outcome.status is None, outcome.status
    assert "the run's mesh {'data': 3, 'fsdp': 2, 'tensor': 1} does not fit 8 device(s)" in outcome.stderr
    expected = scores_of(run, 6)
    assert {name: json.loads(outcome.stdout)[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert len(predict(f"--workdir={run}", stdin="the [MASK] sees a cat\n", run=tiny.run)) == 1
    assert tiny.run("--mode=export", f"--workdir={run}", f"--output={tmp_path / 'out'}").status is None


# Prediction.


def test_the_record_of_a_prediction(home):
    text = "the [MASK] sees a cat\tthe [MASK] likes a big [MASK] ."
    (record,) = predict(f"--workdir={home / 'run'}", stdin=text + "\n")
    assert record.keys() == {"text", "masks", "is_next_probability"}
    assert record["text"] == text
    # [CLS] the [MASK] sees a cat [SEP] the [MASK] likes a big [MASK] . [SEP]
    assert [mask["position"] for mask in record["masks"]] == [2, 8, 12]
    vocab = (home / "run" / "vocab.txt").read_text().splitlines()
    for mask in record["masks"]:
        assert mask.keys() == {"position", "tokens", "probabilities"}
        assert len(mask["tokens"]) == len(set(mask["tokens"])) == len(mask["probabilities"]) == 5
        assert set(mask["tokens"]) <= set(vocab)
        assert mask["probabilities"] == sorted(mask["probabilities"], reverse=True)
        assert 0 < sum(mask["probabilities"]) <= 1
    assert 0 < record["is_next_probability"] < 1


def test_one_text_has_no_next_sentence_and_no_text_no_record(home):
    """Text that is not ASCII is written unchanged."""
    outcome = run_on_one("--mode=predict", f"--workdir={home / 'run'}", stdin="é 東京 [MASK]\n".encode())
    assert '"é 東京 [MASK]"' in outcome.stdout and json.loads(outcome.stdout)["is_next_probability"] is None
    assert predict(f"--workdir={home / 'run'}", stdin="") == []


def test_an_invalid_format_for_a_task(home, tmp_path):
    flags = [f"--workdir={home / 'run'}", f"--output={tmp_path / 'out'}", "--format=text"]
    outcome = run_on_one("--mode=predict", *flags, stdin=b"a [MASK]\n")
    got, expected = "a task without text output", "a task that writes texts"
    tiny.check_message(outcome.error, what="--format=text", got=got, expected=expected, fix="omit --format, or set")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flag", "expected", "fix"),
    [
        ("--output=out.txt.gz", "an uncompressed file", "omit .gz"),
        ("--checkpoint=each:last:2", "only with --mode=evaluate", "last:3 is the mean"),
        ("--config.batch_size=4", r"may differ after training: (?!.*( \S+,).*\1)mesh, model", "omit it, or train"),
    ],
)
def test_invalid_flags_for_prediction(home, flag, expected, fix):
    outcome = run_on_one("--mode=predict", f"--workdir={home / 'run'}", flag)
    what, value = flag.replace("--config.", "config key ").split("=")
    tiny.check_message(outcome.error, what=what, got=re.escape(value), expected=expected, fix=fix)


_CONFIG = "--config=configs/classification.py:tiny"


@pytest.mark.parametrize(
    ("arguments", "what", "meant"),
    [
        (["--config=configs/clasification.py"], "--config", "configs/classification.py"),
        (["--config=configs/classification.py:tny"], "--config: variant", "tiny"),
        (["--sweep=configs/sweeps/bert_maskin.py"], "--sweep=", "configs/sweeps/bert_masking.py"),
        (["--format=jsn"], "--format", "jsonl"),
        ([_CONFIG, "--config.learning_rate=1e-4"], "config key learning_rate", "optimizer.learning_rate"),
        ([_CONFIG, "--config.experiment=clasification"], "config key experiment", "classification"),
    ],
)
def test_an_error_suggests_the_closest_name(tmp_path, arguments, what, meant):
    outcome = run_on_one(*arguments, f"--workdir={tmp_path / 'run'}")
    tiny.check_message(outcome.error, what=what, got=".", expected=".", fix=rf"^Did you mean '{re.escape(meant)}'\?$")


# Published weights.


def test_published_weights_are_evaluated_without_a_run(home, published, tmp_path):
    arguments = from_folder(home, published, tmp_path / "run")
    arguments = [argument for argument in arguments if not argument.startswith("--workdir")]
    scores = json.loads(done("--mode=evaluate", *arguments).stdout)
    expected = scores_of(home / "run", 6)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, 1e-4)
    before = {path.name for path in published.iterdir()}
    nowhere = [argument for argument in arguments if not argument.startswith("--config.data.prepared_dir")]
    assert json.loads(run_on_one("--mode=evaluate", *nowhere).stdout) == scores
    assert {path.name for path in published.iterdir()} == before


def from_folder(home: Path, folder: Path, workdir: Path, **overrides: object) -> list[str]:
    """The command that trains from published weights, whose sizes and vocabulary come from them."""
    values = {**VALUES, "init_from": folder, **overrides}
    arguments = [a for a in tiny.arguments(home / "text.txt", workdir, **values) if not a.startswith("--config=")]
    ours = ("--config.model.", "--config.data.vocab_size")
    return ["--config=configs/bert_pretraining.py", *(a for a in arguments if not a.startswith(ours))]


def test_positions_that_were_not_learned_start_as_copies(home, published, tmp_path):
    def positions(folder):
        return restore_params(folder, "latest", None)["bert"]["embeddings"]["position_embeddings"]

    values = {"num_steps": 1, "learned_positions": 10}  # the first update of a warm-up has rate 0
    done(*from_folder(home, published, tmp_path / "run", **values))
    before, after = positions(home / "run"), positions(tmp_path / "run")
    np.testing.assert_array_equal(after, before[np.arange(len(before)) % 10])
