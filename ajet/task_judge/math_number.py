r"""Parses a number with its unit from normalized text (`math_text.normalize_math`).

Invariant: only stated values are read: digits, fractions, mixed numbers, powers of ten in scientific notation,
repeating decimals, magnitudes (`5 million`). Expressions still to be computed (`12 + 30`, `2^5`, `\sqrt{16}`) are no
numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ajet.task_judge.math_unit import CURRENCY_MAGNITUDES, MAGNITUDES, Unit, get_ratio, parse_unit

_GROUPED = "|".join(rf"\d{{1,3}}(?:{mark}\d{{3}}){{1,60}}(?!\d)" for mark in (",", " ", "_", "['’]"))
_EUROPEAN = r"\d{1,3}(?:\.\d{3}){2,60}(?![\d.])"
_DIGITS = rf"(?:{_EUROPEAN}|(?:{_GROUPED}|\d{{1,200}})(?:\.\d{{0,200}})?|\.\d{{1,200}})"
_TERM = rf"[({{]?-?{_DIGITS}[)}}]?"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:"
    r"(?P<whole>\d{1,20}) ?(?:\\frac\{(?P<a>\d{1,20})\}\{(?P<b>\d{1,20})\}|(?<=\d )(?P<c>\d{1,20})/(?P<d>\d{1,20}))"
    rf"|\\frac\{{(?P<above>-?{_DIGITS})\}}\{{(?P<below>-?{_DIGITS})\}}|(?P<over>{_TERM}) ?/ ?(?P<under>{_TERM})"
    r"|(?P<before>\d{0,30})\.(?P<fixed>\d{0,30})(?:\\overline\{(?P<bar>\d{1,30})\}|\((?P<bar2>\d{1,30})\))"
    rf"|(?:(?P<times>{_DIGITS}) ?(?:\\times|\\cdot|\*|x) ?)?10\^[{{(]?(?P<ten>[+-]?\d{{1,3}})[}})]?"
    rf"|(?P<digits>{_DIGITS})(?:[eE](?P<e>[+-]?\d{{1,3}}))?)"
)
_MONEY = re.compile(r"([+-]?) ?(US\$|[$€£¥₹]|(?:USD|EUR|GBP|JPY|CNY|INR|Rs\.?)(?= ?\d)) ?([+-]?)")
_MAGNITUDE = re.compile(rf"(?: |(?=[\u4e00-\u9fff]))({'|'.join(MAGNITUDES)})(?![A-Za-z])", re.IGNORECASE)
_MONEY_MAGNITUDE = re.compile(rf"({'|'.join(CURRENCY_MAGNITUDES)})(?![A-Za-z])")
_LETTER = re.compile(r"([A-Za-z])(?:\^\{?(-?\d)\}?)?")
_SUM = re.compile(r"([^,]{2,40}?[A-Za-z.]) (?:and )?(\d[^,]{0,40})")  # `5 ft 6 in`, `1 hour and 30 minutes`
LEAST_POWER = 4
"""`3 \\times 10^8` is scientific notation; `3 \\times 10^2` is a product to be computed."""


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A value as stated in the text."""

    value: Fraction
    unit: Unit = ()
    fraction: bool = False  # written as a fraction
    lowest: bool = True
    """False for a fraction that can be reduced."""
    letter: bool = False
    """True if the unit is a single letter next to the digits, possibly a variable: `5m`, `5x^2`."""


def parse_number(text: str) -> StatedNumber | None:
    """Return the number stated by a text; None for no number or several."""
    text = text.strip()
    while len(text) > 2 and (
        (text[0] + text[-1] in ("()", "[]") and not re.search(r"[()\[\]]", text[1:-1]))
        or (text[0] + text[-1] == "{}" and not re.search(r"[{}]", text[1:-1]))
    ):
        text = text[1:-1].strip()
    if text[:2] == "-(" and text[-1] == ")" and "(" not in text[2:]:
        inside = parse_number(text[2:-1])
        return StatedNumber(-inside.value, inside.unit, inside.fraction, inside.lowest) if inside else None
    money = _MONEY.match(text)
    amount = money.group(1) + money.group(3) + text[money.end() :] if money else text
    match = _NUMBER.match(amount)
    stated = _read_value(match) if match else None
    if match is None or stated is None:
        return None
    rest, factor = _read_magnitude(amount[match.end() :], bool(money))
    unit = parse_unit(rest)
    letter = _LETTER.fullmatch(rest)
    if unit is None and not letter:
        return _add_parts(text)
    if letter and not money:
        unit = (letter[1] + (f"^{letter[2]}" if letter[2] else ""),)
    if money and unit is not None:
        currency = parse_unit(money[2])
        unit = unit if get_ratio(unit, currency or ()) == 1 else tuple(sorted((*(currency or ()), *unit)))
    if unit is None:
        return None
    return StatedNumber(stated.value * factor, unit, stated.fraction, stated.lowest, bool(letter and not money))


