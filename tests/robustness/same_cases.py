"""The tiny cases of `same_results`, and the files that they read."""

import itertools
import json
import random
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LANGUAGES = """the a cat dog bird fish sees likes finds small big red old house tree river and runs sleeps sings
고양이 강아지 나무 강 집 빨간 작은 본다 좋아한다 노래한다"""
ENGLISH, KOREAN = (line.split() for line in LANGUAGES.splitlines())
NAMES, COLORS = ("Ann", "Bob", "Kim", "민수", "지은"), ("dark Gray", "light Blue", "연한 초록")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
# A single word of an entity, its first word and its last word, by the suffix of a file of tagged words.
SCHEMES = {"bio": ("B-", "B-", "I-"), "bilou": ("U-", "B-", "L-"), "iob1": ("I-", "I-", "I-"), "plain": ("", "", "")}
# Config values of all cases whose config has the keys; in the texts below, @ stands for "data.". Weights in init_from
# determine the sizes of the model. A large initializer_range makes the outputs of different inputs differ.
SHARED = """num_steps=20 batch_size=8 log_every=5 evaluate_every=10 num_scored=6 target_len=12 checkpoint.save_every=20
checkpoint.final=latest checkpoint.keep_best=1 optimizer.learning_rate=0.01 optimizer.warmup_steps=2 model.num_layers=1
model.num_decoder_layers=1 model.hidden_size=16 model.num_heads=2 model.intermediate_size=32 model.max_positions=32
model.initializer_range=0.4 model.dropout=0.1 model.attention_dropout=0.1 model.decoder_layers=1 model.decoder_heads=2
model.decoder_intermediate=32 model.scorer_layers=1 model.scorer_heads=2 model.scorer_intermediate=16
decoding.num_beams=2 decoding.max_length=12 decoding.max_extra=12 decoding.min_extra=1 @seq_len=24 @valid_fraction=0.2
@workers=1 @vocab_file=vocab.txt @vocab_size=120 @doc_stride=6 @max_query_length=8 @max_answer_length=4"""
# What words in capitals stand for in the cases. Braces hold the experiment, and the name of the case.
MACROS = {
    "TABLES": "rows.tsv rows.csv rows.jsonl rows.parquet",
    "LABELED": "@source=rows.jsonl @text_columns=('text',)",
    "OF_PAIRS": "@source=rows.jsonl @text_columns=('text','other')",
    "RELATED": "@source=related.jsonl @text_columns=('query','positive','negatives')",
    "DOCUMENTS": "@source=documents.txt @lines=sentence",
    "UNPACKED": "@packing=False @stages=()",
    "PARALLEL": "@source=pairs.en @target=pairs.ko @vocab_file=",
    "DATES": "@num_valid=16 @num_test=16 @vocab_file= @seq_len=32",
    "ARTICLES": "@source=articles.jsonl @window_overlap=8 @limits.min_sentences=1 @limits.min_words=1 "
    "@limits.min_summary_words=1",
    "PRETRAINED": "init_from=runs/bert_pretraining/masked @vocab_file=",
    "WORDS": "--config=configs/features.py:word init_from=runs/bert_pretraining/masked",
    "PIECES": "--config=configs/features.py:piece init_from=runs/bert_pretraining/masked",
    "SENTENCES": "--config=configs/features.py:sentence init_from=runs/bert_pretraining/masked",
    "GOOD_OR_BAD": "--config=configs/minimal_pairs.py init_from=runs/bert_pretraining/masked",
    "RANKING": "--config=configs/retrieval.py init_from=runs/embeddings/ranking",
    "LENGTHS": "@doc_stride=6 @max_query_length=8",
    "EXPORTED": "--config=configs/{experiment}.py init_from=out/{name}/exported @seq_len=24",
    "BY_RUN": "--config=configs/{experiment}.py init_from=runs/{name} @seq_len=24",
    "SKIP": "@on_bad_row=skip",
}
# Each case is a run: its name, the variant of its config ("-" for none), and config values; or only a name and "none".
# Then come commands: a mode, inputs, flags and config values. Without --config they use the run; "serve" is to predict
# with the exported folder, and with the run as init_from.
CASES = """
classification/classes tiny LABELED @valid_source=valid.jsonl class_weights=(1.0,2.5) | predict texts.txt --format=csv |
  predict TABLES --columns=id,day | predict bad.txt bad.jsonl SKIP | predict bad.txt bad.jsonl | evaluate | evaluate
  @test_source=rows.csv | export | serve texts.txt | evaluate EXPORTED @valid_source=valid.jsonl @text_columns=('text',)
classification/pairs tiny OF_PAIRS @row_lengths=(8,16,24) | predict pairs.txt rows.tsv | predict bad.txt SKIP
classification/packed tiny LABELED @packing=True
classification/numbers tiny,stsb,tsv OF_PAIRS @label_column=score | predict rows.csv | evaluate
classification/lists tiny LABELED objective=multi_label @label_column=kinds metrics=('micro_f1','macro_f1') | predict
  texts.txt threshold=0.3 | evaluate
classification/columns tiny,jigsaw LABELED @source=rows.csv @label_column=toxic,threat | predict texts.txt --format=csv
classification/separated tiny,goemotions LABELED @source=rows.tsv @header=True @label_column=kinds
classification/parquet tiny LABELED @source=rows.parquet
classification/skipped tiny LABELED SKIP @source=bad.jsonl
classification/pretrained - LABELED PRETRAINED | evaluate
classification/warm - LABELED init_from=runs/classification/classes @source=valid.jsonl @vocab_file= | predict texts.txt
tagging/entities tiny @source=sentences.bio | predict names.txt | predict names.txt --format=tsv
  @split_punctuation=False | predict words.jsonl @text_field=tokens | predict TABLES @text_field=text --columns=id |
  predict bad.txt SKIP | predict bad.jsonl SKIP @text_field=text | evaluate | evaluate @test_source=words.jsonl | export
  | serve names.txt | evaluate EXPORTED @valid_source=sentences.bio
tagging/bilou tiny @source=sentences.bilou class_weights=(1.0,2.0,2.0,3.0,3.0)
tagging/iob1 tiny @source=sentences.iob1 @scheme=IOB1 @packing=True
tagging/lists tiny @source=words.jsonl
tagging/spans tiny @source=spans.jsonl | evaluate
tagging/words tiny @source=words.csv
tagging/plain tiny @source=sentences.plain | predict names.txt | evaluate
tagging/pretrained - @source=sentences.bio PRETRAINED | predict names.txt
tagging/warm - @source=sentences.iob1 @scheme=IOB1 init_from=runs/tagging/entities @vocab_file= | predict names.txt
tagging/features tiny,features @source=sentences.bio model.feature_layers=(-1,) model.lstm_size=8
question_answering/answered tiny,squad @source=squad.json | predict squad.json flat.jsonl questions.jsonl
  questions.parquet mrqa.jsonl | predict questions.parquet --columns=day --format=csv | predict squad.json
  --output=official.json | predict bad_squad.json bad_questions.jsonl SKIP | evaluate | export | serve squad.json
  LENGTHS | evaluate EXPORTED LENGTHS @valid_source=squad.json
question_answering/unanswered tiny,squad2 @source=squad2.json @packing=True | predict squad2.json @null_threshold=-1.0 |
  evaluate
question_answering/flat tiny,squad2 @source=flat.jsonl @row_lengths=(8,16,24)
question_answering/mrqa tiny @source=mrqa.jsonl @valid_source=mrqa.jsonl
question_answering/warm - @source=squad.json PRETRAINED
multiple_choice/swag tiny,swag @source=swag.csv | predict choices.txt swag.csv --format=csv | predict bad.txt SKIP |
  evaluate | export | serve choices.txt
multiple_choice/arc tiny,arc @source=arc.jsonl @row_lengths=(8,16,24) | predict arc.jsonl --columns=id | evaluate
multiple_choice/warm arc @source=arc.jsonl PRETRAINED | predict arc.jsonl
embeddings/ranking tiny RELATED sizes=(4,8) @num_negatives=3 retrieval.source=beir | predict texts.txt | predict TABLES
  @text_columns=('text','other') --columns=id | predict bad.txt SKIP | evaluate | export | serve texts.txt
embeddings/similarity tiny,similarity OF_PAIRS @query_prompt=the | evaluate
embeddings/teacher tiny,distillation RELATED @score_column=scores
embeddings/labels tiny LABELED @label_column=label learn_scale=True | evaluate
embeddings/warm - RELATED PRETRAINED symmetric=True @document_prompt=집
reranker/listwise tiny RELATED | predict asked.txt related.jsonl | predict TABLES @text_columns=('label','text','other')
  --columns=id | predict bad.txt SKIP | evaluate | export | serve asked.txt
reranker/binary tiny,binary RELATED @score_column=scores checkpoint.best_metric=valid/average_precision | evaluate
reranker/teacher tiny,distillation RELATED @score_column=scores
reranker/regression tiny,regression RELATED @text_columns=('query','positive') @score_column=score
reranker/warm binary RELATED PRETRAINED | predict asked.txt
bert_pretraining/masked tiny DOCUMENTS @stages=((0.5,8),) | predict masks.txt | predict masks.tsv masks.csv masks.jsonl
  masks.parquet --columns=id | predict bad_masks.txt SKIP | evaluate | export | serve masks.txt
bert_pretraining/sentences tiny DOCUMENTS UNPACKED masking.whole_word=True masking.mode=static masking.dupe_factor=2
bert_pretraining/causal tiny DOCUMENTS UNPACKED objective=causal_lm model.direction=left_to_right @next_sentence=False
  minimal_pairs.source=minimal.jsonl checkpoint.best_metric=valid/causal_lm_loss | evaluate
bert_pretraining/table tiny,modern @source=rows.jsonl @vocab_file= @stages=()
bert_pretraining/continued phase2 DOCUMENTS PRETRAINED
replaced_tokens/packed tiny DOCUMENTS @stages=((0.5,8),) generator.width=0.5 | predict texts.txt pairs.txt TABLES
  bad.txt SKIP | evaluate | export | predict masks.txt BY_RUN generator.width=0.5
replaced_tokens/rows tiny DOCUMENTS UNPACKED generator.width=0.5
features/all none | predict texts.txt pairs.txt bad.txt WORDS SKIP | predict texts.txt WORDS word_pooling=mean
  model.layers=(0,-1) --output=words | predict texts.txt PIECES --output=pieces | predict texts.txt pairs.txt TABLES
  SENTENCES @seq_len=24 | predict rows.csv SENTENCES @text_columns=('text','other') --columns=id | predict texts.txt
  --config=configs/features.py:sentence init_from=out/embeddings/ranking/exported | export SENTENCES
minimal_pairs/all none | evaluate GOOD_OR_BAD @test_source=minimal.jsonl | evaluate GOOD_OR_BAD
  @valid_source=minimal.txt method=within_word_l2r | evaluate --config=configs/minimal_pairs.py
  init_from=runs/bert_pretraining/causal @test_source=minimal.jsonl | predict good.txt bad.txt rows.jsonl GOOD_OR_BAD
  SKIP
retrieval/all none | evaluate RANKING @test_source=beir | evaluate RANKING @test_source=beir
  reranker=out/reranker/listwise/exported rerank=5 | evaluate RANKING @test_source=related.jsonl | evaluate
  --config=configs/retrieval.py:labels init_from=runs/embeddings/ranking @source=rows.jsonl @test_source=rows.csv | mine
  RANKING @source=related.jsonl | mine RANKING @source=beir @qrels=test mining.sampling=random mining.num_negatives=2
  | predict texts.txt RANKING @corpus=beir/corpus.jsonl
translation/files tiny PARALLEL | predict texts.txt | predict texts.txt --format=jsonl | predict TABLES
  @source_column=text --columns=id --format=jsonl | predict pairs.tmx @source_column=en --format=jsonl | predict
  texts.txt bad.txt SKIP @on_long_line=refuse --format=jsonl | predict asked.txt SKIP decoding.method=forced | predict
  rows.csv SKIP decoding.method=forced @source_column=text @target_column=other | predict texts.txt
  decoding.method=sampling --format=jsonl | evaluate | evaluate @test_source=pairs.en @test_target=pairs.ko | predict
  texts.txt BY_RUN
translation/packed tiny PARALLEL @source=pairs.tmx @target= @packing=True @source_column=en @target_column=ko
translation/table tiny PARALLEL @source=rows.tsv @target= @source_column=text @target_column=other @joint=False
  @subwords=wordpiece model.share_embeddings=False
translation/recurrent rnn,dates DATES | predict texts.txt | evaluate
translation/dates tiny,dates DATES | predict texts.txt
translation/warm - PARALLEL init_from=runs/translation/files | predict texts.txt
bertsum_ext/windows tiny ARTICLES | predict articles.jsonl | predict articles.jsonl articles.csv articles.parquet
  stories --format=jsonl | predict article.txt articles.jsonl --format=html | predict rows.jsonl SKIP
  @article_field=text --columns=day --format=jsonl | predict bad.txt SKIP @layout=line --format=jsonl | evaluate |
  evaluate @test_source=articles.csv | export | serve articles.jsonl
bertsum_ext/cut tiny,transformer ARTICLES @long_articles=cut @vocab_file= | evaluate
bertsum_ext/presumm tiny,rnn,presumm ARTICLES
bertsum_ext/warm - ARTICLES PRETRAINED
bertsum_abs/cut tiny ARTICLES | predict articles.jsonl articles.parquet | predict articles.csv stories --format=jsonl |
  predict bad.txt SKIP @layout=line --format=jsonl | evaluate | export
bertsum_abs/extracted - ARTICLES init_from=runs/bertsum_ext/windows @vocab_file= model.decoder_layers=1
  model.decoder_heads=2 model.decoder_intermediate=32"""
