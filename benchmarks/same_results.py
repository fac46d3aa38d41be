"""Shows whether a change of the code changed any result.

    python -m benchmarks.same_results --before=COMMIT [--experiments=classification,tagging] [--keep=FOLDER]
        [--allow=prepared]

Runs the same tiny cases of all experiments with the package of COMMIT and with that of this checkout, and compares the
SHA-256 of every result: training and validation batches, parameters after 20 updates, metrics, config, vocabulary and
counts of rows of the run, predictions from all forms of input, evaluations, mined rows and exported files; and, as a
group of their own, prepared rows with the digests in the names of their folders. Prints the number of equal hashes of
each experiment, the errors of users among them, and the names that differ or that one side lacks; the exit status is 1
if there are any, except in the group that --allow names.

Files have relative paths and random numbers have seeds, so that equal code gives equal bytes. Left out is what differs
between two runs of the same code: times, speeds, memory, logs, TensorBoard files and the commit; and the files of
checkpoints, whose parameters are hashed instead.
"""

import argparse
import ast
import collections
import contextlib
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PREPARED = "prepared"
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # tiny programs take longer to optimize than to run
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_multi_thread_eigen=false",
}
# Names of metrics and config keys that differ between two runs of the same code, or between two commits.
TIMED = re.compile(r"seconds|per_sec|data_wait|memory|goodput|mfu|^commit$")
# Files of a run's folder that do, and those whose content is hashed in another way.
LEFT_OUT = re.compile(r"(config|environment)\.json|metrics\.jsonl|goodput|lock|tensorboard|checkpoints")

