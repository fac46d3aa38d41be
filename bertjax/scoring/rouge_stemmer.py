"""The stemmer of ROUGE-1.5.5's option -m: irregular forms from WordNet 2.0, and Porter's algorithm for other words.

It is the algorithm of Porter (1980, "An algorithm for suffix stripping") with two later suffixes, -bli and -logi, and
an additional step of ROUGE: after step 4, -ment and then -ent may be removed. NLTK's stemmer differs in other details.

The irregular forms are those of the database published with ROUGE-1.5.5. Most users have to rebuild this database. A
rebuilt one may have other bases for best, better, offer, involucra and testes, which depend on the order of files in a
folder.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_SHORTEST = 4  # shorter words are not stemmed
_VOWELS = "aeiou"

# Steps 2 and 3: the replacement of a suffix, if its stem has a measure of at least 1.
_STEP_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
# Step 4: suffixes that are removed if their stem has a measure of at least 2.
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ou", "ism", "ate", "iti", "ous", "ive", "ize"],
    "",
)


def stem(word: str) -> str:
    """Returns the stem of a word, as ROUGE-1.5.5 with option -m.

    >>> [stem(word) for word in ("children", "relational", "said", "sky", "ran")]
    ['child', 'relat', 'say', 'sky', 'ran']

    Args:
      word: a word of the letters a to z and digits.
    """
    if len(word) < _SHORTEST:
        return word
    irregular = _irregular_forms()
    return irregular[word] if word in irregular else porter(word)


def porter(word: str) -> str:
    """Returns the stem of a word of at least three letters by ROUGE's version of Porter's algorithm."""
    word = _without_y(_without_past(_without_plural(word)))
    word = _replaced(word, _STEP_2, 1)
    word = _replaced(word, _STEP_3, 1)
    return _without_e(_without_last_ending(word))


@functools.cache
def _irregular_forms() -> Mapping[str, str]:
    """The words that Porter's algorithm would stem differently, with their bases."""
    lines = Path(__file__).with_name("rouge_exceptions.txt").read_text(encoding="ascii").splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return MappingProxyType({word: base for base, *words in pairs for word in words})


def _without_plural(word: str) -> str:
    """Step 1a: removes plural suffixes."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_past(word: str) -> str:
    """Step 1b: removes -ed and -ing."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = next((ending for ending in ("ed", "ing") if word.endswith(ending)), "")
    rest = word[: len(word) - len(ending)]
    if not ending or "v" not in _kinds(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-2:-1] == rest[-1] and rest[-1] not in "aeiouylsz":  # a double consonant; Porter keeps ll, ss and zz
        return rest[:-1]
    return rest + "e" if _is_short(rest) else rest


def _without_y(word: str) -> str:
    """Step 1c: replaces a final -y."""
    return word[:-1] + "i" if word.endswith("y") and "v" in _kinds(word[:-1]) else word


def _without_last_ending(word: str) -> str:
    """Step 4, with ROUGE's additional step: removes a last suffix."""
    word = _replaced(word, _STEP_4, 2)
    word = _replaced(word, {"ment": ""}, 2)
    if word.endswith("ent"):
        return _replaced(word, {"ent": ""}, 2)
    return word[:-3] if word.endswith(("sion", "tion")) and _measure(word[:-3]) > 1 else word


def _without_e(word: str) -> str:
    """Step 5: removes a final -e, and one l of -ll."""
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _is_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _replaced(word: str, endings: Mapping[str, str], measure: int) -> str:
    """Returns the word with its longest suffix replaced if the stem before it has at least the given measure."""
    ending = max((ending for ending in endings if word.endswith(ending)), key=len, default="")
    rest = word[: len(word) - len(ending)]
    return rest + endings[ending] if ending and _measure(rest) >= measure else word


def _measure(word: str) -> int:
    """Returns Porter's measure m: the number of vowels followed by a consonant."""
    return _kinds(word).count("vc")


def _is_short(word: str) -> bool:
    """Returns whether a word has one vowel, between consonants, and does not end in w, x or y, such as "hop"."""
    kinds = _kinds(word)
    return kinds.endswith("cvc") and kinds.count("v") == 1 and word[-1] not in "wxy"


def _kinds(word: str) -> str:
    """Returns "v" for each vowel and "c" for each consonant; y is a vowel after a consonant, digits are consonants."""
    kinds = ""
    for letter in word:
        kinds += "v" if letter in _VOWELS or (letter == "y" and kinds.endswith("c")) else "c"
    return kinds