TEXTS = ("a cat sees the dog .", "작은 고양이가 강아지를 본다 .", "old tree and " * 12)
ARTICLE = "The cat sees the dog. A bird sings. The old tree. 작은 강아지가 본다."
# The Python objects that the models of some cases predict on.
OBJECTS: dict[str, Sequence[Any]] = {
    **dict.fromkeys(("classification/classes", "embeddings/ranking", "translation/files"), TEXTS),
    **{name: [ARTICLE] for name in ("bertsum_ext/windows", "bertsum_abs/cut")},
    "classification/pairs": list(zip(TEXTS, reversed(TEXTS), strict=True)),
    "tagging/entities": ["Ann sees old river .", ["민수", "likes", "old", "tree,"], "Kim finds old house . " * 8],
    "question_answering/answered": [{"question": "Which color?", "context": f"{text} light Blue"} for text in TEXTS],
    "multiple_choice/swag": [("a cat", "sees the dog", "강아지를 본다"), (TEXTS[2], "runs", "sleeps", "sings")],
    "reranker/listwise": [("the dog", text) for text in TEXTS],
    "bert_pretraining/masked": ["the [MASK] sees a cat .", ("작은 [MASK]", "the [MASK]")],
    "replaced_tokens/packed": TEXTS[:2],
}


