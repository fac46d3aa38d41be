"""The one sentence splitter of the project, for pretraining paragraphs and for articles to summarize.

The algorithm is Punkt (Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection", 2006) as
kept in NLTK, given our own English word lists in place of a trained model: nothing is downloaded, and a text
is split alike on every machine.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

# Lower case, without their last period. Single letters need no entry: Punkt takes them for initials.
_ABBREVIATIONS = """
    a.d a.k.a a.m abbr adj adm adv al approx apr apt assn assoc attn aug ave b.a b.c b.s b.sc bldg blvd
    brig bros c.e ca capt cdr cf cmdr co col comdr corp cpl cpt d.c d.d.s d.phil dec dept det dist div
    dr e.g e.u ed eds eg eq eqs esp esq est etc excl feb ff fig figs fr fri ft gen gov hon hr hrs hwy
    i.e ibid ie inc incl insp intl j.d jan jr jul jun kg km l.a ll.b ll.m lt ltd m.a m.d m.p.h m.phil
    m.s m.sc maj mfg mgr mi misc mlle mm mme mon mr mrs ms msgr mt mtn n.b n.y natl nov oct orig oz p.m
    p.s ph.d plc pp pres prof pseud pt pty pvt qtr rd ref refs rep reps resp rev revd sec secs sen sens
    sep sept sgt sq sr st ste supt tel temp thu thur thurs trans treas tue tues u.k u.n u.s u.s.a
    u.s.s.r univ viz vol vols vs wed yd yds yr yrs
"""

# Abbreviations before a number alone ("No. 5", "p. 12"); elsewhere these words may end a sentence.
_BEFORE_NUMBERS = """
    app art ch chap chaps circa cl fl mar no nos op p par para paras pl sect ser ss v ver
"""

# A capitalized word that shows that the abbreviation before it ends a sentence: "in the U.S. The" has a
# boundary, "the U.S. Army" has none. Words that are also names (Dr. No, Mr. May) are left out.
_SENTENCE_STARTERS = """
    a according after all also although an and another as at because before both but by despite during
    each even for from he her here his how however i if in instead it its last many meanwhile most my
    nor not nothing now on once other our she since some such that the their then there these they this
    those though thus to under until we what when where whether which while who why with yet you your
"""

# Marks of other scripts that end a sentence wherever they are, with the quotes and brackets that close after them.
_ENDS, _CLOSES = "。！？｡।॥؟۔።", "”’」』）】》〉\"')"
_AFTER_END = re.compile(f"(?<=[{_ENDS}])(?![{_ENDS}{_CLOSES}])|(?<=[{_ENDS}][{_CLOSES}])(?![{_ENDS}{_CLOSES}])")

_QUOTED, _TAIL = re.compile(f"[.!?\u2026][{_CLOSES}\\]}}]+$"), 16
_ENDED = re.compile(f"[.!?\u2026{_ENDS}][{_CLOSES}\\]}}]*$")
# Line ends within sentences that wrapped text has at least: so many, and such a share of its line ends.
_MIN_OPEN, _MIN_OPEN_SHARE = 2, 1 / 3
_FULL = 3 / 4  # of the longest line is full

# Characters looked at together. NLTK gives up on a text after five seconds; a megabyte of dots takes longer.
_WINDOW = 50_000


def split(paragraph: str) -> list[str]:
    """Splits text into sentences, none empty or with outer spaces; no visible character is lost.

    Closing quotes and brackets stay with the sentence before them; where a lower-case letter follows, they do not end
    it. A line break counts as any other space. The lists are English, so that in other languages an abbreviation may
    end a sentence; the marks at the end of Chinese, Japanese, Hindi, Arabic, Urdu and Amharic sentences are known.

    >>> split('He saw Dr. No at 5 p.m. "Why?" he asked. Nobody knew.')
    ['He saw Dr. No at 5 p.m.', '"Why?" he asked.', 'Nobody knew.']
    >>> split("他说：“你好。”我也说。")
    ['他说：“你好。”', '我也说。']
    """
    if paragraph.isascii():
        return _split(paragraph)
    return [sentence for part in _AFTER_END.split(paragraph) for sentence in _split(part)]


def unwrapped(lines: Sequence[str]) -> list[str]:
    """The lines of a text; or its paragraphs, between blank lines, if it is wrapped: lines break within sentences.

    A line end counts if another line follows at once. It is within a sentence if no mark ends the sentence before it, a
    lower-case letter begins the line after it, and the line is about as long as other such lines: in text without
    capitals headings are shorter.

    Args:
      lines: without outer spaces; "" for a blank one.
    Returns:
      Those that are not blank.

    >>> unwrapped(["A line of text", "is broken up", "here.", "", "Another is not."])
    ['A line of text is broken up here.', 'Another is not.']
    """
    ends = [pair for pair in itertools.pairwise(lines) if all(pair)]
    sizes = sorted(len(before) for before, after in ends if after[0].islower() and not _ENDED.search(before))
    full = _FULL * sizes[len(sizes) * 9 // 10] if sizes else 0  # for an address may be longer than all lines
    count = sum(size >= full for size in sizes)
    if count < _MIN_OPEN or count < _MIN_OPEN_SHARE * len(ends):
        return list(filter(None, lines))
    return [" ".join(paragraph) for has_text, paragraph in itertools.groupby(lines, key=bool) if has_text]


def _split(paragraph: str) -> list[str]:
    """The sentences between full stops, question marks and exclamation marks."""
    bounds: list[tuple[int, int]] = []
    end = 0
    for start, stop in _spans(paragraph):
        sentence = paragraph[start:stop]
        # Punkt takes the last mark of a final "?!" for a sentence.
        is_mark = start == end and not any(map(_begins_sentence, sentence))
        if bounds and (is_mark or (sentence.lstrip()[:1].islower() and _ends_quoted(paragraph, bounds[-1][1]))):
            bounds[-1] = bounds[-1][0], stop
        elif not sentence.isspace():
            bounds.append((start, stop))
        end = stop
    return [paragraph[start:stop].strip() for start, stop in bounds]


def _ends_quoted(text: str, stop: int) -> bool:
    """Whether what is before `stop` ends in a quotation, or brackets, that a sentence can go on after."""
    return bool(_QUOTED.search(text[max(0, stop - _TAIL) : stop].rstrip()))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields (start, stop) of the sentences."""
    start = 0
    while start < len(text):
        window = text[start : start + _WINDOW]
        is_last = start + len(window) == len(text)
        if not is_last:
            window = window.rpartition(" ")[0] or window
        spans = list(_punkt().span_tokenize(window))
        # The last sentence may go on after the window, unless it fills the window.
        consumed = len(window) if is_last or len(spans) < 2 else spans.pop()[0]
        yield from ((start + first, start + last) for first, last in spans)
        start += consumed


def _begins_sentence(character: str) -> bool:
    return character.isalnum() or character.isspace()


@functools.cache
def _punkt() -> "PunktSentenceTokenizer":
    # NLTK brings all of SciPy's statistics: not for those who split nothing to wait for.
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS.split())
    parameters.collocations = {(word, "##number##") for word in _BEFORE_NUMBERS.split()}
    parameters.sent_starters = set(_SENTENCE_STARTERS.split())
    return PunktSentenceTokenizer(parameters)
