"""Extractive summarization, from articles with summaries to summaries of new text."""

import dataclasses
import functools
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bertjax import progress
from bertjax.errors import UserError
from bertjax.experiments import bertsum_ext
from bertjax.interop.published import open_weights
from bertjax.models.bert import BertInputs
from bertjax.modes import stages
from bertjax.scoring.rouge import RougeConfig, rouge
from bertjax.tasks import summaries
from tests import published, tiny
from tests.experiments import commands
from tests.experiments.commands import done, flags, lines_of
from tests.parity.test_presumm import GOLDEN
from tests.parity.test_presumm import read as read_golden
from tests.random_params import random_params
from tests.showing import shown

SIZES = {**commands.SIZES, "model.scorer_layers": 2, "model.scorer_heads": 2, "model.scorer_intermediate": 16}
# Each row has two sentences.
ROWS = {"data.seq_len": 24, "data.window_overlap": 0}
SMALL = {
    **SIZES,
    **ROWS,
    "num_steps": 100,
    "batch_size": 8,
    "log_every": 25,
    "evaluate_every": 50,
    "checkpoint.save_every": 50,
    "checkpoint.keep": 2,
    "model.initializer_range": 0.1,
    **commands.NO_DROPOUT,
    "model.scorer_dropout": 0.0,
    "optimizer.learning_rate": 5e-3,
    "optimizer.warmup_steps": 5,
    "data.valid_fraction": 0.2,
    "selection.num_sentences": 2,
}
FIGURES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
CONFIG = "--config=configs/bertsum_ext.py"
# A trained model selects 1 and 4, although each repeats three words of the other.
SENTENCES = [
    "The dog sees the big red tree.",
    "A cat sings and the old dog runs.",
    "It is.",
    "The bird likes a small red fish.",
    "The small river sings and the old cat sleeps.",
    "A big dog finds the red house.",
]


