"""Translation, from pairs in files, or generated dates, to lines of text."""

import json
import math
import random
import re
import shutil
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import optax
import pytest

from bertjax import progress
from bertjax.data.codecs.translation.rows import join_parts
from bertjax.errors import UserError
from bertjax.experiments import translation
from bertjax.interop import encoder_decoders
from bertjax.interop.published import open_weights
from bertjax.modes import stages
from bertjax.modes.request import Request
from bertjax.tasks.inputs import Source
from bertjax.training import inference, sharding
from tests import tiny
from tests.experiments.commands import SIZES, done, flags, lines_of, trained, tree_of
from tests.interop import test_marian
from tests.random_params import random_params
from tests.showing import shown

WORDS = {"a": "ein", "cat": "Katze", "dog": "Hund", "sees": "sieht", "likes": "mag", "bird": "Vogel", "old": "alter"}
SMALL = {
    "num_steps": 300,
    "batch_size": 32,
    "log_every": 40,
    "evaluate_every": 100,
    "num_scored": 20,
    "checkpoint.save_every": 100,
    "checkpoint.keep": 2,
    "checkpoint.final": "last:2",
    "label_smoothing": 0.1,
    "metrics": ("bleu", "exact_match"),
    "data.seq_len": 16,
    "data.vocab_size": 100,
    "data.valid_fraction": 0.1,
    "decoding.max_length": 16,
    "decoding.num_beams": 2,
    "optimizer.warmup_steps": 20,
    "optimizer.learning_rate": 1e-2,
    "model.dropout": 0.0,
}
TRANSFORMER = {
    **SIZES,
    "model.norm": "pre",  # which learns faster here
    "model.num_decoder_layers": 1,
    "model.initializer_range": 0.18,
}
TWO_UPDATES = {
    "num_steps": 2,
    "log_every": 2,
    "evaluate_every": 2,
    "num_scored": 4,
    "checkpoint.save_every": 2,
    "checkpoint.final": "latest",
    "optimizer.warmup_steps": 1,
}
RECURRENT = {"model.embedding_size": 16, "model.hidden_size": 32}


def write_pairs(folder, count=2000, name="train"):
    """Writes sentences and their word-by-word translations into two files. Returns the two names."""
    rng = random.Random(name)
    sentences = [rng.choices(list(WORDS), k=rng.randint(1, 3)) for _ in range(count)]
    for side, lines in (
        ("en", [" ".join(words) + "." for words in sentences]),
        ("de", [" ".join(WORDS[word] for word in words) + "." for words in sentences]),
    ):
        (folder / f"{name}.{side}").write_text("\n".join(lines) + "\n")
    return str(folder / f"{name}.en"), str(folder / f"{name}.de")


def values_of(folder, **overrides):
    folder.mkdir(parents=True, exist_ok=True)
    sources = dict(zip(("data.source", "data.target"), write_pairs(folder), strict=True))
    tests = dict(zip(("data.test_source", "data.test_target"), write_pairs(folder, 20, "test"), strict=True))
    if overrides.get("data__source") == "dates":
        sources, tests = {}, {}
    return {**SMALL, **TRANSFORMER, **sources, **tests, **{k.replace("__", "."): v for k, v in overrides.items()}}


def ready_of(folder, variant="tiny", **overrides):
    return ready_from(folder, variant, values_of(folder, **overrides))


def task_of(folder, **overrides):
    return ready_of(folder, **overrides).task


def ready_from(folder, variant, values):
    """Returns the task and its prepared data."""
    return tiny.ready(tree_of("translation", variant, values), folder / "data")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to translate word by word."""
    folder = tmp_path_factory.mktemp("translation")
    return trained("translation.py:tiny", folder, values_of(folder, data__seq_len=8))  # one shape of batches


def test_a_run_learns_and_is_scored_on_the_test_split_once(run):
    workdir, command = run
    metrics = lines_of(workdir / "metrics.jsonl")
    scores = [line for line in metrics if "valid/bleu" in line]
    assert [line["step"] for line in scores] == [100, 200, 300]
    assert min(scores[-1]["valid/exact_match"], metrics[-1]["test/exact_match"]) > 70
    for line in scores:
        assert line["valid/perplexity"] == pytest.approx(math.exp(line["valid/nll"]), rel=1e-5)
    assert set(metrics[-1]) == {"step", "test/bleu", "test/exact_match"}
    before = (workdir / "metrics.jsonl").read_text()
    done(*command)
    assert (workdir / "metrics.jsonl").read_text() == before
    evaluated = json.loads(tiny.run_on_one("--mode=evaluate", f"--workdir={workdir}").stdout)
    assert evaluated["test/exact_match"] == metrics[-1]["test/exact_match"]


def test_a_run_is_evaluated_on_all_rows_of_other_text(run, tmp_path):
    """All rows are scored, not only `num_scored`, with the decoding of the command line."""
    source, target = write_pairs(tmp_path, 30, "other")
    values = {"data__test_source": source, "data__test_target": target, "decoding__num_beams": 1}
    with mock.patch.object(translation.scoring, "score", wraps=translation.scoring.score) as score:
        record = tiny.evaluate_elsewhere(run[0], tmp_path, **values)
    assert [len(call.args[1]) for call in score.call_args_list] == [30]
    assert record["test/exact_match"] > 70
    assert set(record) >= {"test/bleu", "test/nll"} and record["decoding"]["num_beams"] == 1
    assert not [name for name in record if name.startswith("valid/")]


def test_outputs_keep_the_order_and_number_of_lines(run):
    workdir, _ = run
    text = b"a cat sees.\n\n  \nold bird.\n"
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={workdir}", stdin=text)
    assert outcome.stdout == "ein Katze sieht.\n\n\nalter Vogel.\n"


def predicted(workdir, text, folder, **decoding):
    """Returns the records of lines for a run's weights and other decoding settings."""
    folder.mkdir()
    (folder / "in.txt").write_text(text)
    values = {"init_from": workdir, "decoding.max_length": 16, "data.seq_len": 16}
    values |= {f"decoding.{key}": value for key, value in decoding.items()}
    files = [f"--input={folder / 'in.txt'}", f"--output={folder / 'out.jsonl'}"]
    done("--mode=predict", "--config=configs/translation.py", *flags(values), *files)
    return lines_of(folder / "out.jsonl")


