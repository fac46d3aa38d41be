"""Splits Korean paragraphs into sentences by rules on punctuation and verb endings, without a dictionary.

A Korean sentence ends with a verb whose ending is final ("-습니다", "-어요", "-했다"). In informal text the full stop
is often missing, or replaced by "~", "ㅋㅋ" or an emoji. Endings that nouns share ("-다" of names, "-음") or that
connect clauses ("하다 보니") end a sentence only with punctuation, except where these rules distinguish them.
"""

import re

from bertjax import korean

_FIRST = 0xAC00  # the first syllable
_NUM_SYLLABLES = 11_172
# The consonants that close a syllable, in the order of Unicode; " " for an open one.
_FINALS = " ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"
_HANGUL = re.compile("[ㄱ-ㅣ가-힣]+")
_MIN_SHARE = 1 / 4


def _closed(finals: str) -> str:
    """Returns a character class of the syllables that one of the consonants closes."""
    syllables = range(_FIRST, _FIRST + _NUM_SYLLABLES)
    return "[" + "".join(chr(code) for code in syllables if _FINALS[(code - _FIRST) % len(_FINALS)] in finals) + "]"


# Final endings that need no punctuation.
_FINAL = re.compile(
    rf"""(?:
    {_closed("ㅂ")}(?:니[다당까]|시다)
    |(?<!중)[가게고구군까나내네니데돼되든래러려봐서세셔써아어에여예와워져줘지쳐춰켜해]요|[죠쥬]|[네해세예에죠]용
    |{_closed("ㅆㅄ")}[다음]|[같많않좋싫]음|(?!있){_closed("ㅆ")}(?:어|네|냐|군|구나)
    # Adjectives, and verbs in the present tense; no names such as Honda and Uganda, no connectives such as "놓이다".
    |{_closed("ㄱㄶㅀㅂㅈㅌㅍㅎㄺㄻㄼ")}다|(?<![우베])(?![판완혼콘젠센]){_closed("ㄴ")}다
    |(?<=.)(?<![쓰보놓쌓모줄직속높먹붙섞들죽끊끓레])이다|아니다|(?:[중필]요|유명|가능|다양|동일|비슷|충분|부족)하다
    |거야|잖아|거든|더라|하구나|[할갈볼줄올을]게|[아어야못]함|아님|됨
    )$""",
    re.VERBOSE,
)
_LONGEST_ENDING = 4
_LAST_SYLLABLES = "다당까요죠쥬용음어네냐군나야아든라게함님됨"
_EMOJI = re.compile("[\u2600-\u27bf\u200d\ufe0f\U0001f000-\U0001faff]")
_MARKS = " .!?…~。！？‥ㅋㅎㅠㅜㅡ^;"  # that replace or follow the full stop; "^" stands for all emoji
_CLOSERS = "\"'”’」』》〉>)]"
_CANDIDATES = frozenset(_LAST_SYLLABLES + _MARKS + _CLOSERS)
_ATTACHED = re.compile(rf"[{re.escape(_MARKS)}]+(?: |$)|[,)\]」』”’]")  # to the sentence before
_GAP = re.compile(r" +|(?<=[다요])[.!?~]+(?:\[\d+\])*(?=[가-힣\d(])")
# Particles and connective endings: marks such as "..." after them end no sentence.
_CONNECTIVE = re.compile("(?:[고며서면데니나에은는을를이가의도로와과랑게던든]|지만|까지|부터)$")
_NOTES = re.compile(r"(?<=.)(?:\[[^\] ]{1,20}\]|\([^()]{1,60}\))+$")
# A space inside quotation marks or brackets ends no sentence.
_ENCLOSED = re.compile(
    r"\((?:[^()]|\([^()]*\)){1,400}\)|「[^「」]{1,400}」|『[^『』]{1,400}』|<[^<>]{1,400}>|《[^《》]{1,400}》|〈[^〈〉]{1,400}〉"
    r"|“[^“”]{1,400}”|‘[^‘’]{1,400}’|(?<![^\s(\['])\"[^\"]{1,400}\"|(?<![^\s(\[\"])'[^']{1,400}'"
)
_REACH = 500  # characters before a gap in which its word begins: a quotation is one word
_OTHER_WHITE = re.compile(r"[^\S ]")
# What continues the sentence after a quotation, and after a final ending without punctuation.
_QUOTATIVE = re.compile(
    "(?:이?라(?:고|는|며|면서|던|니|기)|(?:하|이라|라)(?:며|고|는|면서|던|시던)|[고는며])(?![가-힣])"
)
_CONTINUATION = re.compile(
    "하(?:나,|여|더라도|거나|기|니|면|게|지 )|한다|해도?[ ,]|할지|할 |치고|치면|쳐도?[ ,]|보[니면이아]|그러[니고며]|싶"
    "|때문에|주장|된다|되었|되는|(?:등|뿐|만|따위|식|정도|못|않|말|했)(?![가-힣]{2})"
)


