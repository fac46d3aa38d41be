"""A writer of small SentencePiece models."""

import struct

from tests.interop.bundles import message, varint

UNIGRAM, BPE = 1, 2
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
WORDS = [
    "\u2581the",
    "\u2581cat",
    "\u2581",
    "s",
    "ing",
    "th",
    "he",
    "3,",
    "\u2581한국",
    "국",
    "어",
    *"thecains3.,!(한A",
]
FIRST = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
OF_BERT = [("[PAD]", CONTROL), ("[CLS]", CONTROL), ("[SEP]", CONTROL), ("[UNK]", UNKNOWN), ("@user", USER_DEFINED)]
OF_ALBERT = [("<pad>", CONTROL), ("<unk>", UNKNOWN), *((name, CONTROL) for name in ("[CLS]", "[SEP]", "[MASK]"))]


def charsmap():
    """A table that maps the wide A (U+FF21) to A, as NFKC does: a double-array trie, and the result."""
    path = "\uff21".encode()
    units, base = [0] * 256 * (len(path) + 2), 256
    units[0] = base << 10
    for number, byte in enumerate(path, start=2):
        place, following = base ^ byte, 256 * number
        units[place] = byte | (place ^ following) << 10 | (number > len(path)) << 8
        base = following
    units[base] = 1 << 31
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + b"A\0"


def model(first, kind=UNIGRAM, words=WORDS, table=b""):
    """The bytes of a model whose first pieces are special."""
    pieces = [message((1, token.encode()), (3, of)) + score(0.0) for token, of in first]
    pieces += [message((1, token.encode())) + score(-2.0 - i) for i, token in enumerate(dict.fromkeys(words))]
    unknown = [token for token, _ in first].index(next(token for token, of in first if of == UNKNOWN))
    trainer = message((3, kind), (40, unknown), (45, first[unknown][0].encode()))
    return message(*((1, piece) for piece in pieces), (2, trainer), (3, message((2, table))))


def score(value):
    return varint(2 << 3 | 5) + struct.pack("<f", value)