def convert_to_unit(candidate: StatedNumber, reference: StatedNumber) -> Fraction | None:
    """Return a candidate's value in the reference's unit; None for incompatible units.

    The unit may be missing on either side, except for percent and for a letter next to the digits.
    """
    if not candidate.unit or not reference.unit:
        letter = candidate.letter or reference.letter
        return None if letter or "%" in candidate.unit + reference.unit else candidate.value
    ratio = get_ratio(candidate.unit, reference.unit)
    return None if ratio is None else candidate.value * ratio


def is_same_number(candidate: StatedNumber, reference: StatedNumber) -> bool:
    """True if a candidate states the reference's value.

    A reducible fraction does not match a reference that is an integer or a decimal.
    """
    if not reference.fraction and candidate.fraction and not candidate.lowest:
        return False
    return convert_to_unit(candidate, reference) == reference.value


def split_unit(text: str) -> tuple[str, Unit]:
    r"""Split a unit from the end of an expression such as `2\sqrt{3} cm`.

    A single letter is a unit only if the expression has no other letters.
    """
    for blank in re.finditer(r" |(?<=[\d})])(?=%|\^\\circ)", text[-80:]):
        start = max(len(text) - 80, 0) + blank.start()
        unit = parse_unit(text[start:])
        letters = re.search(r"(?<![\\A-Za-z])[A-Za-z]", text[:start])
        if unit and text[:start] and not (letters and any(len(factor.partition("^")[0]) == 1 for factor in unit)):
            return text[:start].strip(), unit
    return text, ()


def _read_value(match: re.Match[str]) -> StatedNumber | None:
    """Return the number of a match: mixed number, fraction, repeating decimal or decimal with exponent.

    Returns None for what is no number, such as 1 3/2 (an improper mixed number) or a division by 0.
    """
    sign = -1 if match["sign"] == "-" else 1
    if match["whole"]:
        above, below = int(match["a"] or match["c"]), int(match["b"] or match["d"])
        return StatedNumber(sign * (int(match["whole"]) + Fraction(above, below))) if above < below else None
    if match["above"] or match["over"]:
        numerator, denominator = (
            _read_decimal(match["above"] or match["over"]),
            _read_decimal(match["below"] or match["under"]),
        )
        if denominator == 0:
            return None
        value = numerator / denominator
        lowest = numerator.denominator == denominator.denominator == 1 and (value.denominator == abs(denominator))
        return StatedNumber(sign * value, fraction=True, lowest=lowest)
    bar = match["bar"] or match["bar2"]
    if bar:
        fixed = match["fixed"]
        head = Fraction(int((match["before"] or "0") + fixed), 10 ** len(fixed))
        return StatedNumber(sign * (head + Fraction(int(bar), (10 ** len(bar) - 1) * 10 ** len(fixed))))
    if match["ten"] and 0 <= int(match["ten"]) < LEAST_POWER:
        return None
    digits = _read_decimal(match["digits"] or match["times"] or "1")
    return StatedNumber(sign * digits * Fraction(10) ** int(match["e"] or match["ten"] or 0))


def _read_decimal(digits: str) -> Fraction:
    if digits.count(".") > 1:
        digits = digits.replace(".", "")
    return Fraction(re.sub(r"[ ,_'’(){}]", "", digits).rstrip(".") or "0")


def _read_magnitude(rest: str, money: bool) -> tuple[str, int]:
    """Return the text after the magnitudes, and their product."""
    factor = 1
    if money and (match := _MONEY_MAGNITUDE.match(rest)):
        return rest[match.end() :], CURRENCY_MAGNITUDES[match[1]]
    while parse_unit(rest) is None and (match := _MAGNITUDE.match(rest)):
        rest, factor = rest[match.end() :], factor * MAGNITUDES[match[1].lower()]
    return rest, factor


def _add_parts(text: str) -> StatedNumber | None:
    """Return the sum of two amounts of one kind, the larger unit first."""
    parts = _SUM.fullmatch(text)
    larger, smaller = (parse_number(parts[1]), parse_number(parts[2])) if parts else (None, None)
    if larger is None or smaller is None or not larger.unit or not smaller.unit or smaller.value < 0:
        return None
    ratio = get_ratio(larger.unit, smaller.unit)
    return StatedNumber(larger.value * ratio + smaller.value, smaller.unit) if ratio and ratio > 1 else None
