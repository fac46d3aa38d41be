"""Documents that a run leaves out: near duplicates, copies of evaluation texts, and those of filters."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertjax.data.pretraining import duplicates, shingles
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation
from bertjax.data.pretraining.removal import Removal, RemovalConfig
from bertjax.data.text import byte_bpe_trainer
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.errors import UserError
from tests.data.folders import digests

Words = Sequence[int]  # by number


def text_of(words: Words) -> str:
    return " ".join(f"w{word}" for word in words).replace(" w0 ", "\n")


@pytest.fixture(scope="module")
def words_file(tmp_path_factory) -> Path:
    """A vocabulary of 5000 words of one to four pieces."""
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, *(f"w{i}" for i in range(5000) if i % 10), "##0"]) + "\n")
    return path


@pytest.fixture(scope="module")
def make_corpus(words_file, tmp_path_factory) -> Callable[..., Corpus]:
    """Prepares documents of words, one sentence each, and a validation document or others."""

    def make(documents: Sequence[Words], valid: Sequence[Words] = ((1, 2, 3),), vocab: Path = words_file) -> Corpus:
        folder = tmp_path_factory.mktemp("corpus")
        for split, texts in (("train", documents), ("valid", valid)):
            (folder / f"{split}.txt").write_text("\n\n".join(map(text_of, texts)) + "\n")
        sources = {"source": str(folder / "train.txt"), "valid_source": str(folder / "valid.txt")}
        values = {"lines": "sentence", "vocab_file": str(vocab), "lowercase": True, "workers": 1}
        preparation = Preparation(CorpusConfig(**sources, **values), folder)
        preparation.run()
        return preparation.corpus()

    return make


def removal_of(corpora: dict[str, Corpus], *, workers: int = 1, **values: Any) -> Removal:
    prepared = [corpus.folder.name for corpus in corpora.values()]
    config = RemovalConfig(**{"max_removed": 1.0, "duplicates": "drop", **values})
    return Removal(config, prepared, next(iter(corpora.values())).folder.parent, workers)


def remove(corpora: dict[str, Corpus], **values: Any) -> Removal:
    removal = removal_of(corpora, **values)
    removal.run(corpora)
    return removal


def records_of(removal: Removal) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (removal.folder / "removal.jsonl").read_text().splitlines()]


def random_documents(count: int, size: int, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(1, 5000, (count, size)).tolist()  # no 0, which ends a line


def planted(count: int) -> list[list[int]]:
    """Returns documents of which most are edits of earlier ones, and short ones."""
    rng = np.random.default_rng(1)
    documents = random_documents(count // 4, 60)
    while len(documents) < count:
        words = list(documents[rng.integers(len(documents))])
        for _ in range(rng.integers(0, 4)):
            words[rng.integers(len(words))] = int(rng.integers(1, 5000))
        documents.append(words[rng.integers(0, 3) :])
    short = [[7], [7, 8], [7], [7, 8, 9, 10], [7, 8, 9, 10], [7, 8, 9, 10, 11]]
    return [*documents[: count - len(short)], *short]


def by_brute_force(documents: Sequence[Words], similarity: float) -> list[tuple[int, int, float]]:
    """Returns each document that is similar to an earlier one that stays, the first such one, and the similarity."""
    sets = [{tuple(words[i : i + 5]) for i in range(max(len(words) - 4, 1))} for words in documents]
    stay: list[int] = []
    pairs = []
    for number, one in enumerate(sets):
        values = ((earlier, len(one & sets[earlier]) / len(one | sets[earlier])) for earlier in stay)
        pair = next((pair for pair in values if pair[1] >= similarity), None)
        if pair:
            pairs.append((number, *pair))
        else:
            stay.append(number)
    return pairs


@pytest.fixture(scope="module")
def two_sources(make_corpus) -> tuple[list[list[int]], dict[str, Corpus]]:
    documents = planted(1000)
    return documents, {"one": make_corpus(documents[:600]), "two": make_corpus(documents[600:])}


@pytest.mark.parametrize(("similarity", "crowd"), [(0.6, 1000), (0.8, 1000), (0.95, 1000), (0.6, 4), (0.8, 4)])
def test_duplicates_equal_brute_force(two_sources, monkeypatch, similarity, crowd):
    monkeypatch.setattr(duplicates, "_CROWD", crowd)
    monkeypatch.setattr(duplicates, "_BATCH_TOKENS", 2000)
    documents, corpora = two_sources
    removal = removal_of(corpora, duplicate_similarity=similarity, evaluation_containment=1.0, max_removed=crowd / 1e4)
    with pytest.raises(UserError, match="max_removed"):
        removal.run(corpora)
    first = {"one": 0, "two": 600}
    pairs = [
        (first[pair["source"]] + pair["document"], first[pair["kept"]["source"]] + pair["kept"]["document"])
        for pair in records_of(removal)
    ]
    expected = by_brute_force(documents, similarity)
    assert pairs == [pair[:2] for pair in expected]
    assert [pair["similarity"] for pair in records_of(removal)] == pytest.approx([s for *_, s in expected], abs=1e-4)
    assert {one < 600 <= two or two < 600 <= one for one, two in pairs} == {False, True}, "within and between sources"
    assert records_of(removal)[0]["words"] == text_of(documents[pairs[0][0]])[: len(records_of(removal)[0]["words"])]


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9])
def test_bands_have_the_stated_recall(similarity, check_rate):
    rows = shingles.rows_per_band(similarity)
    assert shingles.recall(similarity, rows) >= 0.99 > shingles.recall(similarity, rows + 1)
    rng = np.random.default_rng(0)
    hits = 0
    lower = similarity - 0.15  # where the rate is not close to 1
    common = round(200 * 2 * lower / (1 + lower))
    for _ in range(2000):
        one, two = rng.integers(0, 2**64, (2, 200), np.uint64)
        two[:common] = one[:common]
        hits += bool((shingles.bands(one, rows) == shingles.bands(two, rows)).any())
    check_rate("shared bands", hits, 2000, shingles.recall(common / (400 - common), rows))


def test_a_crowd_of_similar_documents_is_not_compared_pair_by_pair(make_corpus, monkeypatch):
    """Pages of one template, which have similarities of about 0.7, share bands but few of their rarest shingles."""
    monkeypatch.setattr(duplicates, "_CROWD", 50)
    template = random_documents(1, 200)[0]
    documents = [[*template, *words] for words in random_documents(300, 43, seed=1)]
    documents[200] = [*documents[100][:-1], 1]
    compared = []
    jaccard = shingles.jaccard
    monkeypatch.setattr(shingles, "jaccard", lambda *sets: compared.append(1) or jaccard(*sets))
    (pair,) = records_of(remove({"pages": make_corpus(documents)}))
    assert (pair["document"], pair["kept"]["document"]) == (200, 100)
    assert len(compared) < 300 * 299 / 2 / 10


@pytest.mark.parametrize("action", ["drop", "keep"])
def test_evaluation_texts_and_validation_documents_in_training_documents(make_corpus, tmp_path, action):
    text, edited, held_out, short, *others = random_documents(30, 40)
    (tmp_path / "evals.txt").write_text(f"{text_of(text[:20])}\n\n{text_of(short[:7])}\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"label": 1, "text": text_of(edited)}) + "\n")
    long = [word for words in others[:20] for word in words]
    changed = [*edited[:4], 1, *edited[5:]]
    documents = [others[20], [*long, *text[:20], *long], [*others[21], *changed], [*held_out, 1, 2], [*short, 3]]
    corpora = {"texts": make_corpus(documents, [held_out, others[22]])}
    removal = remove(corpora, duplicates=action, evaluation_texts="evals.txt,rows.jsonl")
    places = [(record["document"], record["text"]["source"], record["containment"]) for record in records_of(removal)]
    (row,) = [place for _, place, _ in places if "rows.jsonl" in place]
    assert places == [(1, "evals.txt:1", 1.0), (2, row, pytest.approx(28 / 33, abs=1e-4)), (3, "texts", 1.0)]
    assert records_of(removal)[2]["text"]["split"] == "valid"
    counts = {"all": 5, "removed": 3 * (action == "drop"), "evaluation_texts": 3}
    assert removal.report()["removal"] == {"texts": counts}


def test_a_word_has_one_hash_however_it_is_split_into_tokens():
    """Within a sentence, byte-level tokens have a space in front, but not at the start of some texts."""
    tokenizer = byte_bpe_trainer.train({"cat": 9, "dog": 9}, 400, lowercase=True)
    texts = (["Ġ", "cat", "Ġ", "dog"], ["c", "at", "Ġ", "d", "o", "g"])
    tokens = [np.array([tokenizer.vocab.index(token) for token in text]) for text in texts]
    first, second = shingles.WordHasher(tokenizer).words(tokens)
    assert first.tolist() == second.tolist() and len(set(first.tolist())) == 2


@pytest.mark.parametrize(
    ("filters", "removed"),
    [
        ({"min_words": 4}, {0: 3}),
        ({"max_words": 40}, {2: 300}),
        ({"min_words": 301}, {0: 3, 1: 40, 2: 300, 3: 9, 4: 4}),
        ({"max_repeated_lines": 0.5}, {3: 0.6667}),
        ({"max_repeated_lines": 0.66, "min_words": 4, "max_words": 300}, {0: 3, 3: 0.6667}),
    ],
)
def test_filters(make_corpus, filters, removed):
    repeated = [5, 6, 0, 5, 6, 0, 5, 6, 0, 7, 0, 7, 0, 7]
    documents = [[1] * 3, [2, 3] * 20, random_documents(1, 300)[0], repeated, [8, 0, 9, 0, 8, 0, 9]]
    removal = remove({"text": make_corpus(documents)}, **filters)
    records = records_of(removal)
    assert {record["document"]: record["value"] for record in records} == removed
    assert {record["key"] for record in records} == filters.keys() - ({"max_words"} if len(filters) > 1 else set())
    report = removal.report()
    by_key = {key: sum(record["key"] == key for record in records) for key in filters}
    counts = {"all": 5, "removed": len(removed), **{key: count for key, count in by_key.items() if count}}
    assert report["removal"] == {"text": counts}
    samples = [record["words"] for record in records]
    assert [sample for texts in report["removal_samples"].values() for sample in texts] == samples


def test_a_filtered_document_has_no_duplicates(make_corpus):
    """A document is a duplicate only of one that stays."""
    document = random_documents(1, 60)[0]
    corpora = {"text": make_corpus([document, document[:57], document[:56]])}
    removal = remove(corpora, max_words=59)
    assert [(record["document"], record["key"]) for record in records_of(removal)] == [
        (0, "max_words"),
        (2, "duplicates"),
    ]


def test_an_interrupted_search_resumes_to_the_same_bytes(make_corpus, monkeypatch):
    documents = planted(200)
    expected = digests(remove({"text": make_corpus(documents)}).folder)
    monkeypatch.setattr(duplicates, "_BATCH_TOKENS", 500)
    monkeypatch.setattr(duplicates, "_PART_DOCUMENTS", 20)
    corpora = {"text": make_corpus(documents)}
    with monkeypatch.context() as patch:
        patch.setattr(duplicates, "find_duplicates", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            remove(corpora)
    scans = next(corpora["text"].folder.parent.rglob("scans"))
    *first, last = sorted(scans.iterdir())
    last.unlink()  # of a process that was killed before
    assert len(first) > 3
    scanned = []
    scan = duplicates._scan
    monkeypatch.setattr(duplicates, "_scan", lambda block, **named: scanned.extend(block) or scan(block, **named))
    assert digests(remove(corpora).folder) == expected
    assert scanned == list(range(int(first[-1].stem), len(documents)))


def test_several_workers_find_the_same(make_corpus):
    one, other = ({"text": make_corpus(planted(60))} for _ in range(2))
    expected = digests(remove(one).folder)
    assert digests(remove(other, workers=2).folder) == expected


def test_removed_documents_take_no_part(make_corpus):
    documents = random_documents(40, 30)
    corpora = {"one": make_corpus([*documents[:30], *documents[5:10]]), "two": make_corpus(documents[25:])}
    before = make_corpus(documents[30:])
    removal = remove(corpora)
    removal.apply(corpora)
    sentences = corpora["two"].splits["train"].sentences
    assert sentences.documents.tolist() == list(range(5, 15))
    assert corpora["two"].unigrams.tolist() == before.unigrams.tolist()
