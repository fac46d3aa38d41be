"""Selection of sentences by their scores: PreSumm's rules, other rules, and the reasons for skipped sentences."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.decoding.selection import (
    Refusal,
    SelectionConfig,
    lead_scores,
    oracle_scores,
    rules_for_baselines,
    rules_for_reference,
    select,
)
from bertjax.errors import UserError


def config(**changes):
    """PreSumm's rules with changes."""
    values = {"num_sentences": 3, "word_budget": 0, "threshold": None, "block_ngrams": 3, "order": "score"}
    return SelectionConfig(**{**values, **changes})


SENTENCES = ["the cat sat here", "and the cat sat", "a dog", "a dog", "it was all", "The cat sat down too"]
SCORES = np.array([0.9, 0.8, 0.1, 0.1, 0.3, 0.2])


def test_presumms_rules():
    # Sentence 1 repeats a trigram of sentence 0. A different case or fewer than three words is no repetition.
    chosen, refused = select(SCORES, SENTENCES, config())
    assert chosen == (0, 4, 5)
    assert refused == (Refusal(1, "block_ngrams", 0, ("the", "cat", "sat")),)


def test_equal_scores_are_ordered_as_in_the_article():
    scores = np.full(40, 0.5, np.float32)
    assert select(scores, ["x y"] * 40, config(num_sentences=40)).chosen == tuple(range(40))


def test_shorter_sentences_fill_the_word_budget():
    chosen, refused = select(SCORES, SENTENCES, config(word_budget=6, block_ngrams=0))
    assert chosen == (0, 2)
    assert [(refusal.sentence, refusal.reason) for refusal in refused] == [
        (number, "word_budget") for number in (1, 4, 5, 3)
    ]


def test_a_threshold():
    chosen, refused = select(SCORES, SENTENCES, config(threshold=0.3, num_sentences=0, block_ngrams=0))
    assert chosen == (0, 1, 4)
    assert refused == tuple(Refusal(number, "threshold", None, ()) for number in (5, 2, 3))


def test_the_first_sentence_with_the_ngram_is_named():
    sentences = ["a b c d", "x b c y", "q b c d"]
    chosen, refused = select(np.array([3.0, 2.0, 1.0]), sentences, config(block_ngrams=2, num_sentences=5))
    assert chosen == (0,)
    assert refused == (Refusal(1, "block_ngrams", 0, ("b", "c")), Refusal(2, "block_ngrams", 0, ("b", "c")))


def test_rules_for_the_length_of_a_reference():
    rules, reference = config(num_sentences=3, word_budget=9, threshold=0.5), ["a b c", "d e", "f g", "h"]
    assert rules_for_reference(rules, reference, "") is rules
    assert rules_for_reference(rules, reference, "sentences") == config(num_sentences=4, word_budget=0, threshold=None)
    assert rules_for_reference(rules, reference, "words") == config(num_sentences=0, word_budget=8, threshold=None)


def test_rules_for_lead_and_oracle_scores():
    assert rules_for_baselines(config(threshold=0.5)) == config(num_sentences=3, block_ngrams=0)
    assert rules_for_baselines(config(num_sentences=0, word_budget=9)) == config(
        num_sentences=0, word_budget=9, block_ngrams=0
    )
    only = config(num_sentences=0, threshold=0.5)
    assert select(lead_scores(6), SENTENCES, rules_for_baselines(only)).chosen == (0, 1, 2)
    assert select(oracle_scores((4, 5), 6), SENTENCES, rules_for_baselines(only)).chosen == (4, 5)


def test_sentences_without_scores_are_not_chosen():
    assert select(SCORES[:1], SENTENCES, config()).chosen == (0,)
    assert select(np.zeros(0), [], config()).chosen == ()


def test_scores_that_are_nan():
    with pytest.raises(UserError, match=r"scores of sentences: got NaN for sentence 1; expected numbers\. Fix: use"):
        select(np.array([0.5, np.nan]), ["a", "b"], config())


def test_a_selection_needs_a_limit():
    with pytest.raises(UserError, match=r"got no limit; expected at least one limit, .*selection\.num_sentences=3"):
        config(num_sentences=0)


def trigrams(sentence, n):
    words = sentence.split()
    return {tuple(words[start : start + n]) for start in range(len(words) - n + 1)}


articles = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abc"), max_size=6).map(" ".join),
        st.sampled_from([-np.inf, -1.0, 0.0, 0.25, 0.5, 1.0]),
    ),
    max_size=9,
)


@given(articles, st.integers(0, 4), st.integers(0, 9), st.sampled_from([None, 0.0, 0.5]), st.integers(0, 4))
def test_all_rules_hold_and_every_sentence_is_chosen_or_refused(article, most, budget, threshold, n):
    if not (most or budget or threshold is not None):
        most = 1
    sentences = [sentence for sentence, _ in article]
    scores = np.array([score for _, score in article])
    limits = config(num_sentences=most, word_budget=budget, threshold=threshold, block_ngrams=n)
    chosen, refused = select(scores, sentences, limits)
    for one, other in itertools.combinations(chosen, 2):
        assert scores[one] >= scores[other]
        assert not (n and trigrams(sentences[one], n) & trigrams(sentences[other], n))
    assert not budget or sum(len(sentences[i].split()) for i in chosen) <= budget
    assert all(scores[i] > -np.inf and (threshold is None or scores[i] >= threshold) for i in chosen)
    seen = [*chosen, *(refusal.sentence for refusal in refused)]
    assert len(set(seen)) == len(seen)
    is_full = most and len(chosen) == most
    assert is_full or len(seen) == len(scores)
    assert not most or len(chosen) <= most
    # Sentences that were not considered have no better score than those chosen.
    unseen = set(range(len(scores))) - set(seen)
    assert not unseen or max(scores[list(unseen)]) <= min(scores[i] for i in chosen)
    for number, reason, blocked_by, ngram in refused:
        assert (reason == "block_ngrams") == (blocked_by in chosen) == bool(ngram)
        if ngram:
            assert ngram in trigrams(sentences[number], n) & trigrams(sentences[blocked_by], n)
    in_order = select(scores, sentences, config(**{**vars(limits), "order": "document"}))
    assert in_order == (tuple(sorted(chosen)), refused)
