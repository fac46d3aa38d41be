import dataclasses
import itertools

import numpy as np
import pytest

from bertjax.data.batching import PretrainingBatches
from bertjax.data.corpus import Corpus
from bertjax.data.masking import MaskingConfig
from bertjax.data.sentence_pairs import PairsConfig, make_rows

S, P, BATCH = 32, 5, 8
ALL = np.arange(BATCH)
HALVES = np.split(ALL, 2)
PAIRS = PairsConfig(seq_len=S, next_sentence=True, short_seq_prob=0.1, random_next_prob=0.5)
ONE_SEGMENT = dataclasses.replace(PAIRS, next_sentence=False)
MASKING = MaskingConfig(
    rate=0.15,
    max_predictions=P,
    mask_fraction=0.8,
    random_fraction=0.1,
    keep_fraction=0.1,
    whole_word=False,
    mode="dynamic",
    dupe_factor=2,
)
KEPT = dataclasses.replace(MASKING, mask_fraction=0.0, random_fraction=0.0, keep_fraction=1.0)
SHAPES = {
    "input_ids": (S,),
    "token_type_ids": (S,),
    "attention_mask": (S,),
    "masked_positions": (P,),
    "masked_labels": (P,),
    "masked_weights": (P,),
    "next_sentence_labels": (),
    "row_weights": (),
}


@pytest.fixture
def corpus(make_config, prepare) -> Corpus:
    return prepare(make_config())


def make_batches(corpus: Corpus, **changes: object) -> PretrainingBatches:
    arguments = {
        "split": "train",
        "pairs": PAIRS,
        "masking": MASKING,
        "objective": "masked_lm",
        "direction": "both",
        "seed": 3,
        "batch_size": BATCH,
    }
    return PretrainingBatches(corpus, **{**arguments, **changes})


def assert_equal(a, b) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], strict=True, err_msg=name)


def joined(parts) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def restored(batch) -> np.ndarray:
    """The input ids before masking."""
    ids = batch["input_ids"].copy()
    for row, positions, labels, weights in zip(
        ids, batch["masked_positions"], batch["masked_labels"], batch["masked_weights"], strict=True
    ):
        row[positions[weights > 0]] = labels[weights > 0]
    return ids


def expected_text(corpus: Corpus, split: str, pairs: PairsConfig, epoch: int = 0) -> list[tuple[list[int], int, int]]:
    """The ids of each row of an epoch, how many of them are the first segment's, and its label; sorted."""
    tokenizer, texts = corpus.tokenizer, corpus.splits[split]
    rows = []
    for row in make_rows(texts.sentences, pairs, 3, epoch):
        a, b = (
            texts.read([int(row[f"document_{side}"])])[0][row[f"start_{side}"] :][: row[f"length_{side}"]].tolist()
            for side in "ab"
        )
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id]
        if pairs.next_sentence:
            ids += [*b, tokenizer.sep_id]
        rows.append((ids, len(a) + 2, int(row["is_random_next"])))
    return sorted(rows)


def actual_text(batches, pairs: PairsConfig) -> list[tuple[list[int], int, int]]:
    """The same from batches, leaving out the rows that only fill up."""
    rows = []
    for batch in batches:
        for i in np.flatnonzero(batch["row_weights"]):
            length = int(batch["attention_mask"][i].sum())
            first = int((batch["token_type_ids"][i, :length] == 0).sum())
            rows.append((restored(batch)[i, :length].tolist(), first, int(batch["next_sentence_labels"][i])))
    return sorted(rows)


@pytest.mark.parametrize("masking", [MASKING, dataclasses.replace(MASKING, mode="static")])
@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
def test_a_batch_is_a_function_of_seed_and_step(corpus, masking, pairs):
    batches = make_batches(corpus, masking=masking, pairs=pairs)
    steps_in_epoch = len(batches._plan.rows(0)) // BATCH
    count = 2 * steps_in_epoch + 3
    from_start = list(itertools.islice(batches.training(0, ALL), count))
    for step in (1, steps_in_epoch, count - 1):
        fresh = make_batches(corpus, masking=masking, pairs=pairs)
        for batch, expected in zip(fresh.training(step, ALL), from_start[step:], strict=False):
            assert_equal(batch, expected)
        assert_equal(fresh.training_batch(step, ALL), from_start[step])
    # No two steps see the same, nor do two seeds.
    assert len({batch["input_ids"].tobytes() for batch in from_start}) == count
    other = make_batches(corpus, masking=masking, pairs=pairs, seed=4).training_batch(0, ALL)
    assert other["input_ids"].tobytes() != from_start[0]["input_ids"].tobytes()