ENGLISH = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "fish",
    "sees",
    "likes",
    "finds",
    "small",
    "big",
    "red",
    "old",
    "house",
    "tree",
    "river",
    "and",
    "runs",
    "sleeps",
    "sings",
]
KOREAN = ["고양이", "강아지", "나무", "강", "집", "빨간", "작은", "본다", "좋아한다", "노래한다"]
NAMES = ("Ann", "Bob", "Kim", "민수", "지은")
COLORS = ("dark Gray", "light Blue", "연한 초록")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
# The values of config keys in all cases whose config has them. Of weights in init_from, the model keeps its sizes.
# A large initializer_range makes the outputs of different inputs differ.
SHARED = """
num_steps=20 batch_size=8 log_every=5 evaluate_every=10 num_scored=6 target_len=12 checkpoint.save_every=20
checkpoint.final=latest checkpoint.keep_best=1 optimizer.learning_rate=0.01 optimizer.warmup_steps=2
model.num_layers=1 model.num_decoder_layers=1 model.hidden_size=16 model.num_heads=2 model.intermediate_size=32
model.max_positions=32 model.initializer_range=0.4 model.dropout=0.1 model.attention_dropout=0.1
model.decoder_layers=1 model.decoder_heads=2 model.decoder_intermediate=32 model.scorer_layers=1 model.scorer_heads=2
model.scorer_intermediate=16 decoding.num_beams=2 decoding.max_length=12 decoding.max_extra=12 decoding.min_extra=1
data.seq_len=24 data.valid_fraction=0.2 data.workers=1 data.vocab_file=vocab.txt data.vocab_size=120
data.doc_stride=6 data.max_query_length=8 data.max_answer_length=4"""
# Words in capitals of CASES. Braces hold the experiment, and the name of the case.
MACROS = {
    "TABLES": "rows.tsv rows.csv rows.jsonl rows.parquet",
    "LABELED": "data.source=rows.jsonl data.text_columns=('text',)",
    "OF_PAIRS": "data.source=rows.jsonl data.text_columns=('text','other')",
    "RELATED": "data.source=related.jsonl data.text_columns=('query','positive','negatives')",
    "DOCUMENTS": "data.source=documents.txt data.lines=sentence",
    "UNPACKED": "data.packing=False data.stages=()",
    "PARALLEL": "data.source=pairs.en data.target=pairs.ko data.vocab_file=",
    "DATES": "data.num_valid=16 data.num_test=16 data.vocab_file= data.seq_len=32",
    "ARTICLES": "data.source=articles.jsonl data.window_overlap=8 data.limits.min_sentences=1 data.limits.min_words=1 "
    "data.limits.min_summary_words=1",
    "PRETRAINED": "init_from=runs/bert_pretraining/masked data.vocab_file=",
    "MASKED": "init_from=runs/bert_pretraining/masked",
    "RANKING": "--config=configs/retrieval.py init_from=runs/embeddings/ranking",
    "LENGTHS": "data.doc_stride=6 data.max_query_length=8",
    "EXPORTED": "--config=configs/{experiment}.py init_from=out/{name}/exported data.seq_len=24",
    "BY_RUN": "--config=configs/{experiment}.py init_from=runs/{name} data.seq_len=24",
    "SKIP": "data.on_bad_row=skip",
}
# A line for each run: its name, the variant of its config, and config keys; "-" is no run. Then lines for commands: the
# mode, the inputs, flags and config keys. Commands without --config use the run.
CASES = """
classification/classes tiny LABELED data.valid_source=valid.jsonl class_weights=(1.0,2.5)
  predict texts.txt --format=csv
  predict TABLES --columns=id,day
  predict bad.txt bad.jsonl SKIP
  predict bad.txt bad.jsonl
  evaluate
  evaluate data.test_source=rows.csv
  export --output=exported
  predict texts.txt EXPORTED
  predict texts.txt BY_RUN
  evaluate EXPORTED data.valid_source=valid.jsonl data.text_columns=('text',)
classification/pairs tiny OF_PAIRS data.row_lengths=(8,16,24)
  predict pairs.txt rows.tsv
  predict bad.txt SKIP
classification/packed tiny LABELED data.packing=True
classification/numbers tiny,stsb,tsv OF_PAIRS data.label_column=score
  predict rows.csv
  evaluate
classification/lists tiny LABELED objective=multi_label data.label_column=kinds metrics=('micro_f1','macro_f1')
  predict texts.txt threshold=0.3
  evaluate
classification/columns tiny,jigsaw LABELED data.source=rows.csv data.label_column=toxic,threat
  predict texts.txt --format=csv
classification/separated tiny,goemotions LABELED data.source=rows.tsv data.header=True data.label_column=kinds
classification/parquet tiny LABELED data.source=rows.parquet
classification/skipped tiny LABELED SKIP data.source=bad.jsonl
classification/pretrained - LABELED PRETRAINED
  evaluate
classification/warm - LABELED init_from=runs/classification/classes data.source=valid.jsonl data.vocab_file=
  predict texts.txt
tagging/entities tiny data.source=sentences.conll
  predict names.txt
  predict names.txt --format=tsv data.split_punctuation=False
  predict words.jsonl data.text_field=tokens
  predict TABLES data.text_field=text --columns=id
  predict bad.txt SKIP
  predict bad.jsonl SKIP data.text_field=text
  evaluate
  evaluate data.test_source=words.jsonl
  export --output=exported
  predict names.txt EXPORTED
  predict names.txt BY_RUN
  evaluate EXPORTED data.valid_source=sentences.conll
tagging/bilou tiny data.source=sentences.bilou class_weights=(1.0,2.0,2.0,3.0,3.0)
tagging/iob1 tiny data.source=sentences.iob1 data.packing=True
tagging/lists tiny data.source=words.jsonl
tagging/spans tiny data.source=spans.jsonl
  evaluate
tagging/words tiny data.source=words.csv
tagging/plain tiny data.source=plain.conll
  predict names.txt
  evaluate
tagging/pretrained - data.source=sentences.conll PRETRAINED
  predict names.txt
tagging/warm - data.source=sentences.iob1 init_from=runs/tagging/entities data.vocab_file=
  predict names.txt
tagging/features tiny,features data.source=sentences.conll model.feature_layers=(-1,) model.lstm_size=8
question_answering/answered tiny,squad data.source=squad.json
  predict squad.json flat.jsonl questions.jsonl questions.parquet mrqa.jsonl
  predict questions.parquet --columns=day --format=csv
  predict squad.json --output=official.json
  predict bad_squad.json bad_questions.jsonl SKIP
  evaluate
  export --output=exported
  predict squad.json EXPORTED LENGTHS
  predict squad.json BY_RUN LENGTHS
  evaluate EXPORTED LENGTHS data.valid_source=squad.json
question_answering/unanswered tiny,squad2 data.source=squad2.json data.packing=True
  predict squad2.json data.null_threshold=-1.0
  evaluate
question_answering/flat tiny,squad2 data.source=flat.jsonl data.row_lengths=(8,16,24)
question_answering/mrqa tiny data.source=mrqa.jsonl data.valid_source=mrqa.jsonl
question_answering/warm - data.source=squad.json PRETRAINED
multiple_choice/swag tiny,swag data.source=swag.csv
  predict choices.txt swag.csv --format=csv
  predict bad.txt SKIP
  evaluate
  export --output=exported
  predict choices.txt EXPORTED
  predict choices.txt BY_RUN
multiple_choice/arc tiny,arc data.source=arc.jsonl data.row_lengths=(8,16,24)
  predict arc.jsonl --columns=id
  evaluate
multiple_choice/warm arc data.source=arc.jsonl PRETRAINED
  predict arc.jsonl
embeddings/ranking tiny RELATED sizes=(4,8) data.num_negatives=3 retrieval.source=beir
  predict texts.txt
  predict TABLES data.text_columns=('text','other') --columns=id
  predict bad.txt SKIP
  evaluate
  export --output=exported
  predict texts.txt EXPORTED
  predict texts.txt BY_RUN
embeddings/similarity tiny,similarity OF_PAIRS data.query_prompt=the
  evaluate
embeddings/teacher tiny,distillation RELATED data.score_column=scores
embeddings/labels tiny LABELED data.label_column=label learn_scale=True
  evaluate
embeddings/warm - RELATED PRETRAINED symmetric=True data.document_prompt=집
reranker/listwise tiny RELATED
  predict asked.txt related.jsonl
  predict TABLES data.text_columns=('label','text','other') --columns=id
  predict bad.txt SKIP
  evaluate
  export --output=exported
  predict asked.txt EXPORTED
  predict asked.txt BY_RUN
reranker/binary tiny,binary RELATED data.score_column=scores checkpoint.best_metric=valid/average_precision
  evaluate
reranker/teacher tiny,distillation RELATED data.score_column=scores
reranker/regression tiny,regression RELATED data.text_columns=('query','positive') data.score_column=score
reranker/warm binary RELATED PRETRAINED
  predict asked.txt
bert_pretraining/masked tiny DOCUMENTS data.stages=((0.5,8),)
  predict masks.txt
  predict masks.tsv masks.csv masks.jsonl masks.parquet --columns=id
  predict bad_masks.txt SKIP
  evaluate
  export --output=exported
  predict masks.txt EXPORTED
  predict masks.txt BY_RUN
bert_pretraining/sentences tiny DOCUMENTS UNPACKED masking.whole_word=True masking.mode=static masking.dupe_factor=2
bert_pretraining/causal tiny DOCUMENTS UNPACKED objective=causal_lm model.direction=left_to_right \
    data.next_sentence=False minimal_pairs.source=minimal.jsonl
  evaluate
bert_pretraining/table tiny,modern data.source=rows.jsonl data.vocab_file= data.stages=()
bert_pretraining/continued phase2 DOCUMENTS PRETRAINED
replaced_tokens/packed tiny DOCUMENTS data.stages=((0.5,8),) generator.width=0.5
  predict texts.txt pairs.txt TABLES bad.txt SKIP
  evaluate
  export --output=exported
  predict masks.txt BY_RUN generator.width=0.5
replaced_tokens/rows tiny DOCUMENTS UNPACKED generator.width=0.5
features/all none
  predict texts.txt pairs.txt bad.txt --config=configs/features.py:word MASKED SKIP
  predict texts.txt --config=configs/features.py:word MASKED word_pooling=mean model.layers=(0,-1) --output=words
  predict texts.txt --config=configs/features.py:piece MASKED --output=pieces
  predict texts.txt pairs.txt TABLES --config=configs/features.py:sentence MASKED data.seq_len=24
  predict rows.csv --config=configs/features.py:sentence MASKED data.text_columns=('text','other') --columns=id
  predict texts.txt --config=configs/features.py:sentence init_from=out/embeddings/ranking/exported
  export --config=configs/features.py:sentence MASKED --output=exported
minimal_pairs/all none
  evaluate --config=configs/minimal_pairs.py MASKED data.test_source=minimal.jsonl
  evaluate --config=configs/minimal_pairs.py MASKED data.valid_source=minimal.txt method=within_word_l2r
  evaluate --config=configs/minimal_pairs.py init_from=runs/bert_pretraining/causal data.test_source=minimal.jsonl
  predict good.txt bad.txt rows.jsonl --config=configs/minimal_pairs.py MASKED SKIP
retrieval/all none
  evaluate RANKING data.test_source=beir
  evaluate RANKING data.test_source=beir reranker=runs/reranker/listwise rerank=5
  evaluate RANKING data.test_source=related.jsonl
  evaluate --config=configs/retrieval.py:labels init_from=runs/embeddings/ranking data.source=rows.jsonl \
    data.test_source=rows.csv
  mine RANKING data.source=related.jsonl
  mine RANKING data.source=beir mining.sampling=random mining.num_negatives=2
  predict texts.txt RANKING data.corpus=beir/corpus.jsonl
translation/files tiny PARALLEL
  predict texts.txt
  predict texts.txt --format=jsonl
  predict TABLES data.source_column=text --columns=id --format=jsonl
  predict pairs.tmx data.source_column=en --format=jsonl
  predict texts.txt bad.txt SKIP data.on_long_line=refuse --format=jsonl
  predict asked.txt SKIP decoding.method=forced
  predict rows.csv SKIP decoding.method=forced data.source_column=text data.target_column=other
  predict texts.txt decoding.method=sampling --format=jsonl
  evaluate
  evaluate data.test_source=pairs.en data.test_target=pairs.ko
  predict texts.txt BY_RUN
translation/packed tiny PARALLEL data.source=pairs.tmx data.target= data.packing=True data.source_column=en \
    data.target_column=ko
translation/table tiny PARALLEL data.source=rows.tsv data.target= data.source_column=text data.target_column=other \
    data.joint=False data.subwords=wordpiece model.share_embeddings=False
translation/recurrent rnn,dates DATES
  predict texts.txt
  evaluate
translation/dates tiny,dates DATES
  predict texts.txt
translation/warm - PARALLEL init_from=runs/translation/files
  predict texts.txt
bertsum_ext/windows tiny ARTICLES
  predict articles.jsonl
  predict articles.jsonl articles.csv articles.parquet stories --format=jsonl
  predict article.txt articles.jsonl --format=html
  predict rows.jsonl SKIP data.article_field=text --columns=day --format=jsonl
  predict bad.txt SKIP data.layout=line --format=jsonl
  evaluate
  evaluate data.test_source=articles.csv
  export --output=exported
  predict articles.jsonl EXPORTED
  predict articles.jsonl BY_RUN
bertsum_ext/cut tiny,transformer ARTICLES data.long_articles=cut data.vocab_file=
  evaluate
bertsum_ext/presumm tiny,rnn,presumm ARTICLES
bertsum_ext/warm - ARTICLES PRETRAINED
bertsum_abs/cut tiny ARTICLES
  predict articles.jsonl articles.parquet
  predict articles.csv stories --format=jsonl
  predict bad.txt SKIP data.layout=line --format=jsonl
  evaluate
  export --output=exported
bertsum_abs/extracted - ARTICLES init_from=runs/bertsum_ext/windows data.vocab_file= model.decoder_layers=1 \
    model.decoder_heads=2 model.decoder_intermediate=32
"""
TEXTS = ("a cat sees the dog .", "작은 고양이가 강아지를 본다 .", "old tree and " * 12)
# The Python objects that the model of a case predicts on.
OBJECTS: dict[str, Sequence[Any]] = {
    "classification/classes": TEXTS,
    "classification/pairs": list(zip(TEXTS, reversed(TEXTS), strict=True)),
    "tagging/entities": ["Ann sees old river .", ["민수", "likes", "old", "tree,"], "Kim finds old house . " * 8],
    "question_answering/answered": [
        {"question": "Which color is it?", "context": f"{text} It is dark Gray ."} for text in TEXTS
    ],
    "multiple_choice/swag": [("a cat", "sees the dog", "강아지를 본다"), (TEXTS[2], "runs", "sleeps", "sings")],
    "embeddings/ranking": TEXTS,
    "reranker/listwise": [("the dog", text) for text in TEXTS],
    "bert_pretraining/masked": ["the [MASK] sees a cat .", ("작은 [MASK]", "the [MASK]")],
    "replaced_tokens/packed": TEXTS[:2],
    "translation/files": TEXTS,
    "bertsum_ext/windows": ["The cat sees the dog. A bird sings. The old tree. 작은 강아지가 본다."],
    "bertsum_abs/cut": ["The cat sees the dog. A bird sings. The old tree. 작은 강아지가 본다."],
}