def is_korean(paragraph: str) -> bool:
    """Returns whether at least a quarter of the characters are Hangul."""
    return sum(map(len, _HANGUL.findall(paragraph))) >= max(1, _MIN_SHARE * len(paragraph))


def split(paragraph: str, *, by_kiwi: bool = False) -> list[str]:
    """Splits a paragraph; see `sentences.split`.

    Args:
      paragraph: the paragraph.
      by_kiwi: whether kiwipiepy, instead of the rules, finds the ends that are not in quotations or brackets.
    Raises:
      UserError: if kiwipiepy is required but not installed.
    """
    text = _EMOJI.sub("^", _OTHER_WHITE.sub(" ", paragraph))
    text = _ENCLOSED.sub(lambda match: match[0].replace(" ", "_"), text)
    ends = _kiwi_ends(paragraph, text) if by_kiwi else _rule_ends(text)
    sentences = (paragraph[start:stop].strip() for start, stop in zip([0, *ends], [*ends, len(text)], strict=True))
    return [sentence for sentence in sentences if sentence]


def _kiwi_ends(paragraph: str, text: str) -> list[int]:
    """Returns the ends that kiwipiepy finds, after emoticons; without a space, only those that the rules find too."""
    rule_ends = set(_rule_ends(text))
    ends = []
    for sentence in korean.analyzer().split_into_sents(paragraph):
        after = text[sentence.end : sentence.end + _REACH]
        end = sentence.end + len(after) - len(after.lstrip(_MARKS))
        if (text[end - 1] == " " or sentence.end in rule_ends) and not _QUOTATIVE.match(text, end):
            ends.append(end)
    return ends


def _rule_ends(text: str) -> list[int]:
    """Returns the ends of sentences, except that of the last one."""
    ends = [0]
    for gap in _GAP.finditer(text):
        end, stop = gap.span()
        if text[end] != " ":  # the space is missing
            end = stop
        if end and text[end - 1] in _CANDIDATES and _ends(text[max(ends[-1], end - _REACH) : end], text, stop):
            ends.append(end)
    return ends[1:]


def _ends(sentence: str, text: str, stop: int) -> bool:
    """Returns whether the sentence is complete that ends with `sentence`, before text[stop:]."""
    words = _NOTES.sub("", sentence) if sentence[-1] in ")]" else sentence
    body = words.rstrip(_CLOSERS)
    stem = body.rstrip(_MARKS)
    marks = body[len(stem) :]
    stem = stem.rpartition(" ")[2]
    if not stem or (not marks.strip() and body != words) or _ATTACHED.match(text, stop) or _QUOTATIVE.match(text, stop):
        return False
    if not marks.strip():
        return bool(_FINAL.search(stem, max(0, len(stem) - _LONGEST_ENDING))) and not _CONTINUATION.match(text, stop)
    if marks == ".":  # not after a number or an initial
        return not (stem[-1].isdigit() or (stem[-1].isascii() and stem[-1].isalpha() and len(stem) < 4))
    return "!" in marks or "?" in marks or (marks != " ~" and not _CONNECTIVE.search(stem[-2:]))