@pytest.mark.parametrize("objective", ["masked_lm", "causal_lm"])
def test_halves_of_the_rows_make_up_the_whole(corpus, objective):
    arguments = {"objective": objective, "direction": "left_to_right"}
    whole = make_batches(corpus, **arguments).training(0, ALL)
    halves = [make_batches(corpus, **arguments).training(0, half) for half in HALVES]
    for batch, *parts in itertools.islice(zip(whole, *halves, strict=True), 12):
        assert [len(part["input_ids"]) for part in parts] == [BATCH // 2] * 2
        assert_equal(joined(parts), batch)


def test_two_readers_of_one_object_do_not_disturb_each_other(corpus):
    batches = make_batches(corpus)
    steps = 2 * len(batches._plan.rows(0)) // BATCH + 2
    expected = [make_batches(corpus).training_batch(step, ALL) for step in range(steps)]
    readers = [batches.training(0, half) for half in HALVES]
    for batch, *parts in zip(expected, *readers, strict=False):
        assert_equal(joined(parts), batch)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_batches_have_the_shapes_and_types_that_are_promised(corpus, split):
    batches = make_batches(corpus, split=split)
    for batch in [batches.training_batch(0, ALL), *batches.evaluation(ALL)]:
        assert {name: array.shape for name, array in batch.items()} == {
            name: (BATCH, *shape) for name, shape in SHAPES.items()
        }
        assert {name: array.dtype for name, array in batch.items()} == {
            name: np.float32 if name.endswith("weights") else np.int32 for name in SHAPES
        }


@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
def test_rows_have_the_layout_of_bert(corpus, pairs):
    tokenizer = corpus.tokenizer
    lengths = set()
    for step in range(8):
        batch = make_batches(corpus, masking=KEPT, pairs=pairs).training_batch(step, ALL)
        assert (batch["row_weights"] == 1).all()
        for ids, types, mask in zip(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"], strict=True):
            length = mask.sum()
            lengths.add(int(length))
            assert mask.tolist() == [1] * length + [0] * (S - length)
            assert (ids[length:] == tokenizer.pad_id).all()
            assert not types[length:].any()
            assert np.flatnonzero(ids == tokenizer.cls_id).tolist() == [0]
            separators = np.flatnonzero(ids == tokenizer.sep_id).tolist()
            assert separators[-1] == length - 1
            if pairs.next_sentence:
                middle, end = separators
                assert 1 < middle < end - 1
                assert types[:length].tolist() == [0] * (middle + 1) + [1] * (end - middle)
            else:
                assert len(separators) == 1
                assert not types.any()
                assert not batch["next_sentence_labels"].any()
    assert len(lengths) > 1


@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
@pytest.mark.parametrize("masking", [MASKING, KEPT])
def test_an_epoch_of_training_is_the_text_of_its_rows(corpus, pairs, masking):
    batches = make_batches(corpus, pairs=pairs, masking=masking, batch_size=1)
    place = 0
    for epoch in range(2):
        count = len(batches._plan.rows(epoch))
        epoch_batches = [batches.training_batch(place + i, ALL[:1]) for i in range(count)]
        assert actual_text(epoch_batches, pairs) == expected_text(corpus, "train", pairs, epoch)
        place += count


def test_texts_can_be_read_again(corpus, tiny_documents):
    # Rows of one segment, in the order they were cut, are the documents, whose words are all in the vocabulary.
    batches = make_batches(corpus, pairs=ONE_SEGMENT, masking=KEPT, split="valid", batch_size=1)
    planned = batches._plan.rows(0)
    words: dict[int, list[str]] = {}
    for place in np.argsort(planned["number"]):
        ids, length = batches.training_batch(int(place), ALL[:1])["input_ids"][0], planned["length_a"][place]
        key = int(planned["document_a"][place])
        words.setdefault(key, []).extend(corpus.tokenizer.vocab[i] for i in ids[1 : 1 + length])
    read = {" ".join(text).replace(" ##", "") for text in words.values()}
    assert read < {" ".join(lines) for lines in tiny_documents}
    assert len(read) == corpus.counts["valid"]["documents"]


def test_only_text_is_predicted(corpus):
    tokenizer = corpus.tokenizer
    specials = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]
    for batch in itertools.islice(make_batches(corpus).training(0, ALL), 20):
        chosen = batch["masked_labels"][batch["masked_weights"] > 0]
        assert not np.isin(chosen, specials).any()
        assert (batch["masked_weights"].sum(axis=1) >= 1).all()
        length = batch["attention_mask"].sum(axis=1)
        expected = np.minimum(np.maximum(np.rint(length * 0.15), 1), P)
        np.testing.assert_array_equal(batch["masked_weights"].sum(axis=1), expected)
        assert (batch["masked_positions"] < length[:, None]).all()


def test_whole_words_are_masked_with_the_pieces_of_the_vocabulary(corpus):
    whole = dataclasses.replace(MASKING, whole_word=True, mask_fraction=1.0, random_fraction=0.0, keep_fraction=0.0)
    tokenizer, pieces = corpus.tokenizer, 0
    for batch in itertools.islice(make_batches(corpus, masking=whole).training(0, ALL), 20):
        before, hidden = restored(batch), batch["input_ids"] == tokenizer.mask_id
        continues = tokenizer.is_continuation[before]
        # Text between [SEP] and the end apart, a piece is hidden if and only if the one before it is.
        after_special = np.isin(np.roll(before, 1, axis=1), [tokenizer.cls_id, tokenizer.sep_id])
        inside = continues & ~after_special
        np.testing.assert_array_equal(hidden[inside], np.roll(hidden, 1, axis=1)[inside])
        pieces += (hidden & inside).sum()
    assert pieces > 50


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_masks_come_again_only_in_static_epochs(corpus, mode):
    batches = make_batches(corpus, masking=dataclasses.replace(MASKING, mode=mode), batch_size=1)
    epochs, place = [], 0
    for epoch in range(3):
        count = len(batches._plan.rows(epoch))
        epochs.append([batches.training_batch(place + i, ALL[:1])["input_ids"].tobytes() for i in range(count)])
        place += count
    assert set(epochs[0]).isdisjoint(epochs[1])
    if mode == "static":
        assert sorted(epochs[0]) == sorted(epochs[2])
        assert epochs[0] != epochs[2]
    else:
        assert len(set(epochs[0]) & set(epochs[2])) < len(epochs[0]) / 10


@pytest.mark.parametrize("batch_size", [1, 7, 8, 1000])
@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
def test_evaluation_covers_each_row_once(corpus, batch_size, pairs):
    batches = make_batches(corpus, split="valid", batch_size=batch_size, pairs=pairs)
    every = list(batches.evaluation(np.arange(batch_size)))
    count = len(batches._plan.rows(0))
    assert len(every) == -(-count // batch_size)
    weights = np.concatenate([batch["row_weights"] for batch in every])
    assert weights.tolist() == [1] * count + [0] * (len(every) * batch_size - count)
    assert actual_text(every, pairs) == expected_text(corpus, "valid", pairs)
    last = every[-1]
    filler = last["row_weights"] == 0
    assert not last["masked_weights"][filler].any()
    assert not last["attention_mask"][filler].any()
    assert last["masked_weights"][~filler].any()


def test_evaluation_is_the_same_each_time_and_in_halves(corpus):
    batches = make_batches(corpus, split="valid")
    first = list(batches.evaluation(ALL))
    assert len(first) > 1
    halves = [list(batches.evaluation(half)) for half in HALVES]
    for batch, again, *parts in zip(first, batches.evaluation(ALL), *halves, strict=True):
        assert_equal(batch, again)
        assert_equal(joined(parts), batch)


@pytest.mark.parametrize(("direction", "step"), [("left_to_right", 1), ("right_to_left", -1)])
def test_causal_language_modeling_predicts_every_neighbor(corpus, direction, step):
    batches = make_batches(corpus, pairs=ONE_SEGMENT, objective="causal_lm", direction=direction)
    kept = make_batches(corpus, pairs=ONE_SEGMENT, masking=KEPT)
    for number in range(4):
        batch, text = batches.training_batch(number, ALL), kept.training_batch(number, ALL)
        # The rows are those of masked language modeling, and nothing is masked.
        for name in ("input_ids", "token_type_ids", "attention_mask", "row_weights"):
            np.testing.assert_array_equal(batch[name], text[name])
        assert batch["masked_positions"].shape == (BATCH, S - 1)
        for i in range(BATCH):
            length = int(batch["attention_mask"][i].sum())
            real = batch["masked_weights"][i] > 0
            assert real.sum() == length - 1
            positions = batch["masked_positions"][i, real]
            np.testing.assert_array_equal(batch["masked_labels"][i, real], batch["input_ids"][i, positions + step])
            assert (positions + step < length).all()