def predict(*command, stdin=""):
    return [
        json.loads(line) for line in done("--mode=predict", "--format=jsonl", *command, stdin=stdin).stdout.splitlines()
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to select sentences in which someone sings."""
    folder = tmp_path_factory.mktemp("bertsum_ext")
    values = {**SMALL, **tiny.write_articles(folder, count=120)}
    command = [f"{CONFIG}:tiny", f"--workdir={folder / 'run'}", *flags(values)]
    done(*command)
    return folder / "run", command


def tree_of(variant="tiny", **overrides):
    sizes = {key: value for key, value in SMALL.items() if variant or key not in SIZES}
    return commands.tree_of("bertsum_ext", variant, {**sizes, **overrides})


def resolved(variant="tiny", **overrides):
    return stages.of_config(bertsum_ext, tree_of(variant, **overrides)).config


def ready(folder, variant="tiny", **overrides):
    """The task and the prepared articles at the start of training."""
    articles = {} if "data.source" in overrides else tiny.write_articles(folder)
    if overrides.get("init_from"):
        articles.pop("data.vocab_file", None)
    return tiny.ready(tree_of(variant, **{**articles, **overrides}), folder / "data")


def write_rows(folder, *rows, name="rows.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def results_of(data, logit):
    """Returns each validation example with outputs in which a sentence's logit is a function of its label."""
    results = []
    for example in data.validation_examples():
        article, parts = example.source.extra
        outputs = []
        for covers, _ in parts:
            logits = np.full(40, 99.0, np.float32)  # values after the sentences have no meaning
            logits[: len(covers)] = [logit(article.labels[i]) for i in covers]
            outputs.append({"logits": logits})
        results.append((example, outputs))
    return results


# Training and scoring.


def test_a_run_learns_and_beats_the_first_sentences(run):
    workdir, _ = run
    metrics = lines_of(workdir / "metrics.jsonl")
    baselines, *trained = metrics
    ends = [f"{name}{end}" for name in FIGURES for end in ("", "_low", "_high")]
    of_baselines = {f"valid/{who}_{name}" for who in ("lead", "oracle") for name in ends}
    assert baselines.keys() == {"step", *of_baselines, "valid/tokenized_texts", "valid/lowercased_texts"}
    assert all(baselines[f"valid/oracle_{name}"] == 100 for name in FIGURES)
    for name in FIGURES:
        low, middle, high = (baselines[f"valid/lead_{name}{end}"] for end in ("_low", "", "_high"))
        assert 10 < low < middle < high < 80 and 20 < middle < 70
    losses = [line["train/loss"] for line in trained if "train/loss" in line]
    assert losses[0] > 0.4 and losses[-1] < 0.1
    scores = [line for line in trained if "valid/rouge1" in line]
    assert [line["step"] for line in scores] == [50, 100]
    last = scores[-1]
    assert last["valid/rougeLsum"] > 95 and last["valid/loss"] < 0.3
    assert last["valid/over_lead"] == pytest.approx(last["valid/rougeLsum"] - baselines["valid/lead_rougeLsum"])
    assert last["valid/over_lead_low"] > 20 and last["valid/over_lead_p"] < 0.01
    for name in FIGURES:
        assert last[f"valid/{name}_low"] <= last[f"valid/{name}"] <= last[f"valid/{name}_high"]


def test_evaluation_repeats_the_scores_and_accepts_other_selections(run):
    workdir, command = run
    metrics = lines_of(workdir / "metrics.jsonl")
    again = json.loads(done("--mode=evaluate", f"--workdir={workdir}").stdout)
    assert again == pytest.approx({k: v for k, v in {**metrics[0], **metrics[-1]}.items() if k != "step"}, rel=1e-4)
    source = next(flag for flag in command if flag.startswith("--config.data.source="))
    published = [CONFIG, f"--config.init_from={workdir}", source, "--config.data.valid_fraction=0.2"]
    same = done("--mode=evaluate", *published)  # with the rows and the selection of the run
    assert json.loads(same.stdout) == pytest.approx(again, rel=1e-6)
    assert f"data.seq_len: {ROWS['data.seq_len']}, from {workdir}; the config file has None" in same.stderr
    assert f"selection.num_sentences: 2, from {workdir}; the config file has 3" in same.stderr
    one = json.loads(done("--mode=evaluate", *published, "--config.selection.num_sentences=1").stdout)
    assert one["valid/rougeLsum"] < 80 and one["valid/oracle_rougeLsum"] < 80
    assert one["valid/loss"] == pytest.approx(again["valid/loss"])


def test_the_mean_of_checkpoints_has_no_intervals(run):
    workdir, _ = run
    command = ["--mode=evaluate", f"--workdir={workdir}"]
    each = json.loads(done(*command, "--checkpoint=each:last:2").stdout)
    one, other = (json.loads(done(*command, f"--checkpoint={step}").stdout) for step in (50, 100))
    assert each.keys() == {name for name in one if not name.endswith(("_low", "_high", "_p"))}
    assert each["valid/over_lead"] == pytest.approx((one["valid/over_lead"] + other["valid/over_lead"]) / 2)


def test_metrics_of_right_and_wrong_selections(tmp_path):
    task, data, *_ = ready(tmp_path)
    right = task.score(results_of(data, lambda label: 30 if label else -30))
    assert set(right) == set(task.score_names())
    assert all(right[name] == 100 for name in FIGURES) and right["loss"] < 1e-9
    wrong = task.score(results_of(data, lambda label: -1.0 if label else 1.0))
    assert wrong["rouge2"] < 30 and wrong["over_lead"] < 0
    assert wrong["loss"] == pytest.approx(6 * np.log1p(np.e))
    with pytest.raises(UserError, match=r"scores of sentences: got NaN for sentence 0"):
        task.score(results_of(data, lambda label: np.nan))


def test_recall_is_reported_if_words_are_limited(tmp_path):
    task, data, *_ = ready(tmp_path, **{"rouge.words": "reference", "selection.num_sentences": 1})
    scores = task.score(results_of(data, lambda label: 30 if label else -30))
    assert set(scores) == set(task.score_names())
    for name in FIGURES:  # recall is half of the reference
        assert scores[f"{name}_recall"] < scores[name] < 100
        assert scores[f"{name}_recall_low"] <= scores[f"{name}_recall"] <= scores[f"{name}_recall_high"]
    assert data.baselines()["valid/oracle_rouge1_recall"] == scores["rouge1_recall"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"match_reference": "sentences", "selection.num_sentences": 0, "selection.threshold": 0.999}, 14),
        ({"match_reference": "words", "selection.num_sentences": 6}, 14),
        ({"selection.num_sentences": 6}, 42),
        ({"selection.num_sentences": 0, "selection.threshold": 0.5}, 14),
    ],
)
def test_lengths_of_scored_summaries(tmp_path, overrides, words):
    """The oracle has at most as many sentences as it selects. The baseline has three sentences by default."""
    task, data, *_ = ready(tmp_path, **{"selection.block_ngrams": 0, **overrides})
    article = next(data.validation_examples()).source.extra.article
    scores = np.where(article.labels, 0.9, 0.4)

    rules = task._config.rules(article)

    def length(summary):
        return sum(len(sentence.split()) for sentence in summary)

    assert length(summaries.summary(article, scores, rules)) == words
    as_lead = 21 if words == 14 and "match_reference" not in overrides else words
    assert length(summaries.lead(article, rules)) == as_lead
    assert length(summaries.oracle(article, rules)) == min(words, 14)


