"""Settings of small batches, and functions that extract the instances of batches."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bertjax.data.pretraining.batch_config import BatchConfig, InstanceRowsConfig
from bertjax.data.pretraining.batches import PretrainingBatches
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.pretraining.sentence_pairs import PairsConfig, make_instances
from tests.data.folders import read_whole
from tests.experiments.commands import settings_of

S, P, BATCH = 32, 5, 8
ALL = np.arange(BATCH)
HALVES = np.split(ALL, 2)
PAIRS = PairsConfig(seq_len=S, next_sentence=True, whole_sentences=False, short_seq_prob=0.1, random_next_prob=0.5)
ONE_SEGMENT = dataclasses.replace(PAIRS, next_sentence=False)
MASKING = settings_of(MaskingConfig, "bert_pretraining", "masking", max_predictions=P, dupe_factor=2)
KEPT = dataclasses.replace(MASKING, mask_fraction=0.0, random_fraction=0.0, keep_fraction=1.0)
ALONE, PACKED = (InstanceRowsConfig(packing=packing, valid_rows=0) for packing in (False, True))
CONFIG = BatchConfig(PAIRS, MASKING, ALONE, "masked_lm", "both", 3, BATCH, 100)


def make_batches(corpus: Corpus, split: str = "train", **changes: object) -> PretrainingBatches:
    return PretrainingBatches({"": corpus}, split, dataclasses.replace(CONFIG, **changes))


def rows_in(batches: PretrainingBatches, epoch: int) -> int:
    return batches._plans[0].count(epoch)


def assert_equal(a, b) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], strict=True, err_msg=name)


def joined(parts) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def restored(batch) -> np.ndarray:
    """Returns the input ids before masking."""
    ids = batch["input_ids"].copy()
    for row, positions, labels, weights in zip(
        ids, batch["masked_positions"], batch["masked_labels"], batch["masked_weights"], strict=True
    ):
        row[positions[weights > 0]] = labels[weights > 0]
    return ids


Instance = tuple[list[int], int, int]  # ids, length of the first segment with [CLS] and [SEP], label


def expected_text(corpus: Corpus, split: str, pairs: PairsConfig, epoch: int = 0) -> list[Instance]:
    """Returns the instances of an epoch, computed from the documents and sorted."""
    tokenizer, texts = corpus.tokenizer, corpus.splits[split]
    documents = [ids.tolist() for ids in read_whole(texts)]

    def segment(document: int, start: int, length: int) -> list[int]:
        return documents[document][start : start + length]

    found = []
    every, special = np.arange(texts.sentences.num_documents), tokenizer.template.num_special(pairs.num_texts)
    for row in make_instances(texts.sentences, every, pairs, special, 3, epoch):
        a, b = (segment(*(int(row[f"{what}_{side}"]) for what in ("document", "start", "length"))) for side in "ab")
        ids, first = tokenizer.template.row([a, b][: pairs.num_texts])
        found.append((ids, first, int(row["is_random_next"])))
    return sorted(found)


def instances_of(batch) -> Iterator[dict[str, np.ndarray]]:
    """Yields the fields of each instance of a batch, and checks the layout of the rows."""
    before = restored(batch)
    for i, segments in enumerate(batch["segment_ids"]):
        length = np.count_nonzero(segments)
        assert not segments[length:].any()
        assert (np.diff(segments[:length]) >= 0).all()
        assert sorted(set(segments[:length].tolist())) == list(range(1, int(segments.max()) + 1))
        predicted = batch["masked_weights"][i] > 0
        for number in range(1, int(segments.max()) + 1):
            (positions,) = np.nonzero(segments == number)
            mine = predicted & np.isin(batch["masked_positions"][i], positions)
            found = {
                "ids": before[i, positions],
                "masked": batch["input_ids"][i, positions],
                "types": batch["token_type_ids"][i, positions],
                "predicted": batch["masked_positions"][i, mine] - positions[0],
                "labels": batch["masked_labels"][i, mine],
                "next": np.int32(0),
            }
            if "position_ids" in batch:
                assert batch["position_ids"][i, positions].tolist() == list(range(len(positions)))
            if "cls_positions" in batch:
                assert batch["cls_positions"][i, number - 1] == positions[0]
                assert batch["next_sentence_weights"][i, number - 1] == 1
                found["next"] = batch["next_sentence_labels"][i, number - 1]
            yield found
        if "cls_positions" in batch:
            assert not batch["next_sentence_weights"][i, segments.max() :].any()


def actual_text(batches) -> list[Instance]:
    """Returns the instances of batches, sorted, in the form of `expected_text`."""
    return sorted(
        (each["ids"].tolist(), int((each["types"] == 0).sum()), int(each["next"]))
        for batch in batches
        for each in instances_of(batch)
    )
