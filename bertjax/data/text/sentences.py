"""Splits paragraphs into sentences, for pretraining and for articles to summarize.

The algorithm is Punkt (Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection", 2006) from NLTK. Our
own English word lists replace a trained model, so nothing is downloaded and the split is the same on every machine.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bertjax.data.text import korean_sentences

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

SPLITTERS = PUNKT, KIWI = ("punkt", "kiwi")

# Lower case, without the last period. Single letters need no entry, because Punkt treats them as initials.
_ABBREVIATIONS = """
    a.d a.k.a a.m abbr adj adm adv al approx apr apt assn assoc attn aug ave b.a b.c b.s b.sc bldg
    blvd brig bros c.b.e c.e ca capt cdr cf cllr cllrs cmdr co col comdr comdt const corp cpl cpt
    d.c d.d.s d.phil dec dept det dist div dr e.g e.u ed eds eg eq eqs esp esq est etc excl feb ff
    fig figs fr fri ft gen gnr gov hon hr hrs hwy i.e ibid ie inc incl insp intl j.d jan jr jul jun
    k.c kg km l.a lcpl lieut ll.b ll.m lt ltd m.a m.b.e m.d m.p.h m.phil m.s m.sc maj messrs mfg mgr
    mi misc mlle mm mme mon mr mrs ms msgr mt mtn n.b n.y natl nov o.b.e oct orig oz p.m p.s ph.d
    plc pp pres prof pseud pt pte pty pvt q.c qtr rd ref refs regt rep reps resp rev revd rt sec
    secs sen sens sep sept sgt spr sq sr ssgt st ste supt tel temp thu thur thurs trans treas tue
    tues u.k u.n u.s u.s.a u.s.s.r univ ven viz vol vols vs wed yd yds yr yrs
"""

# Abbreviations only before a number ("No. 5", "p. 12"); elsewhere these words may end a sentence.
_BEFORE_NUMBERS = """
    app art ch chap chaps circa cl fl mar no nos op p par para paras pl sect ser ss v ver
"""

# Capitalized words that start a sentence after an abbreviation: "in the U.S. The" has a boundary, "the U.S. Army" has
# none. Words that are also names (Dr. No, Mr. May) are omitted.
_SENTENCE_STARTERS = """
    a according after all also although an and another as at because before both but by despite during
    each even for from he her here his how however i if in instead it its last many meanwhile most my
    nor not nothing now on once other our she since some such that the their then there these they this
    those though thus to under until we what when where whether which while who why with yet you your