def test_translations_are_sampled(run, tmp_path):
    """Equal lines get different samples only if this is configured. Other lines and batches do not matter."""
    options = {"method": "sampling", "n_best": 6}
    text = "old bird likes.\n\nold bird likes.\n"
    one, empty, same = predicted(run[0], text, tmp_path / "same", **options, temperature=3.0)
    assert one == same and empty["translation"] == "" and len(one["n_best"]) == len(empty["n_best"]) == 6
    first, _, other = predicted(run[0], text, tmp_path / "other", **options, temperature=3.0, sample_by_line=True)
    assert first["n_best"] != other["n_best"]
    alone = predicted(run[0], text[:16], tmp_path / "alone", **options, temperature=3.0, sample_by_line=True)
    assert [each["translation"] for each in alone[0]["n_best"]] == [each["translation"] for each in first["n_best"]]
    likely = predicted(run[0], text[:16], tmp_path / "likely", **options, top_k=1)
    assert {each["translation"] for each in likely[0]["n_best"]} == {"alter Vogel mag."}


def test_forced_decoding_gives_the_same_scores(run, tmp_path):
    """With skipped bad rows, a pair that cannot be scored has an empty line."""
    workdir, _ = run
    *found, empty = predicted(workdir, "a cat sees.\nold bird.\n\n", tmp_path / "found")
    assert (found[0]["source"], found[0]["translation"]) == ("a cat sees.", "ein Katze sieht.")
    assert -2 < found[0]["score"] < 0 and found[0]["complete"]
    assert empty == {"source": "", "translation": "", "score": 0, "complete": True}
    one, two = (f"{record['source']}\t{record['translation']}\n" for record in found)
    scored = predicted(workdir, one + two + "old bird.\tein Hund.\n", tmp_path / "scored", method="forced")
    for record, expected in zip(scored, found, strict=False):
        assert record["translation"] == expected["translation"]
        assert record["score"] == pytest.approx(expected["score"], abs=1e-4)
    assert scored[2]["score"] < scored[1]["score"] - 1
    values = {"decoding.method": "forced", "decoding.max_length": 16, "data.seq_len": 16, "data.on_bad_row": "skip"}
    command = ["--mode=predict", "--config=configs/translation.py", f"--config.init_from={workdir}", *flags(values)]
    outcome = tiny.run_on_one(*command, stdin=f"{one}a cat.\n\n{two}".encode())
    assert outcome.stdout.split("\n") == [str(scored[0]["score"]), "", "", str(scored[1]["score"]), ""]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["a cat."], "input line 1: got one text; expected 2 texts, with tabs between"),
        (["a cat.\t"], "got an empty text"),
        (["a cat.\t" + "Katze " * 40], "tokens; expected at most 15. Fix: divide the source and"),
    ],
)
def test_invalid_pairs_to_score(run, lines, told):
    task = predictor(run[0], {"decoding.method": "forced"})
    with pytest.raises(UserError, match=re.escape(told)):
        list(task.examples(iter(lines)))


def used(workdir, values):
    """Resolves the config of a model that is used through `init_from`."""
    values = {"init_from": str(workdir), "data.seq_len": 16, "decoding.max_length": 16, **values}
    return stages.of_config(translation, tree_of("translation", "", values))


def predictor(workdir, values):
    """Returns the task of such a model, only for prediction."""
    return used(workdir, {"data.source": "", **values}).to_predict().task


@pytest.mark.parametrize(
    ("num_steps", "patience", "final"), [(2, 0, "last:1"), (7, 0, "last:3"), (60, 0, "last:5"), (60, 2, "last:4")]
)
def test_a_short_trial_averages_the_checkpoints_that_it_has(num_steps, patience, final):
    values = {"checkpoint.save_every": 3, "evaluate_every": 6, "evaluate_patience": patience}
    tree = tree_of("translation", "tiny", {"num_steps": num_steps, **values})
    assert stages.of_config(translation, tree).config["checkpoint"]["final"] == final


