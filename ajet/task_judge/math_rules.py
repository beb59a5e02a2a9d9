"""Decides in a fixed order if two answers are equal.

`AnswerComparer.decide` applies the first matching rule: (1) same spelling; (2) dates, times of day, numbers in another
base, ratios; (3) two numbers, by value and unit (`math_number`); (4) equations: the name is removed, and each part of
`a = b = 5` must be 5; (5) lists, sets, tuples, intervals, unions and matrices, member by member; (6) words; (7)
expressions with a unit; (8) a number was expected and the answer is no number: False, since an expression with the same
value repeats the question; (9) math-verify, unless the candidate has letters missing in the reference.

Invariant: math-verify gets single expressions only, without units, names and words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ajet.task_judge.math_number import is_same_number, parse_number, split_unit
from ajet.task_judge.math_unit import get_ratio

DEEPEST = 20
"""Maximum depth of nested brackets in an answer."""
MOST_STEPS = 10_000
"""Members compared for one pair of answers: sets within sets would take hours."""
_LOOSE = re.compile(r"\s+(?!\w)|(?<!\w)(?<!\d,)\s+")
"""Meaningless spaces; `1 1/2` is not `11/2`, and `1, 234` is not `1,234`."""
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTH = rf"(?P<month>{'|'.join(rf'{month[:3]}(?:{month[3:]})?' for month in _MONTHS)})\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_MONTH} {_DAY}(?:,? (?P<year>\d{{4}}))?",
        rf"{_DAY} (?:of )?{_MONTH}(?:,? (?P<year>\d{{4}}))?",
        r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])-(?P<day>\d\d)",
    )
)
_TIME = re.compile(r"(\d{1,2}) ?: ?(\d\d)(?: ?([ap])\.? ?m\.?)?", re.IGNORECASE)
_BASED = re.compile(r"(\d[0-9A-Fa-f]*)_\{? ?(\d{1,2}) ?\}?")
_WORDS = re.compile(r"(?:(?=.*[A-Za-z]{3})|(?!.*\d))[^\\=+*/^<>|{}\[\](),;%$&_]+|\([A-Za-z]+\)")
_NO_WORDS = re.compile(r"[abcxyz]{2,3}|[a-zK-Z]|-.*|.*(?<![A-Za-z])[A-Za-z] ?- ?[A-Za-z](?![A-Za-z]).*")
"""A product of variables such as `ab` (equal to `ba`), a variable, or a difference."""
_NAME = re.compile(
    r"(?:[A-Za-z]|\\[a-z]+|[A-Z]{2,4})(?:_\{?\w+\}?)?'*|\\angle ?[A-Z]+|[A-Za-z] ?\( ?[\w, ]+ ?\)"
    r"|[a-z](?: ?\+ ?[a-z])+|\\frac\{d[a-z]\}\{d[a-z]\}|(?:(?i:the )?(?i:answer|area|average|cost|difference|distance"
    r"|height|length|max|mean|median|min|number|perimeter|price|probability|product|profit|quotient|radius|ratio|result"
    r"|slope|speed|sum|time|total|value|volume|width))?"
)
"""Left side of an answer: `x`, `x_1`, `AB`, `area`, `\\angle ABC`, `f(2)`, `m+n`, or empty."""
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|neq)(?![a-z])")
_HEDGE = re.compile(r"≈|\\(?:approx|sim|simeq|cong)(?![a-z])")
_NO_LETTERS = re.compile(r"\\mathbb\{[A-Z]\}|\\[A-Za-z]+|[ei]")
"""Commands, and the letters of constants."""


@dataclass(slots=True)
class AnswerComparer:
    """Decides if two normalized answers (`math_text.normalize_math`) are equal."""

    ask: Callable[[str, str], bool]
    """Returns True if math-verify finds a candidate equal to a reference."""
    steps: int = 0
    """Number of `decide` calls for this pair, members of lists and sets included."""

    def decide(self, candidate: str, reference: str) -> bool:
        """Return True if both denote the same mathematical value; the first of nine rules that applies decides.

        Members of lists and sets, and sides of equations, are decided recursively.
        """
        self.steps += 1
        if _LOOSE.sub("", candidate) == _LOOSE.sub("", reference):  # (1) same spelling
            return True
        if (
            not candidate
            or not reference
            or self.steps > MOST_STEPS
            or max(measure_depth(candidate), measure_depth(reference)) > DEEPEST
        ):
            return False
        for read_form in (_read_date, _read_time, _read_based):  # (2) dates, times, numbers in another base
            if read_form(candidate) or read_form(reference):
                return read_form(candidate) == read_form(reference)
        ratio_terms, reference_terms = split_outside(candidate, ":"), split_outside(reference, ":")  # (2) ratios
        if any(len(terms) > 1 and None not in map(parse_number, terms) for terms in (ratio_terms, reference_terms)):
            return _read_ratio(ratio_terms) == _read_ratio(reference_terms) is not None
        if max(len(ratio_terms), len(reference_terms)) > 2:  # math-verify would read only the first two terms
            return len(ratio_terms) == len(reference_terms) and all(map(self.decide, ratio_terms, reference_terms))
        candidate_number, reference_number = parse_number(candidate), parse_number(reference)
        if candidate_number and reference_number:  # (3) two numbers
            return is_same_number(candidate_number, reference_number)
        equation_sides, reference_sides = _split_equation(candidate), _split_equation(reference)
        if len(equation_sides) > 1 or len(reference_sides) > 1:  # (4) equations
            return self._decide_equations(equation_sides, reference_sides)
        members, reference_members = (
            None if candidate_number else read_members(candidate),
            None if reference_number else read_members(reference),
        )
        if members or reference_members:  # (5) several members
            return self._decide_members(candidate, members, reference, reference_members)
        if _WORDS.fullmatch(reference) and not _NO_WORDS.fullmatch(reference):  # (6) words
            return _normalize_words(candidate) == _normalize_words(reference)
        (value, unit), (reference_value, reference_unit) = split_unit(candidate), split_unit(reference)
        if unit or reference_unit:  # (7) units: one side may leave out its unit, except a percent sign
            has_one_unit = (unit or reference_unit) != ("%",) and not (unit and reference_unit)
            return (has_one_unit or get_ratio(unit, reference_unit) == 1) and self.decide(value, reference_value)
        if (
            reference_number and not reference_number.letter
        ):  # (8) a number was expected, and the candidate is no number
            return False
        return self._ask_math_verify(candidate, reference)  # (9) any other expression

    def _decide_equations(self, sides: list[str], reference_sides: list[str]) -> bool:
        """Return True if two equations are equal, or an equation equals a single value (rule 4)."""
        (name, value), (reference_name, reference_value) = _split_name(sides), _split_name(reference_sides)
        if len(reference_sides) == 1:  # `x = 5` or `a = b = 5` for the reference 5
            other_sides = [side for side in sides if name is None and side is not value and not _NAME.fullmatch(side)]
            return self.decide(value, reference_value) and all(self.decide(value, side) for side in other_sides)
        if len(sides) == 1:  # 5 for the reference `x = 5`
            return reference_name is not None and self.decide(value, reference_value)
        if name is not None and name == reference_name:
            return self.decide(value, reference_value)
        if reference_name is not None and parse_number(reference_value):  # `y = 5` for the reference `x = 5`
            return False
        return self.ask("=".join(sides), "=".join(reference_sides))

    def _decide_members(
        self, candidate: str, candidate_members: MemberList | None, reference: str, reference_members: MemberList | None
    ) -> bool:
        """Return True if two answers have equal members (rule 5).

        Order does not count in sets, lists and unions, but in vectors, matrices, tuples and intervals.

        Args:
            candidate_members: None: the candidate is a single value.
            reference_members: None: the reference is a single value.
        """
        if candidate_members is None or reference_members is None:
            multiple = candidate_members or reference_members
            assert multiple is not None
            if multiple.kind == "set" and len(multiple.parts) == 1:
                return self.decide(
                    multiple.parts[0] if candidate_members else candidate,
                    multiple.parts[0] if reference_members else reference,
                )
            return (
                not parse_number(candidate)
                and not parse_number(reference)
                and self._ask_math_verify(candidate, reference)
            )
        kinds = {candidate_members.kind, reference_members.kind}
        if "set" in kinds and kinds <= {"set", "list"}:  # members may be repeated, so each set must contain the other
            return self._is_subset(candidate_members.parts, reference_members.parts) and self._is_subset(
                reference_members.parts, candidate_members.parts, swapped=True
            )
        have_equal_length = len(candidate_members.parts) == len(reference_members.parts)
        if _ORDER.search(candidate + reference):  # `x < 1 or x > 2` is a union, `x < 1 and x > 2` is not
            are_unions = [
                _OR.search(text) is not None or member_list.kind == "union"
                for text, member_list in ((candidate, candidate_members), (reference, reference_members))
            ]
            return (
                have_equal_length
                and are_unions[0] == are_unions[1]
                and self._is_rearranged(candidate_members.parts, reference_members.parts)
            )
        if "union" in kinds and not (have_equal_length and len(kinds) == 1):
            return self._ask_math_verify(candidate, reference)
        if not have_equal_length:
            return False
        if kinds in ({"list"}, {"union"}) and not (
            _has_names(reference_members.parts) and not _has_names(candidate_members.parts)
        ):
            return self._is_rearranged(candidate_members.parts, reference_members.parts)
        comparable_kinds = [
            {"list", "()"},
            *([{"list", "[]"}, {"vector", "()"}] if len(candidate_members.parts) > 2 else []),
        ]  # no intervals
        if len(kinds) > 1 and kinds not in comparable_kinds:
            return False
        return all(
            self.decide(member, reference_part)
            for member, reference_part in zip(candidate_members.parts, reference_members.parts, strict=True)
        )

    def _ask_math_verify(self, candidate: str, reference: str) -> bool:
        """Return the result of math-verify, unless the candidate has letters missing in the reference.

        The relation `x < 2` may have one letter more than an interval.
        """
        if _HEDGE.search(candidate) and not _HEDGE.search(reference):  # "about 3" for an exact reference
            return False
        unknown_letters = _find_letters(candidate) - _find_letters(reference)
        return len(unknown_letters) <= bool(_ORDER.search(candidate)) and self.ask(candidate, reference)

    def _is_subset(self, members: list[str], expected: list[str], swapped: bool = False) -> bool:
        """Return True if each member equals one of the expected members.

        Args:
            swapped: True if the members are the reference's, since `decide` takes the candidate first.
        """
        return all(
            any(
                self.decide(*((expected_member, part) if swapped else (part, expected_member)))
                for expected_member in expected
            )
            for part in members
        )

    def _is_rearranged(self, members: list[str], expected: list[str]) -> bool:
        """Return True if the members equal the expected ones in some order, each used once."""
        unmatched = list(expected)
        for part in members:
            equal_member = next(
                (expected_member for expected_member in unmatched if self.decide(part, expected_member)), None
            )
            if equal_member is None:
                return False
            unmatched.remove(equal_member)
        return True


def _read_date(text: str) -> tuple[int, int, str | None] | None:
    """Return (month, day, year or None) of a date, else None. The day is not checked against the month."""
    match = next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None)
    if not match:
        return None
    month = match["month"].lower()
    month_number = int(month) if month.isdecimal() else 1 + [name[:3] for name in _MONTHS].index(month[:3])
    return month_number, int(match["day"]), match["year"]


def _read_time(text: str) -> tuple[str, str, str] | None:
    """Return (hours, minutes, "a", "p" or "") of a time of day such as `3:30 pm`, else None."""
    match = _TIME.fullmatch(text)
    return (match[1], match[2], (match[3] or "").lower()) if match else None


def _read_based(text: str) -> tuple[str, str] | None:
    """Return (digits, base) of a number with its base, such as `2516_8`, else None."""
    match = _BASED.fullmatch(text)
    return (match[1].upper(), match[2]) if match else None


def _read_ratio(terms: list[str]) -> list[Fraction] | None:
    """Return the terms of `3:4:5`, or of the fraction `3/4`, divided by the first term that is not 0.

    None if a term is no number without a unit, or all are 0.
    """
    if len(terms) == 1:
        number = parse_number(terms[0])
        values = [number.value, Fraction(1)] if number and number.fraction and not number.unit else []
    else:
        values = [term.value for term in map(parse_number, terms) if term and not term.unit]
    first_nonzero = next((value for value in values if value), None)
    return [value / first_nonzero for value in values] if first_nonzero and len(values) == max(len(terms), 2) else None


def _split_equation(text: str) -> list[str]:
    """Return the sides of an equation. A list, or a text without an equals sign, gives [text]."""
    sides = split_outside(text, "=")
    return sides if len(sides) > 1 and len(split_list(text)) == 1 else [text]


def _split_name(sides: list[str]) -> tuple[str | None, str]:
    """Split `name = value`, in either order, into (name, value).

    Other equations give (None, last side).
    """
    if len(sides) == 2:
        if _NAME.fullmatch(sides[0]):
            return sides[0], sides[1]
        if _NAME.fullmatch(sides[1]) and sides[1]:
            return sides[1], sides[0]
    return None, sides[-1]


def _has_names(members: list[str]) -> bool:
    """Return True if each part is `name = value`, all with different names, so that the order of values matters."""
    names = [_split_name(_split_equation(member))[0] for member in members]
    return None not in names and len(set(names)) == len(members) > 1


def _normalize_words(text: str) -> str:
    """Return a text in lower case without punctuation, extra white space and an article at its start."""
    words = re.sub(r"[\s\"“”.,!?;:()$\\]+", " ", text).split()
    if len(words) > 1 and words[0].lower() in ("a", "an", "the"):
        words = words[1:]
    return " ".join(words).casefold()


def _find_letters(text: str) -> set[str]:
    """Return the letters of an expression that may be variables: without TeX commands, `e` and `i`."""
    return set(re.findall(r"[^\W\d_]", _NO_LETTERS.sub("", text)))


_AND_OR = re.compile(r"(?<![A-Za-z])(?:or|and)(?![A-Za-z])")
_MATRIX = re.compile(
    r"[\[(]? ?\\begin\{(?P<name>[pbBvV]?matrix|array)\}(?:\{[lcr| ]*\})?(?P<body>.*)\\end\{(?P=name)\} ?[\])]?"
)
_BRACKETS = (("\\{", "\\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), ("{", "}"))


@dataclass(frozen=True, slots=True)
class MemberList:
    """Members of an answer and the kind of their container."""

    kind: str
    """`list`, `set`, `union`, the brackets, or `matrix` with the length of each row."""
    parts: list[str]


def read_members(text: str) -> MemberList | None:
    """Return the members of a matrix, union, set, vector, tuple, interval or list; None for a single value.

    `a \\pm b` has the members `a + b` and `a - b`.
    """
    if text == r"\mathbb{R}":
        text = r"(-\infty,\infty)"
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [split_outside(row, "&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", matrix["body"]) if row.strip()]
        name = "determinant" if matrix["name"][0] in "vV" else "matrix"
        return MemberList(f"{name} {[len(row) for row in rows]}", [cell for row in rows for cell in row])
    union_parts = split_outside(text, r"\cup")
    if len(union_parts) > 1:
        return MemberList("union", union_parts)
    if text == r"\emptyset":
        return MemberList("set", [])
    vector = re.fullmatch(r"\\langle(?![a-z])(.*)\\rangle", text)
    if vector and len(inner_parts := split_outside(vector[1], ",")) > 1:
        return MemberList("vector", inner_parts)
    for opening, ending in _BRACKETS:
        if text.startswith(opening) and text.endswith(ending) and _is_closed_at_end(text, opening, ending):
            inner_parts = split_outside(text[len(opening) : len(text) - len(ending)], ",", ";")
            if opening == "\\{" or (opening == "{" and len(inner_parts) > 1):
                return MemberList("set", inner_parts)
            if len(inner_parts) > 1:
                return MemberList(opening + ending, inner_parts)
    members = split_list(text)
    if len(members) > 1:
        return MemberList("list", members)
    if text.count(r"\pm") == 1:
        return MemberList("list", [text.replace(r"\pm", sign).strip() for sign in "+-"])
    return None


def split_list(text: str) -> list[str]:
    """Return the members of `1, 2 and 3`, split at commas, semicolons, "and" and "or"; [text] for any other text."""
    pieces = [member for piece in split_outside(text, ",", ";") for member in _AND_OR.split(piece)]
    return [member.strip(" $") for member in pieces if member.strip(" $")]


def split_outside(text: str, *marks: str) -> list[str]:
    """Return the stripped parts of a text, split at the marks that are outside of all brackets."""
    depth = 0
    start = 0
    parts = list[str]()
    index = 0
    while index < len(text):
        separator = next((mark for mark in marks if text.startswith(mark, index)), None)
        if depth == 0 and separator:
            parts.append(text[start:index].strip())
            index += len(separator)
            start = index
            continue
        depth += text[index] in "([{"
        depth -= text[index] in ")]}"
        index += 1
    return [*parts, text[start:].strip()]


def measure_depth(text: str) -> int:
    """Return the maximum depth of nested brackets."""
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _is_closed_at_end(text: str, opening: str, ending: str) -> bool:
    """Return True if the bracket that a text begins with is closed by the text's end, not earlier, as in `(1), (2)`."""
    depth = 0
    for index in range(len(opening) - 1, len(text)):
        depth += text[index] in "([{"
        depth -= text[index] in ")]}"
        if depth == 0:
            return index >= len(text) - len(ending)
    return False