class Case(NamedTuple):
    """A tiny run and commands, as their words."""

    name: str
    variant: str
    values: Sequence[str]
    commands: Sequence[Sequence[str]]


def cases() -> list[Case]:
    """Returns the cases of CASES."""
    parsed = []
    for text in re.split(r"\n(?! )", CASES.strip()):
        name, variant, *_ = text.split()
        served = re.sub(r"\| serve ([^|]*)", r"| predict EXPORTED \1 | predict BY_RUN \1", text)
        words = " ".join(MACROS.get(word, word) for word in served.split()).replace(" @", " data.")
        words = words.replace("{name}", name).replace("{experiment}", name.partition("/")[0])
        run, *commands = (part.split() for part in words.split(" | "))
        parsed.append(Case(name, variant.strip("-"), run[2:], commands))
    return parsed


def words_of(rng: random.Random, low: int, high: int, is_long: bool = False) -> str:
    """Returns random words, English or Korean, some with a particle; of a long text 30 to 40 words."""
    length = rng.randint(30, 40) if is_long else rng.randint(low, high)
    words = rng.choices(ENGLISH if rng.random() < 0.6 else KOREAN, k=length)
    return " ".join(word + rng.choice(("", "가", "를")) if word in KOREAN else word for word in words)


def row_of(rng: random.Random, number: int) -> dict[str, Any]:
    """Returns a row of a table with the columns of many tasks."""
    text, other = words_of(rng, 3, 9, number % 9 == 8), words_of(rng, 2, 5, number % 13 == 12)
    kinds = [word for word in ("cat", "old", "작은") if word in text]
    texts = {"id": f"r{number}", "day": f"2024-01-{number % 28 + 1}", "text": f"{text} .", "other": other}
    marks = {"toxic": number % 2, "threat": int("a" in text), "score": round(rng.random() * 5, 2)}
    return {**texts, "label": ("yes", "no", "no")[number % 3], "kinds": kinds, **marks}


