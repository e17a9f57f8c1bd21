r"""The number a chat answer states as its result, as a careful reader takes it.

In this order: the last ``\boxed{...}``; the last "answer is ..." or "Answer: ..."; what stands behind
``####``; the last number. A chain of thought up to ``</think>`` and the questions that a model goes on
to ask itself are no part of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import pairwise

from harness.benchmarks.scoring.answer_text import final_part

# What writers use for a minus: hyphens, figure dash, en dash, the sign itself, small and full-width.
_MINUS = re.compile("[\u2010-\u2013\u2212\ufe63\uff0d](?=[$\u20ac\u00a3\u00a5\u20b9]?[\\d.])")
_SPACE = "\u00a0\u2007\u2009\u202f"
_CURRENCY = "[$\u20ac\u00a3\u00a5\u20b9]"
_GROUPS = re.compile(
    rf"(?<![\d.,])(?:\d{{1,3}}(?:[,_'\u2019{_SPACE}]\d{{3}})+|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}"
    r"|\d{1,3}(?:\.\d{3}){2,})(?!\d)"
)
_SPACED_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?!\d)")
_SCALES = {"thousand": 3, "million": 6, "billion": 9}

# A minus right after a letter, digit or bracket joins two things ("3-5"); it is no sign.
_DIGITS = r"(?:(?<![\w)\].])-)?(?:\d+(?:\.\d+)?|(?<!\d)\.\d+)"
_NUMBER = rf"{_DIGITS}(?:[eE][+-]?\d+(?!\w)|\s?\*\s?10\^\{{?-?\d+\}}?|\s(?:{'|'.join(_SCALES)})\b)?"
_ANY = re.compile(_NUMBER)
_CHAIN = rf"{_NUMBER}(?:\s*%?\s*[-+*/x=\u00f7]\s*{_NUMBER})*"
_AT_START = re.compile(rf"\s*({_CHAIN})")
# "18", "18 dollars", "18 per day", then an end: the whole statement.
_ALONE = re.compile(rf"\s*({_CHAIN})(?:\s*%|\s+[A-Za-z]+){{0,2}}\s*(?:[.;,!?()<\n]|$)")
_ENUMERATOR = re.compile(r"\s*\n\s*\d+[.)]\s")

_BOXED = re.compile(r"\\f?box(?:ed)?\s*(?:(?=\{)|(-?[\d.]+))")
_LONGEST = 300
"""Characters of a box, or behind "answer is", among which the number must be."""
_SAYS = re.compile(
    r"(?<!to )(?<!can )(?<!/)\banswer\b(?! (?:the|this|that|your) )[^.\n:=]{0,60}?"
    r"(?P<verb>\b(?:is|was|are|be|equals)\b(?! not\b)|[:=]|>)|^[ \t#]*(?:final )?answer[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
# "#### 2. Costs" is a heading of Markdown.
_HASHES = re.compile(rf"####\s*({_NUMBER})(?![.):]\s+\S)")
_POINTER = re.compile(
    r"\b(?:step|part|question|problem|equation|eq\.?|line|note|figure|page|option)\s*$", re.IGNORECASE
)
_FURTHER = re.compile(
    r"^[ \t#]*(?:(?:next|new|another) )?(?:question|problem|q)\s*\d*\s*[:.]", re.IGNORECASE | re.MULTILINE
)


def stated(answer: str) -> str | None:
    """The stated number in plain digits ("1200", "-7", "0.5"), None without any."""
    text = _plain(final_part(answer))
    for part in _between_questions(text):
        for read in (_boxed, _said, _behind_hashes):
            found = [value for value in read(part) if value is not None]
            if found:
                return found[-1]
    numbers = _ANY.findall(text)
    return _value(numbers[-1]) if numbers else None


def _between_questions(text: str) -> Iterator[str]:
    bounds = [0, *(match.start() for match in _FURTHER.finditer(text)), len(text)]
    for start, end in pairwise(bounds):
        yield text[start:end]


def _boxed(text: str) -> Iterator[str | None]:
    for match in _BOXED.finditer(text):
        content = _join_spaced(match[1] or _braced(text, match.end()))
        if _ANY.search(content):
            yield _first(content)


def _braced(text: str, start: int) -> str:
    """What stands between the brace at ``start`` and the one that closes it; "" if none does."""
    depth = 0
    for end in range(start, min(len(text), start + _LONGEST)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + 1 : end]
    return ""


def _said(text: str) -> Iterator[str | None]:
    for match in _SAYS.finditer(text):
        verb = (match["verb"] or ":") not in ":>"
        rest = _join_spaced(re.sub(r"^[ \t:=(\[\"']+", "", text[match.end() :][:_LONGEST]))
        if _ENUMERATOR.match(rest):
            continue  # a heading above steps
        direct = _AT_START.match(rest) if verb else _ALONE.match(rest)
        yield _result(direct[1]) if direct else _only_number(rest, verb)


def _only_number(rest: str, verb: bool) -> str | None:
    """The number of a sentence with one, asides left out ("that she has 18 eggs (step 2)"). Behind
    "Answer:" a working-out may begin: there the sentence must be the paragraph's only one with numbers."""
    paragraph = re.sub(r"\([^()]*\)", "", rest.lstrip().split("\n\n", 1)[0])
    sentence = re.split(r"[.;!?](?:\s|$)|\n", paragraph, maxsplit=1)[0] if verb else paragraph
    found = [match[0] for match in _ANY.finditer(sentence) if not _POINTER.search(sentence[: match.start()])]
    if len(found) == 1:
        return _value(found[0])
    return _first(sentence) if verb and "=" in sentence else None