def test_the_gain_of_a_sentence_is_the_score_of_the_summary_minus_that_without_it():
    config, reference = RougeConfig(), ["Two dogs ran home.", "It rained."]
    record = {"summary": ["Two dogs ran.", "Nobody saw a cat.", "It rained."], "reference": reference}
    full, *rests = (
        rouge([summary], [reference], config)["rougeLsum"]
        for summary in [record["summary"], *itertools.combinations(record["summary"][::-1], 2)]
    )
    scored = summaries.scored(record, config)
    assert scored["loss"] == pytest.approx(100 - full)
    assert scored["gains"] == pytest.approx([full - rest for rest in rests], abs=0.01)
    assert scored["gains"][0] > scored["gains"][2] > 10 and scored["gains"][1] < 0
    assert summaries.scored({"summary": ["a"]}, config) == {"loss": None}


def test_epochs_of_rows_with_a_trained_vocabulary(tmp_path):
    articles = tiny.write_articles(tmp_path) | {"data.vocab_file": "", "data.vocab_size": 60, "num_epochs": 1.0}
    steps = ("num_steps", "evaluate_every", "checkpoint.save_every")
    found = stages.of_config(bertsum_ext, tree_of(**articles, **dict.fromkeys(steps)))
    data = found.data(tmp_path / "data")
    data.prepare()
    values = traverse_util.flatten_dict(found.complete(data).config, sep=".")
    defaults = traverse_util.flatten_dict(tree_of(), sep=".")
    for key in steps:
        assert values[key] == data.train.steps_per_epoch != defaults[key]


@pytest.mark.parametrize("scorer", ["classifier", "transformer"])
def test_the_loss_is_a_sum_over_sentences(tmp_path, scorer):
    task, data, *_ = ready(tmp_path, f"tiny,{scorer}")
    batch = next(data.batches("train", 0, np.arange(8)))
    params = random_params(task.init)
    weights = batch["label_weights"]
    rows = jax.tree.map(jnp.asarray, batch)
    loss = jax.jit(lambda weights: task.loss(params, rows | {"label_weights": weights}, None))
    sums, metrics = loss(weights)
    parts = [loss(weights * row[:, None])[0]["sentences"] for row in np.eye(8, dtype=np.float32)]
    np.testing.assert_allclose(sums["sentences"], sum(parts), rtol=1e-5)
    assert metrics["accuracy"][1] == weights.sum() == task.denominators(batch)["sentences"] == 16
    assert metrics["tokens"] == ((batch["segment_ids"] != 0).sum(), 1)
    assert 0.3 < sums["sentences"] / 16 < 3
    summed = ready(tmp_path, f"tiny,{scorer}", loss_reduction="sum").task
    assert summed.denominators(batch) == {"sentences": 1}
    assert task.denominators({"label_weights": np.zeros((8, 24))}) == {"sentences": 1}


# Prediction.


