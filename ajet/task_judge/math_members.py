r"""What an answer that states several things holds: lists, sets, tuples, intervals, unions, matrices.

Invariant: only brackets and separators are read here; whether two members are equal is `math_rules`' to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_AND_OR = re.compile(r"(?<![A-Za-z])(?:or|and)(?![A-Za-z])")
_MATRIX = re.compile(
    r"[\[(]? ?\\begin\{(?P<name>[pbBvV]?matrix|array)\}(?:\{[lcr| ]*\})?(?P<body>.*)\\end\{(?P=name)\} ?[\])]?"
)
_BRACKETS = (("\\{", "\\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), ("{", "}"))


@dataclass(frozen=True, slots=True)
class MemberList:
    """The members of an answer and what holds them."""

    kind: str
    """`list`, `set`, `union`, the brackets, or `matrix` with the length of each row."""
    parts: list[str]


def read_members(text: str) -> MemberList | None:
    """Return what a text that states several things holds; None where it states one."""
    if text == r"\mathbb{R}":
        text = r"(-\infty,\infty)"
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [split_outside(row, "&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", matrix["body"]) if row.strip()]
        name = "determinant" if matrix["name"][0] in "vV" else "matrix"
        return MemberList(f"{name} {[len(row) for row in rows]}", [cell for row in rows for cell in row])
    united = split_outside(text, r"\cup")
    if len(united) > 1:
        return MemberList("union", united)
    if text == r"\emptyset":
        return MemberList("set", [])
    vector = re.fullmatch(r"\\langle(?![a-z])(.*)\\rangle", text)
    if vector and len(inside := split_outside(vector[1], ",")) > 1:
        return MemberList("vector", inside)
    for opening, ending in _BRACKETS:
        if text.startswith(opening) and text.endswith(ending) and _is_closed_at_end(text, opening, ending):
            inside = split_outside(text[len(opening) : len(text) - len(ending)], ",", ";")
            if opening == "\\{" or (opening == "{" and len(inside) > 1):
                return MemberList("set", inside)
            if len(inside) > 1:
                return MemberList(opening + ending, inside)
    listed = split_list(text)
    if len(listed) > 1:
        return MemberList("list", listed)
    if text.count(r"\pm") == 1:
        return MemberList("list", [text.replace(r"\pm", sign).strip() for sign in "+-"])
    return None


def split_list(text: str) -> list[str]:
    """Return the members of `1, 2 and 3`; the text itself where it is no list."""
    listed = [part for piece in split_outside(text, ",", ";") for part in _AND_OR.split(piece)]
    return [part.strip(" $") for part in listed if part.strip(" $")]


def split_outside(text: str, *marks: str) -> list[str]:
    """Return the parts between marks that stand in no bracket."""
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


def measure_depth(text: str) -> int:
    """Return how many brackets stand within each other at most."""
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _is_closed_at_end(text: str, opening: str, ending: str) -> bool:
    depth = 0
    for place in range(len(opening) - 1, len(text)):
        depth += text[place] in "([{"
        depth -= text[place] in ")]}"
        if depth == 0:
            return place >= len(text) - len(ending)
    return False