"""

# Punctuation of other scripts that always ends a sentence, and the closing quotes and brackets that may follow it.
_ENDS = "。！？｡।॥؟۔።"
_CLOSES = "”’」』）】》〉\"')"
_AFTER_END = re.compile(f"(?<=[{_ENDS}])(?![{_ENDS}{_CLOSES}])|(?<=[{_ENDS}][{_CLOSES}])(?![{_ENDS}{_CLOSES}])")

_QUOTED = re.compile(f"[.!?\u2026][{_CLOSES}\\]}}]+$")
_TAIL = 16
_ENDED = re.compile(f"[.!?\u2026{_ENDS}][{_CLOSES}\\]}}]*$")
# Text counts as wrapped if at least this many line ends, and this fraction of all line ends, are within a sentence.
_MIN_OPEN = 2
_MIN_OPEN_SHARE = 1 / 3
_FULL = 3 / 4  # a line of at least this fraction of the longest lines is full

# Characters per call of NLTK, which raises an error after five seconds; a megabyte of periods would take longer.
_WINDOW = 50_000


def split(paragraph: str, splitter: str = PUNKT) -> list[str]:
    """Splits text into sentences. All visible characters are kept; sentences are stripped and not empty.

    Closing quotes and brackets stay with the sentence before them. They do not end it if a lower-case letter follows.
    A line break counts as a space. The word lists are English, so in other languages an abbreviation may end a
    sentence. The sentence ends of Chinese, Japanese, Hindi, Arabic, Urdu and Amharic are recognized. Korean has its own
    rules, which also find ends without punctuation.

    Args:
      paragraph: the text.
      splitter: "punkt", or "kiwi" to split Korean paragraphs by kiwipiepy.
    Raises:
      UserError: if kiwipiepy is required but not installed.

    >>> split('He saw Dr. No at 5 p.m. "Why?" he asked. Nobody knew.')
    ['He saw Dr. No at 5 p.m.', '"Why?" he asked.', 'Nobody knew.']
    >>> split("他说：“你好。”我也说。")
    ['他说：“你好。”', '我也说。']
    """
    if korean_sentences.is_korean(paragraph):
        return korean_sentences.split(paragraph, by_kiwi=splitter == KIWI)
    if paragraph.isascii():
        return _split(paragraph)
    return [sentence for part in _AFTER_END.split(paragraph) for sentence in _split(part)]


def unwrap(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a text, or its paragraphs if the text is wrapped, that is, if lines end within sentences.

    Blank lines separate paragraphs. A line end is within a sentence if no punctuation ends the sentence before it, the
    next line starts with a lower-case letter, and the line is about as long as other such lines. The last condition
    excludes headings in text without capitals.

    Args:
      lines: stripped lines; "" for a blank line.
    Returns:
      the lines or paragraphs, without blank ones.

    >>> unwrap(["A line of text", "is broken up", "here.", "", "Another is not."])
    ['A line of text is broken up here.', 'Another is not.']
    """
    ends = [pair for pair in itertools.pairwise(lines) if all(pair)]
    sizes = sorted(len(before) for before, after in ends if after[0].islower() and not _ENDED.search(before))
    full = _FULL * sizes[len(sizes) * 9 // 10] if sizes else 0  # the 90th percentile, because a URL may be very long
    count = sum(size >= full for size in sizes)
    if count < _MIN_OPEN or count < _MIN_OPEN_SHARE * len(ends):
        return list(filter(None, lines))
    return [" ".join(paragraph) for has_text, paragraph in itertools.groupby(lines, key=bool) if has_text]


def _split(paragraph: str) -> list[str]:
    """Returns the sentences that end with full stops, question marks and exclamation marks."""
    bounds: list[tuple[int, int]] = []
    end = 0
    for start, stop in _spans(paragraph):
        sentence = paragraph[start:stop]
        # Punkt returns the last mark of a final "?!" as a sentence.
        is_mark = start == end and not any(map(_begins_sentence, sentence))
        if bounds and (is_mark or (sentence.lstrip()[:1].islower() and _ends_quoted(paragraph, bounds[-1][1]))):
            bounds[-1] = bounds[-1][0], stop
        elif not sentence.isspace():
            bounds.append((start, stop))
        end = stop
    return [paragraph[start:stop].strip() for start, stop in bounds]


def _ends_quoted(text: str, stop: int) -> bool:
    """Returns whether the text before `stop` ends with a quotation or brackets after which a sentence can continue."""
    return bool(_QUOTED.search(text[max(0, stop - _TAIL) : stop].rstrip()))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields the (start, stop) of each sentence."""
    start = 0
    while start < len(text):
        window = text[start : start + _WINDOW]
        is_last = start + len(window) == len(text)
        if not is_last:
            window = window.rpartition(" ")[0] or window
        spans = list(_punkt().span_tokenize(window))
        # The last sentence may continue after the window, unless it fills the window.
        consumed = len(window) if is_last or len(spans) < 2 else spans.pop()[0]
        yield from ((start + first, start + last) for first, last in spans)
        start += consumed


def _begins_sentence(character: str) -> bool:
    return character.isalnum() or character.isspace()


@functools.cache
def _punkt() -> "PunktSentenceTokenizer":
    # Imported on first use, because NLTK imports SciPy's statistics.
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS.split())
    parameters.collocations = {(word, "##number##") for word in _BEFORE_NUMBERS.split()}
    parameters.sent_starters = set(_SENTENCE_STARTERS.split())
    return PunktSentenceTokenizer(parameters)
