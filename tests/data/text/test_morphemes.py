"""WordPiece over the morphemes of Korean words."""

from collections import Counter

import pytest

from bertjax import korean
from bertjax.data.text import wordpiece_trainer
from bertjax.data.text.normalization import Chain
from bertjax.data.text.vocabulary_config import TrainedVocabularyConfig
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError

pytest.importorskip("kiwipiepy")
CHAIN = Chain.of(lowercase=True, nfc=True, morphemes=korean.analyzer_version())
TEXT = "학교에서 했습니다. 학교는 Schule"


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    counts = wordpiece_trainer.count_words([TEXT] * 3, CHAIN)
    assert counts == Counter({"학교": 6, "##에서": 3, "했": 3, "##습니다": 3, ".": 3, "##는": 3, "schule": 3})
    return WordPiece.of(wordpiece_trainer.train(counts, 100), CHAIN)


def test_pieces_do_not_cross_morphemes(tokenizer):
    tokens = tokenizer.names(tokenizer.encode(TEXT))
    assert tokens == ["학교", "##에서", "했", "##습니다", ".", "학교", "##는", "schule"]
    assert "##에서" in tokenizer.vocab and "에서" not in tokenizer.vocab and "#" not in tokenizer.vocab
    assert tokenizer.names(tokenizer.encode_spaced("학교에서")) == ["학교", "##에서"]


def test_text_and_offsets_are_those_that_were_written(tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXT)) == "학교에서 했습니다 . 학교는 schule"
    pieces = tokenizer.encode_with_offsets(TEXT)
    texts = [TEXT[start:end] for start, end in zip(pieces.starts, pieces.ends, strict=True)]
    assert texts == ["학교", "에서", "했", "습니다", ".", "학교", "는", "Schule"]
    assert tokenizer.encode("학교를") == [tokenizer.unk_id], "a word with an unknown morpheme is unknown, as in BERT"
    assert tokenizer.encode_with_offsets("학교를").ends.tolist() == [3]


def test_a_saved_vocabulary_splits_morphemes(tokenizer, tmp_path, caplog):
    tokenizer.save(tmp_path)
    opened = WordPiece.load(tmp_path)
    assert opened == tokenizer
    assert [record.message for record in caplog.records if "transformers does not split" not in record.message] == []
    assert WordPiece.of(tokenizer.vocab, CHAIN._replace(morphemes="")).key != tokenizer.key
    WordPiece.of(tokenizer.vocab, CHAIN._replace(morphemes="kiwipiepy 0.1")).save(tmp_path)
    assert WordPiece.load(tmp_path).chain.morphemes == "kiwipiepy 0.1"
    assert "trained with kiwipiepy 0.1, and kiwipiepy" in caplog.text


def test_morphemes_need_composed_text():
    with pytest.raises(UserError, match=r"data\.morphemes: got 'korean'; expected '' unless .*normalization=nfc"):
        TrainedVocabularyConfig(lowercase=True, morphemes="korean", normalization="bert")
    config = TrainedVocabularyConfig(lowercase=True, morphemes="korean", normalization="nfc")
    assert config.chain == CHAIN