class Case(NamedTuple):
    """A tiny run and commands: their words, without macros. The variant is "none" for commands without a run."""

    name: str
    variant: str
    values: Sequence[str]
    commands: Sequence[Sequence[str]]


def cases() -> list[Case]:
    """Returns the cases of CASES."""
    parsed: list[Case] = []
    for line in CASES.replace("\\\n", " ").strip().splitlines():
        words = [part for word in line.split() for part in MACROS.get(word, word).split()]
        if line.startswith("  "):
            case = parsed[-1]
            names = {"experiment": case.name.partition("/")[0], "name": case.name}
            case.commands.append([word.format(**names) for word in words])
        else:
            parsed.append(Case(words[0], words[1].strip("-"), words[2:], []))
    return parsed


def words_of(rng: random.Random, low: int, high: int) -> str:
    """Returns random words, English or Korean; some Korean ones have a particle."""
    words = rng.choices(ENGLISH if rng.random() < 0.6 else KOREAN, k=rng.randint(low, high))
    return " ".join(word + rng.choice(("", "가", "를")) if word in KOREAN else word for word in words)


def rows_of(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yields rows of a table with the columns of many tasks; every ninth has a text that is too long."""
    for number in range(count):
        text = words_of(rng, *((30, 40) if number % 9 == 8 else (3, 9)))
        other = words_of(rng, *((30, 40) if number % 13 == 12 else (2, 5)))
        kinds = [word for word in ("cat", "old", "작은") if word in text]
        texts = {"id": f"r{number}", "day": f"2024-01-{number % 28 + 1}", "text": f"{text} .", "other": other}
        marks = {"toxic": number % 2, "threat": int("a" in text), "score": round(rng.random() * 5, 2)}
        yield {**texts, "label": ("yes", "no", "no")[number % 3], "kinds": kinds, **marks}


def sentence_of(rng: random.Random, phrases: int) -> list[tuple[str, str]]:
    """Returns words with BIO tags; the tagged phrases are names and old places."""
    rows: list[tuple[str, str]] = []
    for _ in range(phrases):
        person = [(rng.choice(NAMES), "B-PER"), *([("Bell", "I-PER")] if rng.random() < 0.4 else [])]
        place = [("old", "B-LOC"), (rng.choice(("house", "tree", "집")), "I-LOC")]
        rows += [*rng.choice((person, place, person + place + place)), (rng.choice(ENGLISH), "O")]
    return [*rows, (".", "O")]


def in_scheme(scheme: str, tag: str, before: str, after: str) -> str:
    """Returns a BIO tag between two others in another scheme."""
    place, _, kind = tag.partition("-")
    if not kind or scheme == "plain":
        return kind or place
    if scheme == "bilou" and after != f"I-{kind}":
        place = {"B": "U", "I": "L"}[place]
    if scheme == "iob1" and not before.endswith(f"-{kind}"):
        place = "I"
    return f"{place}-{kind}"


def spans_of(rows: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the words as a text, and the tagged phrases as spans of characters."""
    spans: list[list[Any]] = []
    text = ""
    for word, tag in rows:
        if tag.startswith("B"):
            spans.append([len(text), 0, tag[2:]])
        text += word
        if tag != "O":
            spans[-1][1] = len(text)
        text += " "
    return {"text": text, "label": spans}


def question_of(rng: random.Random, number: int, answerable: float) -> dict[str, Any]:
    """Returns a question about the color in a context; some contexts and questions are too long."""
    words = words_of(rng, *((40, 50) if number % 8 == 7 else (3, 14))).split()
    color = rng.choice(COLORS)
    words.insert(rng.randrange(len(words)), color)
    context = "  ".join(words) + " ."
    answers = [{"text": color, "answer_start": context.index(color)}] if rng.random() < answerable else []
    asked = "Which color is it?" if number % 7 else "Which " + "old " * 12 + "?"
    return {"day": "2024-01-01", "id": f"q{number}", "question": asked, "answers": answers, "context": context}


def squad(questions: Iterable[Mapping[str, Any]]) -> str:
    """Returns questions in SQuAD's form."""
    paragraphs = [
        {"context": row["context"], "qas": [{**row, "is_impossible": not row["answers"]}]} for row in questions
    ]
    return json.dumps({"version": "2.0", "data": [{"title": "", "paragraphs": paragraphs}]}, ensure_ascii=False)


def mrqa(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a question in MRQA's form."""
    detected = []
    for answer in row["answers"]:
        start = answer["answer_start"]
        detected.append({"text": answer["text"], "char_spans": [[start, start + len(answer["text"]) - 1]]})
    asked = {"qid": row["id"], "question": row["question"], "answers": [answer["text"] for answer in row["answers"]]}
    return {"context": row["context"], "qas": [{**asked, "detected_answers": detected}]}


def write(name: str, rows: Iterable[Any]) -> None:
    """Writes texts as lines, or other rows as a table; the suffix is the form. Lists in cells have commas."""
    import pyarrow
    from pyarrow import parquet

    path, rows = Path(name), list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return
    if path.suffix in (".csv", ".tsv"):
        form = '"{}"' if path.suffix == ".csv" else "{}"
        cells = [[",".join(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows]
        separator = "," if path.suffix == ".csv" else "\t"
        rows = [separator.join(map(form.format, line)) for line in (list(rows[0]), *cells)]
    texts = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{text}\n" for text in texts))


def write_inputs(rng: random.Random) -> None:
    """Writes all files that cases read into the working directory."""
    rows = list(rows_of(rng, 45))
    masks = [{"id": row["id"], "text": f"{row['text'][:20]} [MASK] {row['other'][:9]}"} for row in rows]
    questions = [question_of(rng, number, 1.0) for number in range(40)]
    mixed = [question_of(rng, number, 0.6) for number in range(40)]
    asked = [{name: row[name] for name in ("day", "id", "question", "context")} for row in questions]
    sentences = [sentence_of(rng, 12 if number % 11 == 10 else rng.randint(1, 3)) for number in range(45)]
    endings = [[words_of(rng, 1, 4) for _ in range(4)] for _ in rows]
    choices = [texts[: 2 + number % 3] for number, texts in enumerate(endings)]
    scores = [[round(rng.random(), 3) for _ in texts] for texts in endings]
    pairs = [[" ".join(rng.choices(words, k=length % 13 + 1)) for words in (ENGLISH, KOREAN)] for length in range(60)]
    articles = []
    for number in range(30):
        texts = [f"{words_of(rng, 3, 7).capitalize()}." for _ in range(rng.randint(2, 7))]
        articles.append({"id": f"a{number}", "article": texts, "summary": sorted(rng.sample(texts, 2))})
    joined = [{name: text if name == "id" else " ".join(text) for name, text in row.items()} for row in articles]
    for suffix in ("jsonl", "csv", "tsv", "parquet"):
        write(f"rows.{suffix}", rows)
        write(f"masks.{suffix}", masks)
    write("valid.jsonl", reversed(list(rows_of(rng, 12))))
    bad = [{**row, "text": text} for row, text in zip(rows, ("", None, "a\0", 3), strict=False)]
    write("bad.jsonl", [*rows[:20], *bad, {**rows[4], "label": None}, *rows[20:]])
    write("texts.txt", [row["text"] for row in rows[:20]])
    write("pairs.txt", [f"{row['text']}\t{row['other']}" for row in rows[:20]])
    write("asked.txt", [f"{row['other'][:9]}\t{row['text']}" for row in rows[:20]])
    write("names.txt", ["Ann Bell's old house, sees Kim.", "민수 likes 작은 집", "Bob sees old tree " * 12])
    Path("bad.txt").write_bytes("a cat .\tthe dog\n\nthe \0 dog\n작은 집\n".encode() + b"a \xff cat\na\tb\tc\td\n")
    write("masks.txt", [*(row["text"] for row in masks[:15]), "a [MASK]\t강 [MASK] ."])
    write("bad_masks.txt", ["a [MASK]", "the [MASK] " * 40, "no mask", "a\tb\tc [MASK]", "강 [MASK]"])
    for name in ("sentences.conll", "sentences.bilou", "sentences.iob1", "plain.conll"):
        scheme = {"sentences.conll": "bio", "plain.conll": "plain"}.get(name, name.partition(".")[2])
        lines = []
        for sentence in sentences:
            tags = ["O", *(tag for _, tag in sentence), "O"]
            around = zip(sentence, tags, tags[2:], strict=False)
            lines += [f"{word}\tx\t{in_scheme(scheme, tag, before, after)}" for (word, tag), before, after in around]
            lines.append("")
        write(name, lines)
    write(
        "words.jsonl", [dict(zip(("tokens", "ner_tags"), zip(*each, strict=True), strict=True)) for each in sentences]
    )
    write("spans.jsonl", map(spans_of, sentences))
    numbered = [(number, *pair) for number, sentence in enumerate(sentences) for pair in sentence]
    write("words.csv", [dict(zip(("sentence_id", "word", "tag"), row, strict=True)) for row in numbered])
    write("squad.json", [squad(questions)])
    write("squad2.json", [squad(mixed)])
    write("bad_squad.json", [squad([*questions[:3], {**questions[3], "context": " "}, *questions[4:8]])])
    write("flat.jsonl", mixed)
    write("mrqa.jsonl", [{"header": {"dataset": "colors", "split": "train"}}, *map(mrqa, questions)])
    write("questions.jsonl", asked)
    write("questions.parquet", asked)
    write("bad_questions.jsonl", [*asked[:3], {**asked[3], "question": ""}, *asked[4:8]])
    swag, arc, related = [], [], []
    for number, (row, texts) in enumerate(zip(rows, endings, strict=True)):
        named = {f"ending{place}": text for place, text in enumerate(texts)}
        swag.append({"sent1": row["text"], "sent2": row["other"], **named, "label": number % 4})
        lettered = [{"text": text, "label": letter} for text, letter in zip(choices[number], "ABC", strict=False)]
        arc.append(
            {"id": row["id"], "question": {"stem": row["text"], "choices": lettered}, "answerKey": "AB"[number % 2]}
        )
        query = {"id": row["id"], "query": row["other"][:9], "positive": row["text"], "negatives": texts[1:]}
        related.append({**query, "scores": scores[number], "score": scores[number][0]})
    write("swag.csv", swag)
    write("arc.jsonl", arc)
    write("choices.txt", ["\t".join([row["text"], *texts]) for row, texts in zip(rows, choices, strict=True)])
    write("related.jsonl", related)
    write("beir/corpus.jsonl", [{"_id": f"d{row['id']}", "title": "", "text": row["text"]} for row in rows])
    write("beir/queries.jsonl", [{"_id": row["id"], "text": row["other"]} for row in rows[:15]])
    judged = [f"{row['id']}\td{row['id']}\t1" for row in rows[:15]]
    write(
        "beir/qrels/test.tsv",
        [dict(zip(("query-id", "corpus-id", "score"), line.split(), strict=True)) for line in judged],
    )
    minimal = [
        {
            "good": words_of(rng, 1, 6),
            "bad": words_of(rng, 1, 6),
            "phenomenon": "ab"[number % 2],
            "paradigm": number % 4,
        }
        for number in range(20)
    ]
    write("minimal.jsonl", [{**row, "paradigm": f"p{row['paradigm']}"} for row in minimal])
    write("minimal.txt", [f"{row['good']}\t{row['bad']}" for row in minimal])
    write("good.txt", [row["good"] for row in minimal])
    write("pairs.en", [english for english, _ in pairs])
    write("pairs.ko", [korean for _, korean in pairs])
    unit = '<tu><tuv xml:lang="en-US"><seg>{}</seg></tuv><tuv xml:lang="ko"><seg><hi>{}</hi></seg></tuv></tu>'
    write("pairs.tmx", ['<tmx version="1.4"><header/><body>', *(unit.format(*pair) for pair in pairs), "</body></tmx>"])
    write("articles.jsonl", articles)
    write("articles.csv", joined)
    write("articles.parquet", articles)
    write("article.txt", [joined[0]["article"]])
    for row in articles[:3]:
        highlights = [part for text in row["summary"] for part in ("@highlight", text)]
        write(f"stories/{row['id']}.story", ["\n\n".join([*row["article"], *highlights])])
    write("documents.txt", (f"{words_of(rng, 3, 12)} ." if rng.random() < 0.8 else "" for _ in range(240)))
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "[unused2]"]
    words = [*ENGLISH, *KOREAN, *NAMES, "Bell", "which", "color", "is", "it", *".,?'", *LETTERS]
    tokens = [*marks, *words, "##가", "##를", *(f"##{letter}" for letter in LETTERS)]
    # Vocabularies in small letters have letters without their marks, of Korean too.
    write("vocab.txt", dict.fromkeys([*tokens, *(unicodedata.normalize("NFD", token) for token in tokens)]))


def digest(*contents: bytes | str) -> str:
    """Returns the SHA-256 of contents."""
    return hashlib.sha256(b"".join(part.encode() if isinstance(part, str) else part for part in contents)).hexdigest()


def of_arrays(arrays: Mapping[str, Any]) -> str:
    """Returns a digest of named arrays: names, types, shapes and bytes."""
    import numpy as np

    named = ((name, np.asarray(value)) for name, value in sorted(arrays.items()))
    return digest(
        *(part for name, array in named for part in (f"{name} {array.dtype} {array.shape} ", array.tobytes()))
    )


def lasting(value: Any) -> Any:
    """Returns a JSON value without the entries that differ between two runs of the same code."""
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if not TIMED.search(name)}
    return value


def of_json(path: Path) -> str:
    """Returns a digest of the lasting values of a file of JSON or of JSON lines."""
    text = path.read_text()
    texts = text.splitlines() if path.suffix == ".jsonl" else [text]
    return digest(*(json.dumps(lasting(json.loads(line))) for line in texts))


def of_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the name and the digest of every file in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), digest(path.read_bytes())


def launch(arguments: Sequence[str]) -> str:
    """Runs the command line of bertjax in this process. Returns the error of a user, or ""."""
    from absl import flags

    from bertjax.launch import run

    for name in list(flags.FLAGS):
        if name.startswith("config."):
            delattr(flags.FLAGS, name)
        else:
            flags.FLAGS[name].unparse()
    flags.FLAGS.unparse_flags()
    sys.argv = ["launch.py", "--distributed=off", "--noreport", *arguments]
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, str) else ""
    return ""