def test_the_start_token_comes_from_the_run(run, tmp_path):
    config = json.loads((run[0] / "config.json").read_text())
    (tmp_path / "checkpoints" / "300").mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps({**config, "start_token": "end"}))
    assert used(tmp_path, {}).config["start_token"] == "end"
    with pytest.raises(UserError, match="config key start_token: got begin; expected end, as in init_from"):
        used(tmp_path, {"start_token": "begin"})


def test_prefixes_come_from_the_run(run, tmp_path):
    """A model in `init_from` reads texts with the run's prefixes, for training and for predictions."""
    workdir = Path(shutil.copytree(run[0], tmp_path / "run"))
    config = json.loads((workdir / "config.json").read_text())
    config["data"] |= {"source_prefix": ["bird "], "target_prefix": ["ein "]}
    (workdir / "config.json").write_text(json.dumps(config))

    def prefixes(**data):
        config = used(workdir, {f"data.{key}": value for key, value in data.items()}).config
        return tuple(config["data"][key] for key in ("source_prefix", "target_prefix"))

    pairs = dict(zip(("source", "target"), write_pairs(tmp_path), strict=True))
    both = ["bird "], ["ein "]
    assert prefixes(**pairs) == both
    # Prefixes in the config replace them, also if only one side is set.
    assert prefixes(**pairs, source_prefix=("dog ",)) == (["dog "], [])
    assert prefixes(**pairs, target_prefix=("",)) == ([], [""])
    assert prefixes() == ([], []), "of dates, which have none"
    task = predictor(workdir, {})
    (example,) = task.examples(iter(["a cat."]))
    assert prefixes(source="") == both and decoded(task, example) == ["bird a cat."]


def test_packed_pairs_have_the_losses_and_gradients_of_separate_pairs(tmp_path):
    plain = ready_of(tmp_path / "plain", data__seq_len=24)
    packed = ready_of(tmp_path / "packed", data__seq_len=24, data__packing=True)
    params = random_params(plain.task.init)

    def total(ready):
        def loss(params, batch):
            sums, metrics = ready.task.loss(params, batch, None)
            return sums["translation"], metrics

        of_batch = jax.jit(jax.value_and_grad(loss, has_aux=True))
        sums = tokens = pairs = 0
        gradient = jax.tree.map(lambda leaf: np.zeros(leaf.shape), params)
        batches = ready.data.batches("train", 0, np.arange(32))
        for _, batch in zip(range(ready.data.train.steps_per_epoch), batches, strict=False):
            (loss_, metrics), gradient_ = of_batch(params, batch)
            sums, tokens = sums + float(loss_), tokens + float(metrics["tokens"][0])
            gradient = jax.tree.map(np.add, gradient, gradient_)
            pairs += int((np.diff(batch["target_segment_ids"], prepend=0) > 0).sum())
        return sums, gradient, tokens, pairs

    (a, gradient, *counts), (b, packed_gradient, *packed_counts) = total(plain), total(packed)
    assert counts == packed_counts
    assert a == pytest.approx(b, rel=1e-5)
    difference = jax.tree.map(np.subtract, gradient, packed_gradient)
    assert optax.global_norm(difference) <= 1e-5 * optax.global_norm(gradient)
    assert packed.data.train.steps_per_epoch < plain.data.train.steps_per_epoch


def decoded(task, example):
    return [task.tokenizer[0].decode(row["input_ids"]) for row in example.rows]


def test_long_lines_are_split_or_refused(tmp_path):
    line = " ".join(["cat"] * 40)
    task = task_of(tmp_path)
    example, short = task.examples(iter([line, "cat."]))
    assert (dict(example.limited), dict(short.limited)) == ({"split": "data.seq_len=16 tokens"}, {})
    assert len(example.rows) > 1 and all(len(row["input_ids"]) <= 16 for row in example.rows)
    whole = np.concatenate([row["input_ids"][:-1] for row in example.rows])
    assert task.tokenizer[0].decode(whole) == line
    (example,) = task.examples(iter(["a cat sees. old bird. " * 4]))
    parts = decoded(task, example)
    assert len(parts) > 1 and all(part.endswith(".") for part in parts), "split at ends of sentences"
    strict = task_of(tmp_path / "strict", data__on_long_line="refuse")
    with pytest.raises(UserError, match=r"input line 2: got [0-9]+ tokens; expected at most 15"):
        list(strict.examples(iter(["cat.", line])))


@pytest.mark.parametrize(("seq_len", "expected"), [(12, 12), (None, 24)])
def test_lines_are_split_at_the_length_of_training_or_at_the_positions(tmp_path, seq_len, expected):
    config = test_marian.make_config(max_positions=24)
    encoder_decoders.save(tmp_path, test_marian.random_params(config), config, test_marian.SPECIAL, {}, seq_len)
    assert used(tmp_path, {"data.source": "", "data.seq_len": None}).config["data"]["seq_len"] == expected


