r"""What two answers say, as far as rules can tell it; math-verify is asked only where they can't.

Invariant: a rule answers True or False only where it is sure, whatever math-verify would say. A number is asked for
where the reference is one, and then only a number is an answer: an expression that comes to it is the question again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ajet.task_judge.math_number import number, same, unit_at_end

DEEPEST = 20
"""Brackets within brackets that the rules follow."""
MOST_MEMBERS = 50
"""Of a list or set that they compare."""
_LOOSE = re.compile(r"\s+(?!\w)|(?<!\w)\s+")
"""Spaces that no meaning hangs on; `1 1/2` is not `11/2`."""
_WORDS_ONLY = re.compile(r"[^\d\\=+*/^<>|{}\[\]%$&]+")
_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+|[A-Za-z]+_\{?\w+\}?|[a-z]\([a-z]\)|[A-Za-z]{2,12}) ?")
_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)")
_CLOCK = re.compile(r"\d ?: ?\d")
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_IRRATIONAL = re.compile(r"\\(?:pi|sqrt|log|ln|sin|cos|tan|e)\b|\be\b")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(rf"\b({'|'.join(_MONTHS)})[a-z]*\b", re.IGNORECASE)
_FUNCTIONS = frozenset(
    ["sin", "cos", "tan", "log", "ln", "exp", "sqrt", "frac", "mod", "gcd", "lcm", "max", "min", "pi"]
)
_PAIRS = {"(": ")", "[": "]", "\\{": "\\}"}


def verdict(candidate: str, reference: str) -> bool | None:
    """Whether they say the same, both in the one spelling; None where math-verify is to say it."""
    return None if max(_depth(candidate), _depth(reference)) > DEEPEST else _verdict(candidate, reference)


def _verdict(candidate: str, reference: str) -> bool | None:
    if _LOOSE.sub("", candidate) == _LOOSE.sub("", reference):
        return True
    wanted, given = number(reference), number(candidate)
    if wanted and given:
        return same(given, wanted)
    if _is_words(reference):
        return _words(candidate) == _words(reference)
    if _CLOCK.search(candidate) or _CLOCK.search(reference):
        return _clock(candidate) == _clock(reference)
    if _MONTH.search(reference) and re.search(r"\d", reference):
        return _date(candidate) == _date(reference)
    structure = _structure(candidate, reference)
    if not isinstance(structure, _NotAlike):
        return structure
    equation = _equation(candidate, reference)
    if equation is not None:
        return _verdict(*equation)
    return _expression(candidate, reference)


class _NotAlike:
    """Neither is a list, a set or an interval."""


NOT_ALIKE = _NotAlike()


def _structure(candidate: str, reference: str) -> bool | None | _NotAlike:
    one, other = _members(candidate), _members(reference)
    if one is None and other is None:
        return NOT_ALIKE
    if one is None or other is None:
        return False
    kind, parts = one
    wanted_kind, wanted = other
    if len(parts) != len(wanted):
        return False
    if len(parts) > MOST_MEMBERS:
        return None
    if {kind, wanted_kind} <= {"set", "list", "union"} and not (_names(wanted) and not _names(parts)):
        return _matched(parts, wanted)
    if kind != wanted_kind and not {kind, wanted_kind} <= {"list", "()"}:
        return False
    return _all(_verdict(left, right) for left, right in zip(parts, wanted, strict=True))


def _names(parts: Sequence[str]) -> bool:
    """Whether each is `name = value`, all of other names: then a value alone is of the name at its place."""
    sides = [_sides(_EQUALS.split(part)) for part in parts]
    return None not in sides and len({name for name, _ in filter(None, sides)}) == len(parts) > 1


def _members(text: str) -> tuple[str, list[str]] | None:
    """(set, union, list or its brackets, members) of what states several things; None of anything else."""
    united = _split(text, r"\cup")
    if len(united) > 1:
        return "union", united
    sign = re.fullmatch(r"(.*?(?:=|^))\s*\\pm\s*(.+)", text)
    if sign:
        return "list", [sign.group(2), f"-{sign.group(2)}"]
    for opening in _PAIRS:
        ending = next((each for each in (")", "]", "\\}") if text.endswith(each)), None)
        if ending and text.startswith(opening) and _closes(text, opening, ending):
            inside = _split(text[len(opening) : len(text) - len(ending)], ",")
            if opening == "\\{" and ending == "\\}":
                return "set", inside
            if len(inside) > 1:
                return opening + ending, inside
    listed = [
        part for piece in _split(text, ",", ";") for part in re.split(r"(?<![A-Za-z])(?:or|and)(?![A-Za-z])", piece)
    ]
    listed = [part.strip().strip("$").strip() for part in listed]
    return ("list", [part for part in listed if part]) if len(listed) > 1 else None


def _split(text: str, *marks: str) -> list[str]:
    """The parts between marks that stand in no bracket."""
    depth, start, parts, place = 0, 0, list[str](), 0
    while place < len(text):
        mark = next((each for each in marks if text.startswith(each, place)), None)
        if depth == 0 and mark:
            parts.append(text[start:place].strip())
            place += len(mark)
            start = place
            continue
        depth += text[place] in "([{"
        depth -= text[place] in ")]}"
        place += 1
    return [*parts, text[start:].strip()]


def _closes(text: str, opening: str, ending: str) -> bool:
    """Whether the bracket at the beginning is closed by the one at the end."""
    depth = 0
    for place in range(len(opening) - 1, len(text)):
        depth += text[place] in "([{"
        depth -= text[place] in ")]}"
        if depth == 0:
            return place >= len(text) - len(ending)
    return False


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _matched(parts: Sequence[str], wanted: Sequence[str]) -> bool | None:
    """Whether each is one of the others, in any order."""
    left, unsure = list(wanted), False
    for part in parts:
        verdicts = [_verdict(part, each) for each in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            unsure = True
        else:
            return False
    return None if unsure else True


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _equation(candidate: str, reference: str) -> tuple[str, str] | None:
    """The sides that are to be compared; None where there is nothing to be taken off."""
    given, wanted = _EQUALS.split(candidate), _EQUALS.split(reference)
    if len(given) == len(wanted) == 1:
        return None
    left, right = _sides(given), _sides(wanted)
    if len(wanted) > 1 and right is None:
        return None
    if left and right and left[0] and right[0] and left[0] != right[0]:
        return "not", right[1]
    answer = left[1] if left else given[-1].strip() if len(wanted) == 1 or right else candidate
    return answer, right[1] if right else reference


def _sides(parts: list[str]) -> tuple[str, str] | None:
    """(name, value) of `name = value`, either way round."""
    if len(parts) != 2:
        return None
    one, other = parts[0].strip(), parts[1].strip()
    if _NAME.fullmatch(f"{one} ") or _NAME.fullmatch(one):
        return one, other
    return (other, one) if _NAME.fullmatch(other) and not number(other) else None


def _expression(candidate: str, reference: str) -> bool | None:
    given, unit = unit_at_end(candidate)
    wanted, wanted_unit = unit_at_end(reference)
    if unit and wanted_unit and unit != wanted_unit:
        return False
    if unit or wanted_unit:
        return _verdict(given, wanted)
    if number(reference):
        return False
    if "." in candidate and number(candidate) and _IRRATIONAL.search(reference):
        return False
    foreign = {word.lower() for word in _WORD.findall(candidate)} - {word.lower() for word in _WORD.findall(reference)}
    if foreign - _FUNCTIONS:
        return False
    attached = r"(?<![A-Za-z\\{}])[A-Za-z]\d"
    if bool(re.search(attached, candidate)) != bool(re.search(attached, reference)):
        return False
    return None


def _is_words(text: str) -> bool:
    return (
        bool(_WORDS_ONLY.fullmatch(text))
        and bool(re.search(r"[^\W\d_]", text))
        and "-x" not in text
        and not (text.startswith("-") or re.search(r"(?<!\w)\w - \w(?!\w)|^\w-\w$", text) or re.search(r"[(,)]", text))
    )


def _words(text: str) -> str:
    return re.sub(r"[\s\"“”.,!?;:()$\\]+", " ", text).strip().casefold()


def _clock(text: str) -> str:
    return re.sub(r"[\s.]", "", text).casefold()


def _date(text: str) -> tuple[str, list[int]] | None:
    month = _MONTH.search(text)
    numbers = sorted(int(digits) for digits in re.findall(r"\d{1,4}", text))
    return (month.group(1).lower(), numbers) if month else None
