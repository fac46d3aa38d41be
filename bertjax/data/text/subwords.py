"""Vocabularies of encoder-decoders that are trained here: byte pairs within words, and characters."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from bertjax.config import choice
from bertjax.data.text.bpe_trainer import Bpe
from bertjax.data.text.library_tokenizers import SPACE as WORD_BEGIN
from bertjax.data.text.library_tokenizers import LibraryTokenizer

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


def byte_pair(bpe: Bpe, normalization: str, lowercase: bool) -> LibraryTokenizer:
    """Returns byte-pair encoding over the words of a `Splitter`. The first tokens are `SPECIALS`."""
    tokenizer = Library(models.BPE({token: i for i, token in enumerate(bpe.vocab)}, bpe.merges, unk_token="<unk>"))
    tokenizer.normalizer = _normalizer(normalization, lowercase)
    tokenizer.pre_tokenizer = _SPLIT
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(WORD_BEGIN, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_specials(tokenizer)


def characters(alphabet: Sequence[str]) -> LibraryTokenizer:
    """Returns a vocabulary of code points, including spaces, without normalization. The first tokens are `SPECIALS`."""
    vocab = {token: i for i, token in enumerate((*SPECIALS, *alphabet))}
    tokenizer = Library(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    return _with_specials(tokenizer)


class Splitter:
    """Splits text into the words within which byte pairs are merged.

    Text is normalized to NFC or NFKC and optionally lowercased. Line breaks count as spaces. As in SentencePiece, each
    space becomes WORD_BEGIN, and another WORD_BEGIN is added before the text. A word is a run of characters, or a
    single punctuation mark, symbol or other whitespace character, with the WORD_BEGIN before it. Decoding therefore
    restores the normalized text exactly, including repeated spaces. (A WORD_BEGIN in the text is decoded as a space.)

    >>> Splitter("nfc", lowercase=False).words('A  "new"\\u00a0day')
    ['▁A', '▁', '▁"', 'new', '"', '\\xa0', 'day']
    """

    def __init__(self, normalization: str, lowercase: bool) -> None:
        self._normalizer = _normalizer(normalization, lowercase)

    def words(self, text: str) -> list[str]:
        """Returns the words of a text, with WORD_BEGIN for spaces."""
        return [word for word, _ in _SPLIT.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def count_words(self, texts: Iterable[str]) -> Counter[str]:
        """Returns the number of occurrences of each word in the texts."""
        return Counter(itertools.chain.from_iterable(map(self.words, texts)))


_SPLIT = pre_tokenizers.Split(
    Regex(rf"{WORD_BEGIN}?(?:[\p{{P}}\p{{S}}\s&&[^{WORD_BEGIN}]]|[^\p{{P}}\p{{S}}\s]+)|{WORD_BEGIN}"), "isolated"
)


def _normalizer(normalization: str, lowercase: bool) -> normalizers.Normalizer:
    choice(normalization, ("nfc", "nfkc"), "data.normalization")
    form = normalizers.NFC() if normalization == "nfc" else normalizers.NFKC()
    # Lowercasing can change the normal form, so it is applied again. Normalizing twice then changes nothing.
    steps = [form, normalizers.Lowercase(), form] if lowercase else [form]
    spaces = normalizers.Replace(Regex(r"[\n\r ]"), WORD_BEGIN)
    return normalizers.Sequence([*steps, spaces, normalizers.Prepend(WORD_BEGIN)])


def _with_specials(tokenizer: Library) -> LibraryTokenizer:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    return LibraryTokenizer.from_json(tokenizer.to_str())