@pytest.mark.parametrize("variant", ["tiny", "rnn"])
def test_a_lower_max_length_limits_only_the_translation(tmp_path, variant):
    """Sources can have as many tokens as the model was trained on."""
    limit = 16
    values = values_of(tmp_path, decoding__max_length=2, data__on_long_line="refuse")
    if variant == "rnn":
        values = {key: value for key, value in values.items() if key not in TRANSFORMER} | RECURRENT
    task, data, *_ = ready_from(tmp_path, variant, values)
    count = limit - 2
    while len(task._codec._ids(0, [line := " ".join(["cat"] * count)])[0]) > limit:
        count -= 1
    (example,) = task.examples(iter([line]))
    assert decoded(task, example) == [line] and count > 2
    assert max(task.predict_lengths()) == limit
    assert all(len(example.rows) == 1 for example in data.validation_examples())


def test_long_validation_lines_are_always_split(tmp_path):
    values = values_of(tmp_path, data__on_long_line="refuse")
    for key in ("data.source", "data.target"):
        names = [str(tmp_path / f"valid{Path(values[key]).suffix}")]
        values[key.replace(".", ".valid_")] = names[0]
        Path(names[0]).write_text("cat " * 40 + "\nold bird.\n")
    data = ready_from(tmp_path, "tiny", values).data
    assert [len(example.rows) > 1 for example in data.validation_examples()] == [True, False]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["Ein Hund.", "Eine Katze."], "Ein Hund. Eine Katze."),
        (["개가 본다.", "고양이"], "개가 본다. 고양이"),
        (["犬が見る。", "猫が好き。"], "犬が見る。猫が好き。"),
        (["หมา", "แมว"], "หมาแมว"),
        (["他说：", "“好", "2020年。", "A"], "他说：“好 2020年。A"),
        (["", "a", "", "b"], "a b"),
        ([], ""),
    ],
)
def test_joining_of_translated_parts_depends_on_the_script(parts, expected):
    assert join_parts(parts) == expected


def test_a_long_word_is_split_completely(tmp_path):
    task = task_of(tmp_path)
    text = "catsees" * 1428 + "bird"
    assert len(text) == 10_000
    (example,) = task.examples(iter([text]))
    assert "".join(decoded(task, example)) == text
    assert max(len(row["input_ids"]) for row in example.rows) <= 24


def test_a_pair_of_ten_thousand_words_is_left_out_and_reported(tmp_path, caplog):
    values = values_of(tmp_path)
    for key, word in (("data.source", "bird"), ("data.target", "Vogel")):
        with Path(values[key]).open("a") as file:
            file.write(" ".join([word] * 10_000) + "\n")
    data = ready_from(tmp_path, "tiny", values).data
    assert next(data.batches("train", 0, np.arange(32)))["input_ids"].shape[1] <= 16
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum(bool(re.fullmatch("skipped 1 of [0-9]+ pairs of .*: more than 16 tokens", each)) for each in told) == 1


@pytest.mark.parametrize(
    ("target", "options", "stated"),
    [
        (unicodedata.normalize("NFD", "개가 고양이를 본다."), {}, "nfc"),
        ("Ｅin ﬁnger.", {"data__normalization": "nfkc"}, "nfkc"),
        ("Ein Hund.", {"data__lowercase": True}, "nfc+lowercase"),
        ("Ein Hund's Öl.", {"data__subwords": "wordpiece", "data__lowercase": True}, "wordpiece+lowercase"),
        ("Ein Hund.", {}, None),
    ],
)
def test_perfect_translations_score_100_with_any_normalization(tmp_path, caplog, target, options, stated):
    files = {"data__source": tmp_path / "all.en", "data__target": tmp_path / "all.de"}
    for path, line in zip(files.values(), ("a dog {}.", target + " {}"), strict=True):
        path.write_text("".join(f"{line.format(number)}\n" for number in range(40)))
    files = {key: str(path) for key, path in files.items()}
    files |= {key.replace("__", "__test_"): path for key, path in files.items()}
    task, data, *_ = ready_of(tmp_path, **files, **options, metrics=("bleu", "chrf", "exact_match"))
    examples = list(data.test_examples())
    references = [example.source.item.target for example in examples]
    assert references[0] == f"{target} 0", "as they stand in the file"
    pairs = [example.source.item for example in examples]
    several = [pair._replace(target="x", references=(pair.target,)) for pair in pairs]
    worse = [example._replace(source=Source(pair)) for example, pair in zip(examples, several, strict=True)]
    vocabulary = task.tokenizer[1]
    ids = [np.append(each, np.int32(vocabulary.sep_id))[None] for each in vocabulary.encode_batch(references)]
    outputs = [[{"ids": each, "lengths": np.array([each.size]), "scores": np.zeros(1)}] for each in ids]
    progress._logged.clear()
    with caplog.at_level("INFO"):
        found = task.score(list(zip(examples, outputs, strict=True)))
    assert found == pytest.approx({"bleu": 100, "chrf": 100, "exact_match": 100})
    assert task.score(list(zip(worse, outputs, strict=True))) == pytest.approx(found), "by the second reference"
    assert re.findall(r"bleu of 40 .*?(?:\|normalized:(\S+))?$", caplog.text, re.MULTILINE) == [stated or ""]