def _behind_hashes(text: str) -> Iterator[str | None]:
    """The first, as in the data set's own format."""
    if found := _HASHES.search(text):
        yield _value(found[1])


def _first(text: str) -> str | None:
    """The number that ``text`` begins with or, of an equation, its right side."""
    start = None if re.search(r"[A-Za-z]\w*\s*=", text) else _AT_START.match(text)
    if start is not None:
        return _result(start[1])
    found = _ANY.search(text.rpartition("=")[2])
    return None if found is None else _value(found[0])


def _result(chain: str) -> str | None:
    """The right side of an equation, a fraction's value, a number; None of a sum left open."""
    side = chain.rpartition("=")[2].strip()
    if (fraction := re.fullmatch(rf"({_DIGITS})\s*/\s*({_DIGITS})", side)) and Decimal(fraction[2]):
        return format(Decimal(fraction[1]) / Decimal(fraction[2]), "f")
    return _value(side) if _ANY.fullmatch(side) else None


def _value(number: str) -> str | None:
    digits = number.replace(" ", "").replace("*10^", "e").replace("{", "").replace("}", "")
    for word, power in _SCALES.items():
        digits = digits.replace(word, f"e{power}")
    try:
        # No text of a few characters may become a number of a billion digits.
        value = Decimal(digits)
        return format(value, "f") if abs(value.adjusted()) < 100 else None
    except InvalidOperation:
        return None


def _join_spaced(text: str) -> str:
    """Where one number is stated, a space can only group its digits ("1 000")."""
    return _SPACED_GROUPS.sub(lambda match: match[0].replace(" ", ""), text)


def _plain(text: str) -> str:
    """``text`` with numbers in plain digits, and without what only sets type."""
    text = _MINUS.sub("-", text).replace("{,}", ",").replace("\\$", "$")
    text = re.sub(r"(?<=\d)(?:,?\\[,;:! ]|~)(?=\d{3})", ",", text)
    text = re.sub(r"\\[dt]?frac\s*\{(-?[\d.,]+)\}\s*\{([\d.,]+)\}", r"\1/\2", text)
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\(?:times|cdot)\b|\u00d7", "*", text)
    text = re.sub(r"\\(?:left|right)\b|\\[,;:! ()\[\]%]|\*\*|__|`", lambda m: "%" * (m[0] == "\\%"), text)
    text = re.sub(rf"(?<=-){_CURRENCY}\s?", "", text)
    text = re.sub(rf"{_CURRENCY}(?=-)", "", text)
    text = re.sub(_CURRENCY, " ", text)
    return _GROUPS.sub(lambda match: _ungrouped(match[0]), text)


def _ungrouped(number: str) -> str:
    return re.sub(rf"[,._'\u2019{_SPACE}]", "", number)