def sentence_of(rng: random.Random, phrases: int) -> list[tuple[str, str, int]]:
    """Returns words, the kinds of the entities that they belong to, and their places in SCHEMES."""
    words: list[tuple[str, str, int]] = []
    for _ in range(phrases):
        person = rng.choice(([(rng.choice(NAMES), "PER", 0)], [(rng.choice(NAMES), "PER", 1), ("Bell", "PER", 2)]))
        place = [("old", "LOC", 1), (rng.choice(("house", "tree", "집")), "LOC", 2)]
        words += [*rng.choice((person, place, person + place)), (rng.choice(ENGLISH), "", 0)]
    return [*words, (".", "", 0)]


def spans_of(words: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    """Returns the words as a text, and the entities as spans of characters."""
    ends = list(itertools.accumulate(len(word) + 1 for word, _, _ in words))
    spans = []
    for number, (word, kind, place) in enumerate(words):
        if kind and place < 2:
            spans.append([ends[number] - len(word) - 1, ends[number + place] - 1, kind])
    return {"text": " ".join(word for word, _, _ in words), "label": spans}


def question_of(rng: random.Random, number: int, answerable: float) -> dict[str, Any]:
    """Returns a question about the color in a context; some contexts and questions are too long."""
    words = words_of(rng, 3, 14, number % 8 == 7).split()
    color = rng.choice(COLORS)
    words.insert(rng.randrange(len(words)), color)
    context = "  ".join(words) + " ."
    answers = [{"text": color, "answer_start": context.index(color)}] if rng.random() < answerable else []
    asked = "Which color is it?" if number % 7 else "Which " + "old " * 12 + "?"
    return {"day": "2024-01-01", "id": f"q{number}", "question": asked, "context": context, "answers": answers}


def squad(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns questions in SQuAD's form."""
    paragraphs = [{"context": row["context"], "qas": [{**row, "is_impossible": not row["answers"]}]} for row in rows]
    return [{"version": "2.0", "data": [{"title": "", "paragraphs": paragraphs}]}]


def mrqa(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a question with an answer in MRQA's form."""
    text, start = row["answers"][0].values()
    detected = [{"text": text, "char_spans": [[start, start + len(text) - 1]]}]
    asked = {"qid": row["id"], "question": row["question"], "answers": [text], "detected_answers": detected}
    return {"context": row["context"], "qas": [asked]}


def named(names: str, rows: Iterable[Iterable[Any]]) -> list[dict[str, Any]]:
    """Returns rows with the names of their values."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


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
        form, separator = ('"{}"', ",") if path.suffix == ".csv" else ("{}", "\t")
        cells = [[",".join(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows]
        rows = [separator.join(map(form.format, line)) for line in (list(rows[0]), *cells)]
    texts = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{text}\n" for text in texts))


def write_inputs(rng: random.Random) -> None:
    """Writes all files that cases read into the working directory."""
    rows = [row_of(rng, number) for number in range(45)]
    bad = [{**row, "text": text} for row, text in zip(rows, ("", None, "a\0", 3), strict=False)]
    masks = [{"id": row["id"], "text": f"{row['text'][:20]} [MASK] {row['other'][:9]}"} for row in rows]
    questions, mixed = ([question_of(rng, number, share) for number in range(40)] for share in (1.0, 0.6))
    asked = [{name: value for name, value in row.items() if name != "answers"} for row in questions]
    sentences = [sentence_of(rng, 12 if number % 11 == 10 else rng.randint(1, 3)) for number in range(45)]
    tagged = {
        name: [[(word, marks[place] + kind if kind else "O") for word, kind, place in words] for words in sentences]
        for name, marks in SCHEMES.items()
    }
    numbered = [(number, *pair) for number, words in enumerate(tagged["bio"]) for pair in words]
    endings = [[words_of(rng, 1, 4) for _ in range(4)] for _ in rows]
    choices = [texts[: 2 + number % 3] for number, texts in enumerate(endings)]
    scores = [[round(rng.random(), 3) for _ in texts] for texts in endings]
    lettered = [named("text label", zip(texts, "ABCD", strict=False)) for texts in choices]
    minimal = [(words_of(rng, 1, 6), words_of(rng, 1, 6), "ab"[number % 2], f"p{number % 4}") for number in range(20)]
    pairs = [[" ".join(rng.choices(words, k=length % 13 + 1)) for words in (ENGLISH, KOREAN)] for length in range(60)]
    unit = '<tu><tuv xml:lang="en-US"><seg>{}</seg></tuv><tuv xml:lang="ko"><seg><hi>{}</hi></seg></tuv></tu>'
    articles = []
    for number in range(30):
        texts = [f"{words_of(rng, 3, 7).capitalize()}." for _ in range(rng.randint(2, 7))]
        articles.append({"id": f"a{number}", "article": texts, "summary": sorted(rng.sample(texts, 2))})
    joined = named("id article summary", ((row["id"], *map(" ".join, list(row.values())[1:])) for row in articles))
    marks = "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0] [unused1] [unused2] Bell which color is it . , ? ' ##가 ##를"
    tokens = [*marks.split(), *ENGLISH, *KOREAN, *NAMES, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    files: dict[str, Iterable[Any]] = {
        **{f"rows.{suffix}": rows for suffix in ("jsonl", "csv", "tsv", "parquet")},
        **{f"masks.{suffix}": masks for suffix in ("jsonl", "csv", "tsv", "parquet")},
        "valid.jsonl": reversed([row_of(rng, number) for number in range(12)]),
        "bad.jsonl": [*rows[:20], *bad, {**rows[4], "label": None}, *rows[20:]],
        "texts.txt": [row["text"] for row in rows[:20]],
        "pairs.txt": [f"{row['text']}\t{row['other']}" for row in rows[:20]],
        "asked.txt": [f"{row['other'][:9]}\t{row['text']}" for row in rows[:20]],
        "names.txt": ["Ann Bell's old house, sees Kim.", "민수 likes 작은 집", "Bob sees old tree " * 12],
        "masks.txt": [*(row["text"] for row in masks[:15]), "a [MASK]\t강 [MASK] ."],
        "bad_masks.txt": ["a [MASK]", "the [MASK] " * 40, "no mask", "a\tb\tc [MASK]", "강 [MASK]"],
        **{
            f"sentences.{scheme}": ["".join(f"{word}\tx\t{tag}\n" for word, tag in words) for words in groups]
            for scheme, groups in tagged.items()
        },
        "words.jsonl": named("tokens ner_tags", (zip(*words, strict=True) for words in tagged["bio"])),
        "words.csv": named("sentence_id word tag", numbered),
        "spans.jsonl": map(spans_of, sentences),
        "squad.json": squad(questions),
        "squad2.json": squad(mixed),
        "bad_squad.json": squad([*questions[:3], {**questions[3], "context": " "}, *questions[4:8]]),
        "flat.jsonl": mixed,
        "mrqa.jsonl": [{"header": {"dataset": "colors", "split": "train"}}, *map(mrqa, questions)],
        "questions.jsonl": asked,
        "questions.parquet": asked,
        "bad_questions.jsonl": [*asked[:3], {**asked[3], "question": ""}, *asked[4:8]],
        "swag.csv": named(
            "sent1 sent2 ending0 ending1 ending2 ending3 label",
            ((rows[i]["text"], rows[i]["other"], *texts, i % 4) for i, texts in enumerate(endings)),
        ),
        "arc.jsonl": [
            {"id": row["id"], "question": {"stem": row["text"], "choices": texts}, "answerKey": "AB"[row["toxic"]]}
            for row, texts in zip(rows, lettered, strict=True)
        ],
        "choices.txt": ["\t".join([row["text"], *texts]) for row, texts in zip(rows, choices, strict=True)],
        "related.jsonl": named(
            "query positive negatives scores score",
            ((row["other"][:9], row["text"], endings[i][1:], scores[i], scores[i][0]) for i, row in enumerate(rows)),
        ),
        "beir/corpus.jsonl": named("_id title text", ((f"d{row['id']}", "", row["text"]) for row in rows)),
        "beir/queries.jsonl": named("_id text", ((row["id"], row["other"][:20]) for row in rows[:15])),
        "beir/qrels/test.tsv": named("query-id corpus-id score", ((f"r{i}", f"dr{i}", 1) for i in range(15))),
        "minimal.jsonl": named("good bad phenomenon paradigm", minimal),
        "minimal.txt": [f"{good}\t{bad}" for good, bad, *_ in minimal],
        "good.txt": [good for good, *_ in minimal],
        "pairs.en": [english for english, _ in pairs],
        "pairs.ko": [korean for _, korean in pairs],
        "pairs.tmx": ['<tmx version="1.4"><header/><body>', *(unit.format(*pair) for pair in pairs), "</body></tmx>"],
        "articles.jsonl": articles,
        "articles.csv": joined,
        "articles.parquet": articles,
        "article.txt": [joined[0]["article"]],
        **{
            f"stories/{row['id']}.story": ["\n\n@highlight\n\n".join(["\n\n".join(row["article"]), *row["summary"]])]
            for row in articles[:3]
        },
        "documents.txt": [f"{words_of(rng, 3, 12)} ." if rng.random() < 0.8 else "" for _ in range(240)],
        # A tokenizer in small letters divides Korean syllables into letters.
        "vocab.txt": dict.fromkeys([*tokens, *(unicodedata.normalize("NFD", token) for token in tokens)]),
    }
    for name, content in files.items():
        write(name, content)
    Path("bad.txt").write_bytes("a cat .\tthe dog\n\nthe \0 dog\n작은 집\n".encode() + b"a \xff cat\na\tb\tc\td\n")
