"""Writes tokenizer.json.gz with the ids of google-research/bert's own code, or compares our ids with it.

    python tests/data/golden/make_tokenizer_golden.py PATH/TO/tokenization.py DATA_FOLDER
    python tests/data/golden/make_tokenizer_golden.py PATH/TO/tokenization.py DATA_FOLDER --verify 20000

DATA_FOLDER holds vocab/bert-base-{cased,uncased}-vocab.txt and, for --verify, any text as */*.txt.gz under
wikipedia_en. Run it with the oldest supported Python, because earlier versions give other ids for characters that
later versions of Unicode have added.
"""

import argparse
import gzip
import hashlib
import importlib.util
import json
import random
import sys
import types
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from bertjax.data.text.wordpiece import SPECIALS, WordPiece

GOLDEN = Path(__file__).with_name("tokenizer.json.gz")
CASES = 2000
BLOCK = 100  # cases per digest

# Some implementation encodes each of these texts incorrectly.
HARD = (
    "",
    " \t\r\n\u3000\u2028\u2029\x85\x1c\x0b",
    "[MASK] [mask] [SEP][CLS] [UNK]un[PAD]known ##ing",
    "a\x00b\ufffdc\u200bd\xade\ufefff\u180eg\u2060h",
    "x\u2028y\u2029z\u3000w\xa0v\u1680u",
    "ΣΑΣ ὈΔΥΣΣΕΎΣ. ΟΔΟΣ ΟΔΟΣ'Α Σ ΑΣ\u0301 ΑΣ\u0301Β Α\x00Σ Α\u200bΣ ΑΣ中Α",
    "İstanbul IĞDIR ıi STRASSE Straße ﬁﬂ ŉ ǅ ẞ Å\u212b K\u212a Ω\u2126",
    "n\u0303 \u0301a e\u0323\u0302 \u0344 \u0958 \u1e9b\u0323 \ufb1f ά\u0345 \u093c\u094d",
    "가각힣 \u1112\u1161\u11ab 한국어를 \ufa0e\ufa27\uf900\ufad9 〇々〆 ヷがﾞ",
    "\u3400\u4dbf\u4dc0\u4e00\u9fff\ua000\U00020000\U0002a6df\U0002a6e0\U0002a700\U0002b81f\U0002b820",
    "\U0002b91f\U0002b920\U0002ceaf\U0002ceb0\U0002f800\U0002fa1f\U00030000",
    "\ue000a\uf8ff \U000f0000b \ufdd0 \ufffe \U0010ffff",
    "\u166d \u1734 \u1885 \u061d \u09fe \u0af0 \u2e5d \U00011938 \U0001e944 \u2e43",
    "e\U0001f1eb\U0001f1f7\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U000e0067 \u00b4\u00a8¯",
    "$1,000.50+tax=50% ~ `x` ^_^ |a|<b>{c} § ¶ · ¿ ‹› €£¥ №℠ ″ ⁂ ﹏ ＃＋",
    "a" * 199 + " " + "a" * 200 + " " + "a" * 201,
    "é" * 100 + "e\u0301" * 100 + " " + "ǰ" * 201 + " " + "\u0301" * 300 + "b",
    "lone \ud800 half\udfffway \udc00\ud800 surrogates",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tokenization", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--verify", type=int, help="compare on this many random texts and on wikipedia_en")
    flags = parser.parse_args()
    google = load_google(flags.tokenization)
    if flags.verify is not None:
        verify(google, flags.data, flags.verify)
    else:
        GOLDEN.write_bytes(gzip.compress(json.dumps(make(google, flags.data)).encode(), mtime=0))