def values_of(words: Iterable[str]) -> dict[str, Any]:
    """Returns the values of words such as KEY=VALUE: Python literals, and other words as texts."""
    values: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            values[name] = text
    return values


def train(case: Case, run: Path) -> Any:
    """Trains the run of a case. Returns its model."""
    from flax.traverse_util import flatten_dict

    import bertjax

    config = importlib.import_module(f"bertjax.configs.{case.name.partition('/')[0]}").get_config(case.variant)
    own = values_of(case.values)
    shared = {
        name: value
        for name, value in values_of(SHARED.split()).items()
        if name in flatten_dict(config.to_dict(), sep=".")
    }
    if "init_from" in own:
        shared = {name: value for name, value in shared.items() if not name.startswith("model.") or "dropout" in name}
    with config.unlocked():
        config.update_from_flattened_dict({**shared, **own})
    return bertjax.train(config, run, report=False)


def batches(experiment: str, run: Path) -> Iterator[tuple[str, str]]:
    """Yields digests of the first training batches of a run, and of all of its validation batches."""
    import numpy as np

    from bertjax.config import build_part
    from bertjax.experiments import find
    from bertjax.interop.published import open_weights

    module = find(experiment)
    config = json.loads((run / "config.json").read_text())
    published = open_weights(Path(config["init_from"])) if config["init_from"] else None
    data = module.Data(build_part(module.Config, config), run / "data", published)
    for split, count in (("train", 3), ("valid", None)):
        of_split = data.batches(split, 0, np.arange(config["batch_size"]))
        for number, batch in enumerate(itertools.islice(of_split, count)):
            yield f"{split} batch {number}", of_arrays(batch)


