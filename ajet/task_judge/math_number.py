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
    # Remove brackets around all of the text.
    while len(text) > 2 and (
        (text[0] + text[-1] in ("()", "[]") and not re.search(r"[()\[\]]", text[1:-1]))
        or (text[0] + text[-1] == "{}" and not re.search(r"[{}]", text[1:-1]))
    ):
        text = text[1:-1].strip()
    if text[:2] == "-(" and text[-1] == ")" and "(" not in text[2:]:
        negated = parse_number(text[2:-1])
        return StatedNumber(-negated.value, negated.unit, negated.fraction, negated.lowest) if negated else None
    currency_match = _MONEY.match(text)
    text_without_currency = (
        currency_match.group(1) + currency_match.group(3) + text[currency_match.end() :] if currency_match else text
    )
    match = _NUMBER.match(text_without_currency)
    number = _read_value(match) if match else None
    if match is None or number is None:
        return None
    unit_text, factor = _read_magnitude(text_without_currency[match.end() :], bool(currency_match))
    unit = parse_unit(unit_text)
    letter = _LETTER.fullmatch(unit_text)
    if unit is None and not letter:
        return _add_parts(text)  # such as `5 ft 6 in`
    if letter and not currency_match:  # `5m` or `5x^2`: a unit or a variable
        unit = (letter[1] + (f"^{letter[2]}" if letter[2] else ""),)
    if currency_match and unit is not None:
        currency = parse_unit(currency_match[2])
        # `$5 dollars` names its currency twice; `$5 per hour` has a unit, too.
        unit = unit if get_ratio(unit, currency or ()) == 1 else tuple(sorted((*(currency or ()), *unit)))
    if unit is None:
        return None
    return StatedNumber(
        number.value * factor, unit, number.fraction, number.lowest, bool(letter and not currency_match)
    )


def convert_to_unit(candidate: StatedNumber, reference: StatedNumber) -> Fraction | None:
    """Return a candidate's value in the reference's unit; None for incompatible units.

    The unit may be missing on either side, except for percent and for a letter next to the digits.
    """
    if not candidate.unit or not reference.unit:
        is_variable_possible = candidate.letter or reference.letter
        return None if is_variable_possible or "%" in candidate.unit + reference.unit else candidate.value
    ratio = get_ratio(candidate.unit, reference.unit)
    return None if ratio is None else candidate.value * ratio


def is_same_number(candidate: StatedNumber, reference: StatedNumber) -> bool:
    """Return True if a candidate states the reference's value, also in another unit of the same kind.

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
        unit_start = max(len(text) - 80, 0) + blank.start()
        unit = parse_unit(text[unit_start:])
        variable = re.search(r"(?<![\\A-Za-z])[A-Za-z]", text[:unit_start])
        if unit and text[:unit_start] and not (variable and any(len(factor.partition("^")[0]) == 1 for factor in unit)):
            return text[:unit_start].strip(), unit
    return text, ()


def _read_value(match: re.Match[str]) -> StatedNumber | None:
    """Return the number of a match: mixed number, fraction, repeating decimal or decimal with exponent.

    Returns None for what is no number, such as 1 3/2 (an improper mixed number) or a division by 0.
    """
    sign = -1 if match["sign"] == "-" else 1
    if match["whole"]:
        above, below = int(match["a"] or match["c"]), int(match["b"] or match["d"])
        return StatedNumber(sign * (int(match["whole"]) + Fraction(above, below))) if above < below else None
    if match["above"] or match["over"]:  # a fraction
        numerator, denominator = (
            _read_decimal(match["above"] or match["over"]),
            _read_decimal(match["below"] or match["under"]),
        )
        if denominator == 0:
            return None
        value = numerator / denominator
        lowest = numerator.denominator == denominator.denominator == 1 and (value.denominator == abs(denominator))
        return StatedNumber(sign * value, fraction=True, lowest=lowest)
    repeating = match["bar"] or match["bar2"]
    if repeating:  # a repeating decimal such as 0.1\overline{6}
        fixed_digits = match["fixed"]
        fixed_part = Fraction(int((match["before"] or "0") + fixed_digits), 10 ** len(fixed_digits))
        return StatedNumber(
            sign * (fixed_part + Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(fixed_digits)))
        )
    if match["ten"] and 0 <= int(match["ten"]) < LEAST_POWER:  # a product to be computed, no scientific notation
        return None
    digits = _read_decimal(match["digits"] or match["times"] or "1")
    return StatedNumber(sign * digits * Fraction(10) ** int(match["e"] or match["ten"] or 0))


def _read_decimal(digits: str) -> Fraction:
    """Return the value of a decimal without thousands marks and brackets.

    Several points are thousands marks: 1.234.567.
    """
    if digits.count(".") > 1:
        digits = digits.replace(".", "")
    return Fraction(re.sub(r"[ ,_'’(){}]", "", digits).rstrip(".") or "0")


def _read_magnitude(text: str, is_money: bool) -> tuple[str, int]:
    """Return the text after words such as "million", and the product of their values.

    Args:
        is_money: True after an amount of money, where suffixes such as `k` count, too.
    """
    factor = 1
    if is_money and (match := _MONEY_MAGNITUDE.match(text)):
        return text[match.end() :], CURRENCY_MAGNITUDES[match[1]]
    while parse_unit(text) is None and (match := _MAGNITUDE.match(text)):
        text, factor = text[match.end() :], factor * MAGNITUDES[match[1].lower()]
    return text, factor


def _add_parts(text: str) -> StatedNumber | None:
    """Return the sum of two amounts of one kind, the larger unit first, such as `5 ft 6 in`; None for other texts."""
    parts = _SUM.fullmatch(text)
    larger, smaller = (parse_number(parts[1]), parse_number(parts[2])) if parts else (None, None)
    if larger is None or smaller is None or not larger.unit or not smaller.unit or smaller.value < 0:
        return None
    ratio = get_ratio(larger.unit, smaller.unit)
    return StatedNumber(larger.value * ratio + smaller.value, smaller.unit) if ratio and ratio > 1 else None