def test_the_record_of_an_article(run):
    workdir, _ = run
    (record,) = predict(
        f"--workdir={workdir}", stdin=" ".join(SENTENCES[:3]) + "\n\n" + "  ".join(SENTENCES[3:]) + "\n"
    )
    assert record.keys() == {"id", "summary", "positions", "sentences", "scores", "refused", "split"}
    assert record["sentences"] == SENTENCES
    assert record["summary"] == [record["sentences"][i] for i in record["positions"]]
    # The best sentence comes first; the other one repeats "sings and the".
    best, second = sorted((1, 4), key=lambda i: -record["scores"][i])
    assert record["scores"][best] >= record["scores"][second] > 0.9
    assert record["positions"] == sorted([best, record["positions"][0] + record["positions"][1] - best])
    (refusal,) = [each for each in record["refused"] if each["position"] == second]
    assert refusal == {"position": second, "reason": "block_ngrams", "blocked_by": best, "ngram": "sings and the"}
    assert None not in record["scores"]


def test_short_sentences_are_selected_unless_min_words_is_set(tmp_path):
    def numbers(**overrides):
        (example,) = ready(tmp_path, **overrides).task.examples(iter(SENTENCES))
        return example.source.extra.article.numbers

    assert numbers() == (0, 1, 2, 3, 4, 5)
    assert numbers(**{"selection.min_words": 5}) == (0, 1, 3, 4, 5)


def test_a_word_budget_below_every_sentence_is_warned_about(tmp_path, caplog):
    task, data, *_ = ready(tmp_path, **{"selection.num_sentences": 0, "selection.word_budget": 6})
    article = next(data.validation_examples()).source.extra.article
    for budget in (7, 6):
        progress._logged.clear()
        caplog.clear()
        rules = dataclasses.replace(task._config.rules(article), word_budget=budget)
        chosen = summaries.select(article, np.zeros(len(article.numbers)), rules).chosen
        told = [message for message in caplog.messages if "selection.word_budget" in message]
        assert (len(chosen), len(told)) == ((1, 0) if budget == 7 else (0, 1))


def test_predictions_as_text_as_rows_and_as_a_page(run):
    workdir, _ = run
    text = "\n".join(SENTENCES)
    record = predict(f"--workdir={workdir}", stdin=text)[0]
    command = ["--mode=predict", f"--workdir={workdir}"]
    assert done(*command, stdin=text).stdout == " ".join(record["summary"]) + "\n"
    page = done(*command, "--format=html", stdin=text).stdout
    assert page.startswith("<!doctype html>") and "repeats “sings and the” of sentence" in page


def test_files_of_all_kinds(run, tmp_path):
    workdir, _ = run
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "a" / "three.story").write_text(" ".join(SENTENCES) + "\n\n@highlight\n\nA cat sings\n")
    (tmp_path / "a" / "two.story").write_text(" ".join(SENTENCES))
    write_rows(tmp_path / "a", {"id": 7, "article": SENTENCES, "summary": "A cat.\nIt sings."}, {"article": SENTENCES})
    records = predict(f"--workdir={workdir}", f"--input={tmp_path / 'a'}")
    ids = ["one.txt", "7", f"{tmp_path / 'a' / 'rows.jsonl'}:2", "three.story", "two.story"]
    references = [None, ["A cat.", "It sings."], None, ["A cat sings"], None]
    assert [(record["id"], record.get("reference")) for record in records] == [*zip(ids, references, strict=True)]
    for record in records:
        assert record["sentences"] == SENTENCES and record["positions"] == records[0]["positions"]
        np.testing.assert_allclose(np.array(record["scores"], float), np.array(records[0]["scores"], float), atol=2e-5)


def test_sentences_after_truncation_have_no_scores(run):
    workdir, _ = run
    published = [CONFIG, f"--config.init_from={workdir}", *flags(ROWS)]
    (cut,) = predict(*published, "--config.data.long_articles=cut", stdin="\n".join(SENTENCES))
    assert [score is None for score in cut["scores"]] == [False, False, False, True, True, True]
    assert set(cut["positions"]) <= {0, 1, 2}


def test_no_attention_is_drawn(run):
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={run[0]}", "--plot=a.svg", stdin=SENTENCES[0].encode())
    tiny.check_message(outcome.error, "--plot", "a task that draws no attention", expected="translation", fix="omit it")


