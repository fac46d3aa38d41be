"""Prepared text with a byte-level BPE that is trained on it."""

from bertjax.data.text.library_encoders import LibraryEncoderTokenizer
from tests.data.folders import read_whole

BYTES = {"vocab_file": "", "vocab_size": 300, "tokenizer": "byte_bpe", "lowercase": False}


def test_the_sentences_of_a_document_are_encoded_as_in_its_text(make_config, prepare, tiny_documents):
    prepared = prepare(make_config(**BYTES))
    tokenizer = prepared.tokenizer
    assert isinstance(tokenizer, LibraryEncoderTokenizer) and tokenizer.vocab_size == 300
    texts = {" ".join(lines) for lines in tiny_documents}
    documents = [ids.tolist() for name in ("train", "valid") for ids in read_whole(prepared.splits[name])]
    assert sorted(documents) == sorted(tokenizer.encode_batch(sorted(texts)))
    assert {tokenizer.decode(ids) for ids in documents} == texts