def test_an_export_states_the_prefix_of_sources(tmp_path):
    """As pipelines of transformers add it. That of targets is the first token of hypotheses if it is one token."""
    options = {"data__subwords": "characters", "data__seq_len": 64, "model__max_positions": 64, "model__norm": "post"}
    task = task_of(tmp_path, data__source_prefix=("to German: ",), **options)
    task.export(random_params(task.init), tmp_path / "exported")
    (token,) = task.tokenizer.target.encode("e")

    def config_of(**values):
        tree = tree_of("translation", "", {"init_from": str(tmp_path / "exported"), "data.source": "", **values})
        return stages.of_config(translation, tree).config

    for prefixes, first_id in ((("e ",), token), (("e ", "d "), None), (("ee ",), None)):
        config = config_of(**{"data.target_prefix": prefixes, "decoding.max_length": 64})
        assert config["data"]["source_prefix"] == ("to German: ",)
        assert config["decoding"]["first_id"] == first_id
    assert config_of(**{"data.target_prefix": ("e ",), "decoding.first_id": 7})["decoding"]["first_id"] == 7


def test_a_line_gets_the_only_prefix(tmp_path):
    task, data, *_ = ready_of(tmp_path, data__source_prefix=("to German: ",), data__target_prefix=("<de> ",))
    *both, empty = task.examples(iter(["a cat.", "to German: a cat.", ""]))
    assert [decoded(task, example) for example in both] == [["to German: a cat."]] * 2 and not empty.rows
    assert both[0].source.item.source == "a cat."
    (long,) = task.examples(iter([" ".join(["cat"] * 40)]))
    assert all(part.startswith("to German: cat") for part in decoded(task, long))
    # Translations are scored without their prefix.
    held_out = next(data.validation_examples())
    source = held_out.source.item.source
    (target,) = data.codec.gold(held_out.source.item)
    assert source.startswith("to German: ") and not target.startswith("<de>")
    labels = task.tokenizer[1].encode_batch(["<de> " + target])[0]
    ids = np.append(labels, np.int32(task.tokenizer[1].sep_id))[None]
    outputs = [{"ids": ids, "lengths": np.array([ids.size]), "scores": np.zeros(1)}]
    assert task.record(held_out, outputs)["translation"] == target


def test_a_run_with_random_initialization_is_exported(tmp_path):
    task = task_of(tmp_path, model__norm="post", decoding__alpha=0.5)
    params = random_params(task.init)
    task.export(params, tmp_path / "exported")
    params["bias"] = np.zeros(task.tokenizer[1].vocab_size, np.float32)
    read, _ = open_weights(tmp_path / "exported").load(jax.eval_shape(lambda: params))
    jax.tree.map(np.testing.assert_array_equal, read, params)
    generation = json.loads((tmp_path / "exported" / "generation_config.json").read_text())
    searched = {"max_length": 17, "num_beams": 2, "length_penalty": 0.5, "early_stopping": "never"}
    assert searched.items() <= generation.items() and "forced_eos_token_id" not in generation
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["forced_eos_token_id"] is None


def test_a_published_folder_sets_decoding_defaults(tmp_path):
    """Its generation_config.json sets defaults. The command line overrides them, and the log reports this."""
    options = {"num_beams": 3, "block_ngrams": 2, "max_length": 9, "forbid_unk": True, "force_eos": True}
    task = task_of(tmp_path, model__norm="post", **{f"decoding__{key}": value for key, value in options.items()})
    task.export(random_params(task.init), tmp_path / "exported")
    given = {"init_from": str(tmp_path / "exported"), "decoding.block_ngrams": 4}
    command = ["--mode=predict", "--format=jsonl", "--config=configs/translation.py", *flags(given)]
    outcome = done(*command, stdin=b"a cat sees.\n")
    ids = task.tokenizer.target.encode_batch([json.loads(outcome.stdout)["translation"]])[0]
    assert len(ids) <= 8, "9 with the end token"
    for told in (
        "decoding.num_beams: 3, from ",
        "decoding.max_length: 9, from ",
        "decoding.bad_words: [[1]], from ",
        "decoding.force_eos: True, from ",
        f"decoding.block_ngrams: 4; {tmp_path / 'exported'} has 2",
        f"decoding as in {tmp_path / 'exported'}: num_beams=3, length_penalty='length', max_length=9,",
    ):
        assert told in outcome.stderr