# Models in `init_from`.


def test_other_segments_than_those_of_training_are_a_warning(run):
    workdir, _ = run
    text = "\n".join(SENTENCES)
    records = predict(f"--workdir={workdir}", stdin=text)
    bare = [CONFIG, f"--config.init_from={workdir}", *flags(ROWS), "--config.data.interval_segments=False"]
    outcome = done("--mode=predict", "--format=jsonl", *bare, stdin=text)
    assert json.loads(outcome.stdout)["scores"] != records[0]["scores"]
    assert f"data.interval_segments=False, but {workdir} was trained on rows with True" in outcome.stderr


def test_row_settings_come_from_init_from(golden_vocabulary, tmp_path):
    small = {"data.vocab_file": str(golden_vocabulary), "data.lowercase": True, "model.num_heads": 3}
    for scorer, words in (("transformer", "spaces"), ("rnn", "bert")):
        values = {**ROWS, **small, **dict.fromkeys(SIZES), "init_from": str(GOLDEN / f"{scorer}.pt")} | small
        assert resolved("", **values)["data"]["words"] == words
    source = tiny.write_articles(tmp_path)["data.source"]
    values |= {"init_from": str(GOLDEN / "transformer.pt"), "data.interval_segments": False}
    task = ready(tmp_path, "", **{**values, "data.source": source, "data.seq_len": 40}).task
    params = task.warm_start(random_params(task.init), open_weights(GOLDEN / "transformer.pt"))
    task.export(params, tmp_path / "exported")
    values = {**ROWS, **dict.fromkeys(SIZES), "init_from": str(tmp_path / "exported")}
    data = resolved("", **values)["data"]
    assert (data["words"], data["interval_segments"]) == ("spaces", False)
    values["init_from"] = str(published.write_huggingface(tmp_path / "bert"))
    data = resolved("", **values)["data"]
    assert (data["words"], data["interval_segments"]) == ("bert", True)


def test_sentence_pooling_follows_the_encoder(minilm, tmp_path):
    encoder = tmp_path / "encoder"
    shutil.copytree(minilm, encoder)
    values = {"init_from": str(encoder), **ROWS, **dict.fromkeys(SIZES)}
    assert resolved("classifier", **values)["model"]["sentence_pooling"] == "mean"
    assert resolved("classifier", **values, **{"model.sentence_pooling": "cls"})["model"]["sentence_pooling"] == "cls"
    assert resolved("presumm", **values)["model"]["sentence_pooling"] == "cls"
    (encoder / "1_Pooling" / "config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    assert resolved("classifier", **values)["model"]["sentence_pooling"] == "cls"
    shutil.rmtree(encoder / "1_Pooling")
    assert resolved("classifier", **values)["model"]["sentence_pooling"] == "cls"
    assert resolved("tiny")["model"]["sentence_pooling"] == "cls"


def test_weights_without_a_scorer_start_with_a_classifier(run, tmp_path, caplog):
    """Unset keys of the scorer get their defaults."""
    workdir, _ = run
    done("--mode=export", f"--workdir={workdir}", f"--output={tmp_path / 'exported'}")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    del config["bertsum"]
    (tmp_path / "exported" / "config.json").write_text(json.dumps(config))
    values = {"init_from": str(tmp_path / "exported"), **ROWS}
    assert resolved("", **values)["model"]["scorer"] == "classifier"
    model = resolved("transformer", **{**values, **dict.fromkeys(SIZES)})["model"]
    assert (model["scorer"], model["scorer_layers"], model["scorer_heads"]) == ("transformer", 2, 8)


@pytest.fixture(scope="module")
def golden_vocabulary(tmp_path_factory):
    """A vocabulary of the size of the PreSumm checkpoints."""
    path = tmp_path_factory.mktemp("golden") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *tiny.WORDS, *map(str, range(11))]))
    assert len(path.read_text().split()) == 37
    return path