def load_google(path: Path) -> types.ModuleType:
    """Returns the module in `path` without TensorFlow, which it needs only to open files."""
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")
    spec = importlib.util.spec_from_file_location("google_tokenization", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def google_encoder(google: types.ModuleType, vocab: Sequence[str], lowercase: bool) -> Callable[[str], list[int]]:
    ids = {token: number for number, token in enumerate(vocab)}
    basic, pieces = google.BasicTokenizer(lowercase), google.WordpieceTokenizer(ids)
    return lambda text: [ids[piece] for word in basic.tokenize(text) for piece in pieces.tokenize(word)]


def published_vocab(data: Path, casing: str) -> list[str]:
    return (data / f"vocab/bert-base-{casing}-vocab.txt").read_bytes().decode().removesuffix("\n").split("\n")


def make(google: types.ModuleType, data: Path) -> dict[str, object]:
    texts = [*HARD, *islice(fuzz(seed=1, longest=12), CASES - len(HARD))]
    vocab = small_vocab(google, texts)
    golden: dict[str, object] = {"vocab": vocab, "texts": texts, "published": {}}
    for casing in ("uncased", "cased"):
        lowercase = casing == "uncased"
        golden[casing] = list(map(google_encoder(google, vocab, lowercase), texts))
        ids = list(map(google_encoder(google, published_vocab(data, casing), lowercase), texts))
        golden["published"][casing] = [digest(ids[i : i + BLOCK]) for i in range(0, CASES, BLOCK)]
    return golden


def digest(ids: Sequence[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


def small_vocab(google: types.ModuleType, texts: Sequence[str]) -> list[str]:
    """Returns a vocabulary that gives few [UNK]: every character of the words in both forms, and some longer pieces."""
    tokens = set()
    for number, text in enumerate(texts):
        for lowercase in (True, False):
            for word in google.BasicTokenizer(lowercase).tokenize(text):
                word = "".join(char for char in word if unicodedata.category(char) != "Cs")
                tokens.update(word)
                tokens.update(f"##{char}" for char in word[1:])
                if number % 3 == 0 and len(word) > 3:
                    tokens.update((word[:2], f"##{word[1:3]}", f"##{word[2:]}"))
    return [*SPECIALS, *sorted(tokens)]


def fuzz(seed: int, longest: int) -> Iterator[str]:
    """Yields random texts without end: words of one script or of all of Unicode, odd spaces, marks, overlong words."""
    rng = random.Random(seed)
    ranges = [
        *[(0x21, 0x7E)] * 3,
        *[(0x61, 0x7A)] * 3,
        *[(0x00, 0x20), (0x7F, 0xA0), (0xA1, 0x24F), (0x250, 0x36F), (0x300, 0x345), (0x370, 0x3FF)],
        *[(0x391, 0x3C9), (0x400, 0x52F), (0x5B0, 0x5EA), (0x600, 0x6FF), (0x900, 0xDFF), (0x1100, 0x11FF)],
        *[(0x1AB0, 0x1AFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF), (0x2E00, 0x2E7F)],
        *[(0x3000, 0x30FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xE000, 0xFAFF)],
        *[(0xFB00, 0xFFFD), (0x10000, 0x11FFF), (0x1D000, 0x1DFFF), (0x1E000, 0x1FAFF), (0x20000, 0x2FFFF)],
        *[(0x2A6D0, 0x2A710), (0x2B800, 0x2B950), (0xE0000, 0xE01FF), (0xF0000, 0x10FFFD), (0x0, 0x10FFFD)],
    ]
    spaces = (" ", " ", " ", "  ", "\n", "\t", "\u3000", "\xa0", "\u2028", "\u2003", "\x1f", "\u200b")
    while True:
        text = ""
        for _ in range(rng.randint(1, 4)):
            scripts = [rng.choice(ranges) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
            length = rng.randint(90, 250) if rng.random() < 0.01 else rng.randint(1, longest // 2)
            word = "".join(known_char(rng, *rng.choice(scripts)) for _ in range(length))
            text += word + rng.choice(spaces)
        yield text


def known_char(rng: random.Random, low: int, high: int) -> str:
    """Returns a character that Unicode has assigned or will never assign."""
    while True:
        char = chr(rng.randint(low, high))
        if unicodedata.category(char) != "Cn" or ord(char) & 0xFFFE == 0xFFFE:
            return char


def verify(google: types.ModuleType, data: Path, count: int) -> None:
    """Prints the number of texts whose ids differ from Google's, per source and casing."""
    for casing in ("uncased", "cased"):
        vocab, lowercase = published_vocab(data, casing), casing == "uncased"
        theirs, ours = google_encoder(google, vocab, lowercase), WordPiece(vocab, lowercase)
        sources = {"fuzz": [*HARD, *islice(fuzz(seed=2, longest=24), count)]}
        for path in sorted((data / "wikipedia_en").glob("*.txt.gz")):
            sources[path.name] = gzip.decompress(path.read_bytes()).decode().split("\n")
        for name, texts in sources.items():
            got = ours.encode_batch(texts)
            different = [text for text, ids in zip(texts, got, strict=True) if theirs(text) != ids]
            print(casing, name, f"{len(different)} of {len(texts)} texts differ;", f"{sum(map(len, got))} ids")
            print(*map(ascii, different[:5]), sep="\n", end="\n" if different else "")


if __name__ == "__main__":
    main()
