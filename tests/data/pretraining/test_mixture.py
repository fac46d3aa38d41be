"""Mixtures: the order of rows, the text of each source, and their vocabulary."""

import dataclasses
import itertools

import numpy as np
import pytest

from bertjax.data.pretraining.batches import PretrainingBatches
from bertjax.data.pretraining.corpus import CorpusConfig
from bertjax.data.pretraining.mixture import MixtureConfig, Preparations, RowOrder, balanced, check_epochs
from bertjax.data.text.word_counts import TrainingCounts, weighted
from bertjax.errors import UserError
from tests import tiny
from tests.data.batches import ALL, ALONE, BATCH, CONFIG, KEPT, MASKING, ONE_SEGMENT, PACKED, PAIRS, assert_equal

NAMES = ("wiki", "notes", "few")
WEIGHTS = (500, 300, 200)
FREE = dataclasses.replace(MASKING, max_predictions=None)


@pytest.fixture(scope="module")
def corpora(tiny_values, tmp_path_factory):
    return prepared(tiny_values, tmp_path_factory.mktemp("mixture")).corpora()


def prepared(values, folder, names=NAMES, shares=(0.5, 0.3, 0.2), **changes):
    configs = {}
    for number, name in enumerate(NAMES):
        text = tiny.write_text(folder / f"{name}.txt", documents=3 if name == "few" else 60, seed=number)
        sources = {"source": str(text), "valid_source": str(text)}
        configs[name] = CorpusConfig(**{**values, **sources, "prepared_dir": str(folder / "prepared"), **changes})
    preparations = Preparations({name: configs[name] for name in names}, shares, folder)
    preparations.run()
    return preparations


def mixed(corpora, split="train", weights=WEIGHTS, **changes):
    return PretrainingBatches(corpora, split, dataclasses.replace(CONFIG, weights=weights, **changes))


@pytest.mark.parametrize("seed", range(20))
def test_every_window_has_the_shares_of_the_sources(seed):
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(1000, rng.dirichlet(np.ones(rng.integers(1, 9)) * rng.choice([0.2, 1, 5])))
    order = RowOrder(tuple(weights.tolist()))
    sources, numbers = order.locate(np.arange(100_000))
    is_of = sources[:, None] == np.arange(len(weights))
    excess = np.cumsum(is_of - weights / 1000, axis=0)
    assert np.abs(excess).max() < 1
    assert (np.maximum(excess.max(axis=0), 0) - np.minimum(excess.min(axis=0), 0)).max() < 2
    for source in range(len(weights)):
        np.testing.assert_array_equal(numbers[sources == source], np.arange(is_of[:, source].sum()))
    np.testing.assert_array_equal(order.counts(1777), is_of[:1777].sum(axis=0))


def test_a_phase_counts_on_after_earlier_ones():
    order = RowOrder((250, 750, 0), [(7, (1000, 0, 0)), (10, (0, 500, 500))])
    sources, numbers = order.locate(np.arange(8))
    assert numbers[sources == 0].tolist() == [7, 8] and numbers[sources == 1].tolist() == [5, 6, 7, 8, 9, 10]
    assert order.counts(8).tolist() == [9, 11, 5]


