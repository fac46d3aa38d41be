"""A small byte-level BPE, trained on words of several scripts."""

import functools

from bertjax.data.text import byte_bpe_trainer
from bertjax.data.text.library_encoders import LibraryEncoderTokenizer

TEXTS = (
    "The birds are singing, and the cat isn't sleeping.",
    "the bird sings; the cats sleep. 12 birds sang in 1234!",
    "한국의 수도는 서울이다. 서울은 한국에서 가장 큰 도시이다.",
    "Где кот? 中文 café naïve",
)


@functools.cache
def trained(vocab_size: int = 320, lowercase: bool = False, more: tuple[str, ...] = ()) -> LibraryEncoderTokenizer:
    """Returns the tokenizer; each text occurs three times."""
    return byte_bpe_trainer.train(byte_bpe_trainer.count_words(3 * TEXTS, lowercase), vocab_size, lowercase, more)