def test_scores_of_a_presumm_checkpoint_equal_those_of_the_model(golden_vocabulary):
    values = {"init_from": GOLDEN / "transformer.pt", "data.vocab_file": golden_vocabulary, "data.lowercase": True}
    values |= {"model.num_heads": 3, "data.seq_len": 40, "data.window_overlap": 10}  # no file has these keys
    (record,) = predict(f"{CONFIG}:presumm", *flags(values), stdin="\n".join(SENTENCES[:4]))
    found = [score for score in record["scores"] if score is not None]
    assert len(found) == 3 and np.ptp(found) > 1e-4
    assert record["positions"][0] == record["scores"].index(max(found))  # sorted by score
    model, params = read_golden(GOLDEN / "transformer.pt")
    words = [SENTENCES[i].lower().split() for i in (0, 1, 3)]  # split at spaces: words with a full stop are unknown
    vocabulary = golden_vocabulary.read_text().split()
    ids = [[2, *(vocabulary.index(word) if word in vocabulary else 1 for word in each), 3] for each in words]
    starts = np.cumsum([0, *map(len, ids[:-1])])
    types = [i % 2 for i, each in enumerate(ids) for _ in each]
    ids, types, starts = (jnp.asarray(x)[None] for x in (np.concatenate(ids), types, starts))
    inputs = BertInputs(ids, types, jnp.ones_like(ids), cls_positions=starts)
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    logits = apply({"params": params}, inputs, jnp.ones_like(starts))
    np.testing.assert_allclose(found, jax.nn.sigmoid(logits[0]), atol=2e-5)


# Training data.


def test_the_length_of_rows_is_checked(tmp_path):
    with pytest.raises(UserError, match=r"data\.seq_len: got 4; expected 8 to"):
        ready(tmp_path, **{"data.seq_len": 4})


def test_articles_in_another_language(tmp_path, caplog):
    sentences = ["猫坐在红色的垫子上。", "小狗在河边看见一条鱼！", "今天下雨了吗？", "老师说：“明天放假。”"]
    rows = [{"text": "".join(sentences), "summary": sentences[1]} for _ in range(10)]
    values = {**tiny.write_articles(tmp_path), "data.source": write_rows(tmp_path, *rows), "data.layout": "line"}
    values["data.valid_source"] = values["data.source"]
    with pytest.raises(UserError, match=r"got 0 of 10 articles .*oracle\.letters=unicode --config\.rouge\.flavor"):
        ready(tmp_path / "ascii", **values).data.train  # noqa: B018
    values |= {"data.oracle.letters": "unicode", "rouge.flavor": "unicode", "rouge.stem": False}
    values |= {"data.oracle.units": "characters", "rouge.units": "characters"}
    data = ready(tmp_path / "unicode", **values).data
    assert data.train.steps_per_epoch
    article = next(data.validation_examples()).source.extra.article
    assert (article.article.sentences, article.labels) == (tuple(sentences), (0, 1, 0, 0))
    assert data.baselines()["valid/oracle_rouge2"] == 100
    # A few summaries that do not match their articles are accepted, many are reported.
    rows = [{**row, "summary": "雪" if i < 8 else row["summary"]} for i, row in enumerate(rows)]
    values |= {"data.source": write_rows(tmp_path, *rows, name="few.jsonl"), "data.limits.min_summary_words": 0}
    assert ready(tmp_path / "few", **values).data.train.steps_per_epoch
    assert [message for message in caplog.messages if message.startswith("2 of 10 articles")]


def test_the_verbatim_oracle_refuses_other_summaries(tmp_path):
    rows = [{"article": SENTENCES, "summary": " ".join(SENTENCES[:2])} for _ in range(10)]
    values = {**tiny.write_articles(tmp_path), "data.source": write_rows(tmp_path, *rows)}
    values["data.valid_source"] = values["data.source"]
    with pytest.raises(UserError, match="belong to the articles, and that they have one sentence per line"):
        ready(tmp_path, **values, **{"data.oracle.method": "verbatim"}).data.train  # noqa: B018


def test_samples_show_articles_and_the_oracle(tmp_path):
    task, data, *_ = ready(tmp_path)
    found = shown(task, data, tmp_path / "shown")
    for example, article in zip(found.examples, data.validation_examples(), strict=False):
        sentences = article.source.item.sentences
        assert [sentences[number] for number in example["oracle"]] == example["reference"]
        assert [each["text"] for each in example["scored"]] == list(sentences)
