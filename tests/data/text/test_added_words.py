"""The words that save the most tokens: against brute force, byte-level BPE, the ids of transformers, and errors."""

from collections import Counter
from pathlib import Path

import pytest

from bertjax.data.text import added_words, byte_bpe_trainer
from bertjax.data.text.normalization import Chain
from bertjax.data.text.vocabularies import SPECIALS, Added
from bertjax.data.text.vocabulary_config import BYTE_BPE, WORDPIECE, LearnedVocabularyConfig, count_words, load_saved
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from tests.data.text.test_library_encoders import unigram

LINES = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text().splitlines()[:30]
KOREAN = [
    "예방접종을 받은 환자는 예방접종 후에 열이 났다",
    "환자가 예방접종을 거부했다",
    "환자의 열은 예방접종이 원인이다",
]
UNCASED = Chain.of(lowercase=True)
BYTES = byte_bpe_trainer.train(byte_bpe_trainer.count_words(["the cat and the words of a test"], False), 280, False)


def wordpiece(lines, chain):
    """A vocabulary with few pieces of other text, and the counts of the words of the lines."""
    counts = count_words("wordpiece", lines, chain)
    letters = sorted(set("".join(counts)))
    pieces = ["te", "th", "con", "##st", "##ing", "##on", *letters, *(f"##{letter}" for letter in letters)]
    return WordPiece.of([*SPECIALS, *pieces], chain), counts


@pytest.mark.parametrize(
    ("lines", "chain", "share"),
    [
        (LINES, UNCASED, 0.01),
        (["test tests testing tested than the then thing", "con const constant consts", "te tes"], UNCASED, 0.01),
        (KOREAN, Chain.of(lowercase=False, nfc=True), 0.05),
        (KOREAN, UNCASED, 0.05),  # conjoining Jamo
    ],
)
def test_each_word_saves_the_most_tokens(lines, chain, share, monkeypatch):
    monkeypatch.setattr(added_words, "LEAST_SAVED", share)
    tokenizer, counts = wordpiece(lines, chain)
    extended = added_words.learn(tokenizer, counts, 1000)
    words = extended.vocab[tokenizer.vocab_size :]
    assert extended.vocab[: tokenizer.vocab_size] == tokenizer.vocab and len(words) > 2
    least = share * added_words.num_tokens(tokenizer, counts)

    def saved(before, word):
        return added_words.num_tokens(before, counts) - added_words.num_tokens(before.with_words([word]), counts)

    for count in range(len(words) + 1):
        before = tokenizer.with_words(words[:count])
        best = max((saved(before, word) for word in counts if word not in before.vocab), default=0)
        assert best < least if count == len(words) else saved(before, words[count]) == best >= least
    for text in lines:
        assert extended.decode(extended.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert sum(map(len, extended.encode_batch(lines))) == added_words.num_tokens(extended, counts)
    assert added_words.learn(tokenizer, counts, 2).vocab[tokenizer.vocab_size :] == words[:2]


def test_a_word_that_would_make_another_unknown_is_not_added():
    tokenizer = WordPiece([*SPECIALS, "a", "ab", "##b", "##cz"], lowercase=True)
    counts = Counter({"abb": 5, "abbcz": 1, "acz": 9})
    assert added_words.learn(tokenizer, counts, 9).vocab[tokenizer.vocab_size :] == ("acz", "abb", "abbcz")
    tokenizer = WordPiece([*SPECIALS, "a", "ab", "##b", "##bcz"], lowercase=True)
    counts = Counter({"abb": 5, "abbcz": 1})  # "abb" would leave "##cz"
    assert added_words.learn(tokenizer, counts, 9).vocab[tokenizer.vocab_size :] == ("abbcz",)


def test_merges_are_added_to_byte_level_bpe(monkeypatch):
    monkeypatch.setattr(added_words, "LEAST_SAVED", 0.004)
    tokenizer = BYTES.with_added([Added("config"), Added("Ġrun")])
    lines = [line for line in LINES if "config" not in line]
    counts = count_words(BYTE_BPE, lines, Chain.of(lowercase=False))
    extended = added_words.learn(tokenizer, counts, 1000)
    sizes = [sum(map(len, each.encode_batch(lines))) for each in (tokenizer, extended)]
    assert sizes == [added_words.num_tokens(each, counts) for each in (tokenizer, extended)]
    count = extended.vocab_size - tokenizer.vocab_size
    assert extended.vocab[: tokenizer.vocab_size] == tokenizer.vocab and count > 20
    assert sizes[0] - sizes[1] >= count * 0.004 * sizes[0]
    assert [extended.decode(ids) for ids in extended.encode_batch(lines)] == [line.strip() for line in lines]


@pytest.mark.parametrize(("tokenizer", "kind"), [(wordpiece(LINES, UNCASED)[0], WORDPIECE), (BYTES, BYTE_BPE)])
def test_saved_tokenizers_give_the_ids_of_transformers(tokenizer, kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer.with_added([Added("new tok", tokenizer.vocab_size)])
    extended = added_words.learn(tokenizer, count_words(kind, LINES, Chain.of(tokenizer.lowercase)), 50)
    extended.save(tmp_path)
    assert load_saved(tmp_path) == extended
    lines = [*LINES, "tests and a new tok"]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(lines, add_special_tokens=False)["input_ids"] == extended.encode_batch(lines)


def test_words_are_not_added_to_other_vocabularies(tmp_path):
    config = LearnedVocabularyConfig(str(unigram(tmp_path)), False, add_words=3)
    message = r"data\.add_words: got 3, .* of type Unigram; expected 0, .*\. Fix: set --config\.data\.add_words=0"
    with pytest.raises(UserError, match=message):
        added_words.vocabulary_key(config)