def test_an_epoch_of_each_source_has_all_its_rows_and_its_own_order(corpora):
    """The rows of a source are those of a mixture of it alone, at any weights and beside any others."""
    batches = mixed(corpora)
    rows = {name: [] for name in NAMES}
    for step in range(12):
        batch = batches.training_batches([step], ALL)[0]
        for row, source in enumerate(batch["sources"]):
            rows[NAMES[source]].append(batch["input_ids"][row])
    counts = batches.rows_per_epoch
    assert counts[2] < BATCH < 12 * BATCH * 0.2 < 2 * 12 * counts[2]  # a source smaller than a batch, several times
    for name, count in zip(NAMES, counts, strict=True):
        alone = mixed({name: corpora[name]}, weights=(1000,))
        expected = [row for step in range(12) for row in alone.training_batches([step], ALL)[0]["input_ids"]]
        np.testing.assert_array_equal(rows[name], expected[: len(rows[name])])
        unmasked = mixed({name: corpora[name]}, weights=(1000,), masking=KEPT)
        texts = [unmasked.training_batches([step], ALL)[0]["input_ids"] for step in range(-(-int(count) // BATCH))]
        assert len({row.tobytes() for row in np.concatenate(texts)[:count]}) == count


@pytest.mark.parametrize("changes", [{"rows": ALONE}, {"rows": PACKED, "pairs": ONE_SEGMENT}])
def test_rows_do_not_depend_on_the_split_over_hosts_or_on_the_first_update(corpora, changes):
    batches = [mixed(corpora, **changes).training_batches([step], ALL)[0] for step in range(5)]
    for hosts in (2, 8):
        parts = [
            list(itertools.islice(mixed(corpora, **changes).training(0, rows), 5)) for rows in np.split(ALL, hosts)
        ]
        for batch, *of_hosts in zip(batches, *parts, strict=True):
            assert_equal(batch, {name: np.concatenate([part[name] for part in of_hosts]) for name in batch})
    assert_equal(mixed(corpora, **changes).training_batches([4], ALL)[0], batches[4])


def test_phases_of_one_length_continue_each_source_and_change_the_masking_rate(corpora):
    settings = MixtureConfig(
        mixture=tuple((name, "x", weight / 1000) for name, weight in zip(NAMES, WEIGHTS, strict=True)),
        phases=((0.5, {"weights": {"wiki": 1.0}, "rate": 0.4}),),
    )
    schedule = settings.schedule((), PAIRS.seq_len)
    config = dataclasses.replace(CONFIG, masking=FREE, schedule=schedule, num_steps=8)
    first, second = (PretrainingBatches(corpora, "train", phase) for phase in config.phases)
    early, late = first.training_batches([3], ALL)[0], second.training_batches([4], ALL)[0]
    assert not early["sources"].any() and early["masked_positions"].shape == late["masked_positions"].shape
    assert early["masked_weights"].sum() > 2 * late["masked_weights"].sum()
    one = mixed({"wiki": corpora["wiki"]}, weights=(1000,), masking=config.phases[1].masking, rate=0.15)
    is_wiki = late["sources"] == 0
    np.testing.assert_array_equal(
        late["input_ids"][is_wiki], one.training_batches([4], ALL)[0]["input_ids"][: is_wiki.sum()]
    )


def test_another_source_does_not_prepare_the_others_again(tiny_values, tmp_path):
    two = prepared(tiny_values, tmp_path, NAMES[:2], (0.5, 0.5))
    folders = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "prepared").glob("*/manifest.json")}
    three = prepared(tiny_values, tmp_path)
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "prepared").glob("*/manifest.json")}
    assert folders.items() <= after.items() and len(list((tmp_path / "prepared").glob("*/manifest.json"))) == 3
    assert two.fingerprint != three.fingerprint


def test_the_vocabulary_is_trained_on_the_shares_of_sources(tiny_values, tmp_path):
    """A small language gets pieces in proportion to its weight, not to its size."""
    counts = [TrainingCounts({"aa": 900, "b": 100}, {"a": 1800, "b": 100}), TrainingCounts({"c": 10}, {"c": 10})]
    words = weighted(counts, (0.5, 0.5)).words
    assert words == {"aa": 900, "c": 1000, "b": 100}
    assert weighted(counts, (1.0, 0.0)).words == {"aa": 900, "b": 100}
    preparations = prepared({**tiny_values, "vocab_file": "", "lowercase": True}, tmp_path)
    tokenizers = {name: corpus.tokenizer for name, corpus in preparations.corpora().items()}
    assert len({tokenizer.vocab for tokenizer in tokenizers.values()}) == 1


def test_balanced_weights_add_up_to_one():
    assert balanced([900.0, 100.0, 0.0], temperature=0.5) == (0.75, 0.25, 0.0)
    assert sum(balanced([1.0] * 7)) == pytest.approx(1) and balanced([3e9, 1.0])[0] == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mixture": (("a", "x", 0.5),)}, r"data\.mixture: got .*0.5.*; expected weights .* add up to 1.*such as 1.0"),
        ({"mixture": (("a", "x", 0.3333), ("b", "x", 0.6667))}, "multiples of 0.001.*0.333, 0.667"),
        ({"mixture": (("a", "x", 0.5), ("a", "y", 0.5))}, "different names"),
        ({"mixture": (("a", "x"),)}, r"mixture\[0\].*a name, files, a weight"),
        ({"mixture": (("a", "x", 1.0, {"seed": 1}),)}, r"mixture\[0\].*dict of text_field, valid_source"),
        (
            {"phases": ((0.5, {"weights": {"a": 1.0}}),)},
            r"phases\[0\]: got a; expected no weights without data.mixture",
        ),
        ({"phases": ((0.5, {"length": 8}),)}, r"phases\[0\].*a dict of seq_len, rate or weights"),
    ],
)
def test_bad_mixtures(values, message):
    with pytest.raises(UserError, match=message):
        MixtureConfig(**values)


def test_too_many_epochs_name_the_weight_that_fits():
    config = MixtureConfig(mixture=(("wiki", "x", 0.9), ("few", "y", 0.1)), max_epochs=4.0)
    check_epochs({"wiki": 0.1, "few": 4.0}, config)
    with pytest.raises(UserError, match=r"got 12.5 epochs of few; expected at most 4. Fix: .* from 0.1 to 0.032,"):
        check_epochs({"wiki": 0.1, "few": 12.5}, config)