def test_a_folder_without_generation_config_states_its_settings_in_config(tmp_path, caplog):
    test_marian.write_config(tmp_path, remove=["bad_words_ids"], num_beams=5, length_penalty=0.5, max_length=None)
    settings = open_weights(tmp_path).settings
    assert (settings["decoding.num_beams"], settings["decoding.alpha"]) == (5, 0.5)
    assert "decoding.max_length" not in settings
    assert "bad_words_ids does not exclude padding" in caplog.text
    values = {"eos_token_id": 0, "bad_words_ids": [[12]], "new": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert open_weights(tmp_path).settings["decoding.num_beams"] == 1
    assert f"{tmp_path} has keys that bertjax does not know and ignores: generation_config.json: new" in caplog.text


def test_a_task_of_a_published_folder_sets_decoding_and_the_source_prefix(tmp_path, caplog):
    """Values of the command line have precedence."""
    config = test_marian.make_config()
    encoder_decoders.save(tmp_path, test_marian.random_params(config), config, test_marian.SPECIAL, {})
    (tmp_path / "generation_config.json").unlink()
    test_marian.write_config(tmp_path, task_specific_params={"formal": {"num_beams": 7, "prefix": "please: "}})
    values = {"init_from": str(tmp_path), "data.source": "", "data.seq_len": 8, "decoding.max_length": 9}

    def config_of(**overrides):
        tree = tree_of("translation", "", {**values, **overrides})
        request = Request(mode="predict", workdir="", overrides=overrides)
        with caplog.at_level("INFO"):
            return stages.resolve(request, tree, lambda name: translation).config

    config = config_of(task="formal")
    assert (config["decoding"]["num_beams"], config["data"]["source_prefix"]) == (7, ("please: ",))
    assert f"decoding as in {tmp_path}, task formal: num_beams=7, length_penalty='length', alpha=1.0, " in caplog.text
    config = config_of(**{"task": "formal", "decoding.num_beams": 2, "data.source_prefix": ("",)})
    assert (config["decoding"]["num_beams"], config["data"]["source_prefix"]) == (2, [""])
    with pytest.raises(UserError, match="task: got casual; expected one of formal, task_specific_params of"):
        config_of(task="casual")
    with pytest.raises(UserError, match="task: got formal; expected no value, unless init_from is the folder"):
        stages.of_config(translation, tree_of("translation", "tiny", {"task": "formal"}))


def test_many_samples_use_smaller_batches(tmp_path):
    widths = [task_of(tmp_path, **changes).width() for changes in ({}, {"decoding__method": "sampling"})]
    assert widths == [2, 1]
    task, _, settings, _ = ready_of(tmp_path, decoding__method="sampling", decoding__n_best=64)
    mesh = sharding.make_mesh(settings.mesh, jax.devices()[:1])
    rows = [{"input_ids": np.ones(8, np.int32)}] * 600
    sizes = [len(members) for members, _ in inference.Predictor(task, mesh)._batches(rows)]
    assert max(sizes) * 64 * 8 <= 4 * 2**12 and sum(sizes) == 600


def test_dates_never_end(tmp_path):
    dates = {"source": "dates", "subwords": "characters", "seq_len": 32, "joint": False}
    changes = {f"data__{key}": value for key, value in dates.items()}
    data = ready_of(tmp_path, **changes, model__max_positions=64, model__share_embeddings=False).data
    first, second = (next(data.batches("train", start, np.arange(32))) for start in (0, 1))
    stream = data.batches("train", 0, np.arange(32))
    np.testing.assert_equal([first, second], [next(stream), next(stream)])
    assert not np.array_equal(first["input_ids"], second["input_ids"])
    assert len(list(data.test_examples())) == 1000


@pytest.fixture
def compiled_attention(monkeypatch):
    """Compiles the computation of attention as one program, which is faster than single operations."""
    apply = translation.seq2seq.apply

    def compiled(model, params, batch, *rest, **options):
        return jax.jit(lambda params, batch: apply(model, params, batch, *rest, **options))(params, batch)

    monkeypatch.setattr(translation.seq2seq, "apply", compiled)


def attended_by(workdir, text, folder, monkeypatch):
    """Returns the attention for the translation of a text, and the words in its drawing."""
    kept, told = [], translation.Task.attention
    monkeypatch.setattr(translation.Task, "attention", lambda *a: kept.append(told(*a)) or kept[-1])
    command = ["--mode=predict", f"--workdir={workdir}", f"--plot={folder / 'a.svg'}", "--format=jsonl"]
    outcome = done(*command, stdin=text.encode())
    (kinds,) = kept
    texts = ET.parse(folder / "a.svg").iter("{http://www.w3.org/2000/svg}text")
    return kinds, {"".join(each.itertext()) for each in texts}, json.loads(outcome.stdout)


def check_attended(kinds, words, num_heads):
    """Checks that all words have weights on existing words, and are in the drawing."""
    for attended in kinds.values():
        shape = (1, num_heads, len(attended.queries), len(attended.keys))
        assert attended.weights.shape == shape
        np.testing.assert_allclose(attended.weights.sum(-1), 1, atol=1e-5)
        assert {*attended.queries, *attended.keys} <= words | {"", " "}
    assert {f"{name}, layer 0" for name in kinds} <= words


def test_the_drawing_shows_the_attention_of_a_translation(run, tmp_path, monkeypatch, compiled_attention):
    kinds, words, record = attended_by(run[0], "a cat sees.\n", tmp_path, monkeypatch)
    check_attended(kinds, words, num_heads=2)
    assert list(kinds) == ["encoder", "decoder", "cross"]
    cross = kinds["cross"]
    assert "".join(cross.keys).replace("</s>", "") == "acatsees."
    assert "".join(cross.queries).replace("</s>", "") == record["translation"].replace(" ", "")
    assert kinds["decoder"].keys == ["<s>", *cross.queries[:-1]]
    assert not np.triu(kinds["decoder"].weights, 1).any()


def test_a_model_without_attention_has_none(tmp_path):
    values = {key: value for key, value in values_of(tmp_path).items() if key not in TRANSFORMER}
    task, data, *_ = ready_from(tmp_path, "rnn", values | RECURRENT | {"model.attention": "none"})
    outputs = [{"ids": np.array([[5, task.tokenizer[1].sep_id]]), "lengths": np.array([2]), "scores": np.zeros(1)}]
    assert task.attention(random_params(task.init), next(data.validation_examples()), outputs) == {}


@pytest.mark.slow
def test_the_recurrent_model_learns(tmp_path):
    values = {**values_of(tmp_path, num_steps=240, evaluate_every=120, checkpoint__save_every=120), **RECURRENT}
    values = {key: value for key, value in values.items() if key not in TRANSFORMER.keys() - RECURRENT.keys()}
    run, _ = trained("translation.py:rnn", tmp_path, values)
    losses = [line["valid/nll"] for line in lines_of(run / "metrics.jsonl") if "valid/nll" in line]
    assert losses[-1] < 0.5


@pytest.mark.slow
def test_dates_are_translated_and_drawn(tmp_path, monkeypatch, compiled_attention):
    """The drawing shows the attention of a recurrent model."""
    few = {**TWO_UPDATES, "data.num_valid": 8, "data.num_test": 4}
    workdir, _ = trained("translation.py:rnn,dates", tmp_path, few)
    scores = lines_of(workdir / "metrics.jsonl")
    assert {"test/exact_match", "test/chrf"} <= set(scores[-1])
    kinds, words, _ = attended_by(workdir, "Saturday, November 21, 2026\n", tmp_path, monkeypatch)
    check_attended(kinds, words, num_heads=1)
    assert {*"Saturdy,Novmbe216"} <= words
    cross = list(kinds.values())[-1]
    assert "".join(cross.keys).replace("</s>", "") == "Saturday, November 21, 2026"
    assert len(cross.queries) > 1


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"decoding__method": "forced"}, "decoding.method: got forced; expected beam_search or sampling"),
        ({"decoding__max_length": 40}, "decoding.max_length: got 40; expected at most model.max_positions=24"),
        ({"data__seq_len": 40}, "data.seq_len: got 40; expected at most model.max_positions=24"),
        ({"data__joint": False}, "model.share_embeddings: got True with data.joint=False; expected shared embeddings"),
        ({"model__source_vocab_size": 50}, "model.source_vocab_size: got 50; expected at least [0-9]+, the size of"),
        ({"data__source": "dates", "data__source_prefix": ("A: ",)}, "data.source: got dates together with"),
        ({"data__source": "dates", "data__packing": True}, "data.packing: got True; expected False for generated"),
    ],
)
def test_contradictory_settings_are_reported(tmp_path, overrides, told):
    with pytest.raises(UserError, match=told):
        task_of(tmp_path, **overrides)