def results_of_run(case: Case, run: Path) -> Iterator[tuple[str, str]]:
    """Trains a run, and yields the name and the digest of each of its results."""
    from jax.tree_util import keystr, tree_leaves_with_path

    model = train(case, run)
    yield "parameters", of_arrays({keystr(path): leaf for path, leaf in tree_leaves_with_path(model.params)})
    yield "metrics", of_json(run / "metrics.jsonl")
    yield "config", of_json(run / "config.json")
    for name, value in of_files(run):
        if name.startswith("data/") or name == "text_fingerprint":
            yield f"{PREPARED}/{name}", value
        elif not LEFT_OUT.match(name):
            yield f"run/{name}", value
    yield from batches(case.name.partition("/")[0], run)
    if case.name in OBJECTS:
        records = model.predict(OBJECTS[case.name])
        yield "predict objects", digest(json.dumps(records, default=lambda array: array.tolist()))


def results_of_command(case: Case, mode: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Runs a command, and yields the name and the digest of each file that it writes, or of its error."""
    flags = [
        word if word.startswith("--") else f"--config.{word}" for word in given if not word.startswith("--output=")
    ]
    output = Path("out", case.name, next((word[9:] for word in given if word.startswith("--output=")), "output"))
    output.parent.mkdir(parents=True, exist_ok=True)
    is_of_run = not any(flag.startswith("--config=") for flag in flags)
    flags += [f"--workdir=runs/{case.name}"] if is_of_run else []
    error = launch(
        [f"--mode={mode}", f"--output={output}{'/' * (not output.suffix and output.name != 'output')}", *flags]
    )
    name = " ".join([mode, *given])
    if error:
        yield f"{name} (error)", digest(error)
        print(f"{case.name}: {name}: {error}", file=sys.stderr)
    elif output.is_dir():
        yield from ((f"{name}: {file}", value) for file, value in of_files(output))
    else:
        yield name, of_json(output) if mode == "evaluate" else digest(output.read_bytes())
        output.unlink()


def results_of(case: Case) -> Iterator[tuple[str, str]]:
    """Yields the name and the digest of each result of a case, or of the exception that ends it."""
    try:
        if case.variant != "none":
            yield from results_of_run(case, Path("runs", case.name))
        for mode, *words in case.commands:
            inputs = [word for word in words if not word.startswith("--") and "=" not in word]
            rest = [word for word in words if word not in inputs]
            for given in ([f"--input={name}", *rest] for name in inputs) if inputs else [rest]:
                yield from results_of_command(case, mode, given)
    except Exception as error:
        yield f"{type(error).__name__} (error)", digest(str(error))
        print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)


def record(experiments: Sequence[str], output: Path) -> None:
    """Writes the digests of the results of experiments, and of the cases that these start from, as JSON."""
    import bertjax

    if Path.cwd() not in Path(bertjax.__file__).parents:
        raise RuntimeError(f"bertjax is imported from {bertjax.__file__}, not from {Path.cwd()}")
    output.with_suffix("").mkdir()
    os.chdir(output.with_suffix(""))
    write_inputs(random.Random(0))
    results: dict[str, str] = {}
    for case in in_order(experiments):
        began = time.monotonic()
        with Path("log.txt").open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            results |= {f"{case.name}/{name}": value for name, value in results_of(case)}
        print(f"{output.stem}: {case.name}, {time.monotonic() - began:.1f} s", flush=True)
    output.write_text(json.dumps(results, indent=1, ensure_ascii=False))


def in_order(experiments: Sequence[str]) -> list[Case]:
    """Returns the cases of experiments and those that they start from, in an order in which they can run."""
    by_name = {case.name: case for case in cases()}
    chosen: dict[str, Case] = {}

    def add(case: Case) -> None:
        words = [*case.values, *itertools.chain(*case.commands)]
        for name in re.findall(r"=(?:runs|out)/(\w+/\w+)", " ".join(words)):
            if name not in (case.name, *chosen):
                add(by_name[name])
        chosen[case.name] = case

    for case in by_name.values():
        if case.name.partition("/")[0] in experiments and case.name not in chosen:
            add(case)
    return list(chosen.values())


def compare(before: Mapping[str, str], after: Mapping[str, str], allowed: str | None) -> int:
    """Prints the comparison. Returns the exit status."""
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    lines: dict[str, list[str]] = {"results": [], PREPARED: []}
    for name in {**before, **after}:
        experiment, _, item = name.split("/", 2)
        group = PREPARED if item.startswith(f"{PREPARED}/") else "results"
        is_equal = before.get(name) == after.get(name)
        counts[group, experiment, "equal" if is_equal else "different"] += 1
        counts[group, experiment, "errors"] += "(error)" in item
        if not is_equal:
            side = "differs" if name in before and name in after else "only before" if name in before else "only after"
            lines[group].append(f"{side}: {name}")
    print(f"{'group':9} {'experiment':20} {'equal':>9} {'different':>9} {'errors':>9}")
    for group, experiment in sorted({key[:2] for key in counts}):
        numbers = (f"{counts[group, experiment, kind]:9}" for kind in ("equal", "different", "errors"))
        print(f"{group:9} {experiment:20}", *numbers)
    print(*lines["results"], *lines[PREPARED], sep="\n")
    return int(any(names for group, names in lines.items() if group != allowed))


def main() -> None:
    """Compares the results of two checkouts, or records those of one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    every = ",".join(dict.fromkeys(case.name.partition("/")[0] for case in cases()))
    parser.add_argument("--before", help="the commit to compare with")
    parser.add_argument("--experiments", default=every, help="names, separated by commas; default: all")
    parser.add_argument("--keep", type=Path, help="a new folder for runs and outputs, which are otherwise deleted")
    parser.add_argument("--allow", choices=[PREPARED], help="a group that may differ")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        sys.path[0] = str(Path.cwd())
        record(options.experiments.split(","), options.record)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        checkout = folder / "checkout"
        checkout.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", options.before], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
        for side, root in (("before", checkout), ("after", ROOT)):
            command = [
                sys.executable,
                __file__,
                f"--record={folder / side}.json",
                f"--experiments={options.experiments}",
            ]
            places = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "PYTHONPATH": str(root)}
            subprocess.run(command, cwd=root, env={**os.environ, **ENVIRONMENT, **places}, check=True)
        sides = [json.loads((folder / f"{side}.json").read_text()) for side in ("before", "after")]
        sys.exit(compare(*sides, options.allow))


if __name__ == "__main__":
    main()