def test_a_vocabulary_in_addition_to_weights_is_refused(run, tmp_path):
    workdir, _ = run
    given = ["--config=configs/translation.py", f"--config.init_from={workdir}", f"--workdir={tmp_path / 'new'}"]
    outcome = tiny.run_on_one(*given, f"--config.data.vocab_file={workdir}")
    assert "data.vocab_file" in outcome.error and "expected no value, because init_from=" in outcome.error


def test_a_replaced_vocabulary_of_the_same_size_is_detected(run, tmp_path):
    """Its ids fit the weights, but mean other words."""
    workdir, command = run
    stolen = Path(shutil.copytree(workdir, tmp_path / "stolen"))
    again = [f"--workdir={stolen}" if flag.startswith("--workdir") else flag for flag in command]
    tokenizer = json.loads((workdir / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["o"] = ids["o"], ids["a"]
    told = {"what": "the vocabulary in ", "got": "sha256", "expected": "the files of training", "fix": "restore"}
    beside = [f"--config.init_from={stolen}", "--config.data.seq_len=16", "--config.decoding.max_length=16"]
    (stolen / "tokenizer.json").write_text(json.dumps(tokenizer))
    for flags_ in (
        ["--mode=predict", f"--workdir={stolen}"],
        ["--mode=predict", "--config=configs/translation.py", *beside],
        ["--mode=export", f"--workdir={stolen}", f"--output={tmp_path / 'exported'}"],
    ):
        tiny.check_message(tiny.run_on_one(*flags_, stdin=b"a cat.\n").error, **told)
    # Evaluation and training read the vocabulary of the prepared text.
    shutil.copy(workdir / "tokenizer.json", stolen)
    (stolen / "data" / "tokenizer.json").write_text(json.dumps(tokenizer))
    for flags_ in (["--mode=evaluate", f"--workdir={stolen}"], again):
        tiny.check_message(tiny.run_on_one(*flags_).error, **told)
    # Folders from before the digest are opened without a check.
    for folder in (stolen, stolen / "data"):
        (folder / "vocabulary.sha256").unlink()
    assert tiny.run_on_one("--mode=predict", f"--workdir={stolen}", stdin=b"old bird.\n").stdout == "alter Vogel.\n"


@pytest.mark.parametrize("key", ["num_layers", "dropuot"])
def test_a_key_that_a_recurrent_model_lacks_is_reported(key):
    tree = tree_of("translation", "rnn", {})
    tree["model"][key] = 1
    with pytest.raises(UserError, match=rf"model\.{key}"):
        stages.of_config(translation, tree).example()


def test_attention_is_drawn_after_training_with_flash_attention(tmp_path, compiled_attention):
    task, data, *_ = ready_of(tmp_path, model__dtype="bfloat16")
    flash = task_of(tmp_path, model__dtype="bfloat16", model__attention_backend="cudnn")
    example = next(data.validation_examples())
    ids = np.array([[5, 6, task.tokenizer[1].sep_id]], np.int32)
    outputs = [{"ids": ids, "lengths": np.array([3]), "scores": np.zeros(1)}]
    params = random_params(task.init)
    found, expected = (each.attention(params, example, outputs) for each in (flash, task))
    assert found.keys() == expected.keys()
    for kind, attended in found.items():
        np.testing.assert_array_equal(attended.weights, expected[kind].weights)


def test_samples_show_translations_and_references(tmp_path):
    task, data, *_ = ready_of(tmp_path)
    found = shown(task, data, tmp_path / "shown")
    for example, pair in zip(found.examples, data.validation_examples(), strict=False):
        assert (example["source"], example["reference"]) == pair.source.item[:2]
    titles = [matrix["title"] for matrix in found.matrices]
    assert titles == ["Attention mask of a row", "Position embeddings", "Similarity of positions"]


def test_unknown_characters_of_sources_are_counted(tmp_path, caplog):
    task = task_of(tmp_path)
    progress._logged.clear()
    with caplog.at_level("INFO"):
        list(task.examples(iter(["a cat жж sees.", "old 東 ж bird.", "dog."])))
    told = "2 of 3 texts have 4 unknown characters: 'ж' (3), '東' (1)"
    assert told in caplog.text
    caplog.clear()
    list(task.examples(iter(["dog."])))
    assert not caplog.text


def test_pairs_that_are_all_too_long_are_reported(tmp_path):
    values = values_of(tmp_path, data__seq_len=2, data__subwords="characters")
    for key in ("data.valid_source", "data.valid_target"):
        values[key] = str(tmp_path / key)
        Path(values[key]).write_text("x\n")
    data = ready_from(tmp_path, "tiny", values).data
    assert data.report()["rows"]["train"] == 0
    count = data.report()["left_out"]["data.seq_len"]
    assert count == 2000
    with pytest.raises(UserError, match=rf"data\.seq_len: got 2, and all {count} pairs of train are longer"):
        next(data.batches("train", 0, np.arange(32)))


def test_summaries_are_truncated_and_scored_by_rouge(tmp_path):
    rows = [{"article": f"{i} " + "A cat sees. " * 20, "summary": f"A cat\nBird {'abcd'[i % 4]}"} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {**SMALL, **TRANSFORMER, "data.source": str(tmp_path / "a.jsonl"), "data.target_len": 8}
    del values["metrics"]
    tree = tree_of("text_to_text", "tiny,summarization", {**values, "data.valid_fraction": 0.5})
    task, data, *_ = tiny.ready(tree, tmp_path / "data")
    shapes = {name: spec.shape for name, spec in task.batch_specs()[-1].items()}
    assert (shapes["input_ids"], shapes["labels"]) == ((32, 16), (32, 8))
    assert next(data.batches("train", 0, np.arange(32)))["labels"].shape == (32, 8)
    examples = list(data.validation_examples())
    assert all(example.limited == {"truncated": "data.seq_len=16 tokens"} for example in examples)

    def scores(texts):
        ids = [np.array(task.tokenizer.target.encode(text)) for text in texts]
        outputs = [[{"ids": row[None], "lengths": np.array([len(row)]), "scores": np.zeros(1)}] for row in ids]
        return task.score(list(zip(examples, outputs, strict=True)))

    gold = [example.source.item.target for example in examples]
    perfect = scores(gold)
    assert list(perfect) == [name for name in task.score_names() if name in perfect] and "rougeLsum_low" in perfect
    assert perfect["rouge1"] == perfect["rougeLsum"] == 100
    swapped = scores([" ".join(reversed(text.split("\n"))) for text in gold])
    assert swapped["rougeLsum"] == 100 > swapped["rougeL"], "the lines of a reference are its sentences"
    assert data.baselines() == {"valid/tokenized_texts": 0, "valid/lowercased_texts": 0}
    (example,) = task.examples_in(rows[:1])
    output = {"ids": np.zeros((1, 1), int), "lengths": np.ones(1, int), "scores": np.zeros(1)}
    record = task.record(example, [output])
    assert record["reference"] == rows[0]["summary"] and record.keys() <= {*task.record_fields()}
