r"""A number and its unit, out of text in the one spelling (`math_text.plain`).

Invariant: only what states a value is read: digits, a fraction, a mixed number, powers of ten as scientists write them,
repeating decimals. What would have to be computed first (`12 + 30`, `2^5`, `\sqrt{16}`, `84/2`) is no number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_GROUPED = "|".join(rf"\d{{1,3}}(?:{mark}\d{{3}}){{1,60}}(?!\d)" for mark in (",", " ", "_", "['’]"))
_EUROPEAN = r"\d{1,3}(?:\.\d{3}){2,60}(?![\d.])"
_DIGITS = rf"(?:{_EUROPEAN}|(?:{_GROUPED}|\d{{1,200}})(?:\.\d{{0,200}})?|\.\d{{1,200}})"
_POWER = r"(?:[eE](?P<e>[+-]?\d{1,3})|\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?\{?(?P<ten>[+-]?\d{1,3})\}?)?"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s?(?:"
    rf"(?P<whole>\d{{1,20}})\s?\\frac\{{(?P<ma>\d{{1,20}})\}}\{{(?P<mb>\d{{1,20}})\}}"
    rf"|(?P<whole2>\d{{1,20}}) (?P<na>\d{{1,20}})/(?P<nb>\d{{1,20}})"
    rf"|\\frac\{{(?P<fs>-?)(?P<fa>{_DIGITS})\}}\{{(?P<fb>{_DIGITS})\}}"
    rf"|\((?P<ps>-?)(?P<pa>\d{{1,100}})\)/\(?(?P<pb>\d{{1,100}})\)?"
    rf"|(?P<a>{_DIGITS})\s?/\s?(?P<b>\d{{1,100}})"
    rf"|(?P<before>\d{{0,30}})\.(?P<fixed>\d{{0,30}})(?:\\overline\{{(?P<bar>\d{{1,30}})\}}|\((?P<bar2>\d{{1,30}})\))"
    rf"|(?P<digits>{_DIGITS}){_POWER})"
)
_MONEY = re.compile(r"([+-]?)\s?([$€£¥₹])\s?([+-]?)")
_PIECE = r"(?:\^\\circ ?[CFK]?|%|[$€£¥₹]|[A-Za-zµΩÅ][A-Za-zµΩÅ.'’-]*(?:\^\{?-?\d\}?)?)"
_UNIT = re.compile(rf"{_PIECE}(?:(?: ?/ ?| ?\\cdot ?| ){_PIECE})*")
LONGEST_UNIT = 80
"""Characters."""
LEAST_POWER = 4
"""`3 \\times 10^8` is how a number is written; `3 \\times 10^2` is a product to be computed."""

_ALIASES = {
    "%": "percent %", "$": "dollar usd $", "cent": "cent ¢", "€": "euro eur €", "£": "gbp £", "¥": "yen jpy yuan cny ¥",
    "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
    "km": "km kilometer kilometre",
    "inch": "inch inches", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile", "mg": "mg milligram",
    "g": "g gram gramme", "kg": "kg kilogram kilo", "t": "t ton tonne", "lb": "lb lbs", "oz": "oz ounce",
    "ms": "ms millisecond", "s": "s sec second", "min": "min minute", "h": "h hr hrs hour", "day": "day",
    "week": "week",    "month": "month", "year": "year yr", "ml": "ml milliliter millilitre", "l": "l liter litre",
    "deg": "^\\circ degree deg", "rad": "rad radian", "n": "n newton", "j": "j joule", "w": "w watt", "v": "v volt",
    "k": "k kelvin", "a": "ampere", "hz": "hz hertz", "unit": "unit",
}  # fmt: skip
_KNOWN = {word: unit for unit, words in _ALIASES.items() for word in words.split()}
_SCALES = (
    {"mm": Fraction(1, 1000), "cm": Fraction(1, 100), "m": Fraction(1), "km": Fraction(1000)},
    {"inch": Fraction(1), "ft": Fraction(12), "yd": Fraction(36), "mi": Fraction(63360)},
    {"mg": Fraction(1, 1000), "g": Fraction(1), "kg": Fraction(1000)},
    {"ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "day": Fraction(86400),
     "week": Fraction(604800)},
    {"ml": Fraction(1, 1000), "l": Fraction(1)},
    {"cent": Fraction(1, 100), "$": Fraction(1)},
)  # fmt: skip
_NO_UNITS = frozenset(
    [
        "or",
        "and",
        "not",
        "to",
        "plus",
        "minus",
        "times",
        "but",
        "is",
        "maybe",
        "either",
        "if",
        "mod",
        "no",
        "i",
        "x",
        "over",
    ]
)


@dataclass(frozen=True, slots=True)
class Number:
    """A value as it was stated."""

    value: Fraction
    unit: tuple[str, ...] = ()
    """Its words, each in one form; () is none."""
    fraction: bool = False
    """Written as a fraction."""
    lowest: bool = True
    """Not one that still has to be reduced."""


def number(text: str) -> Number | None:
    """The number that a text states; None where it states none, or more than that."""
    text = text.strip()
    while len(text) > 2 and text[0] + text[-1] in ("()", "{}", "[]") and not re.search(r"[(){}\[\]\\]", text[1:-1]):
        text = text[1:-1].strip()
    if text[:2] == "-(" and text[-1] == ")" and "(" not in text[2:]:
        inside = number(text[2:-1])
        return Number(-inside.value, inside.unit, inside.fraction, inside.lowest) if inside else None
    money = _MONEY.match(text)
    if money:
        text = money.group(1) + money.group(3) + text[money.end() :]
    read = _NUMBER.match(text)
    if read is None:
        return None
    found = _value(read)
    if found is None:
        return None
    rest = text[read.end() :]
    unit = _unit_of(rest)
    if unit is None:
        return None
    if money:
        unit = (_KNOWN[money.group(2)], *(word for word in unit if word != _KNOWN[money.group(2)]))
    return Number(found.value, unit, found.fraction, found.lowest)


def same(candidate: Number, reference: Number) -> bool:
    """Whether a candidate states the reference's value. A unit may be left out, but for percent; two units have to
    agree. A fraction that has to be reduced is no value where the reference is a whole number or a decimal."""
    if not reference.fraction and candidate.fraction and not candidate.lowest:
        return False
    return in_unit_of(candidate, reference) == reference.value


def in_unit_of(candidate: Number, reference: Number) -> Fraction | None:
    """A candidate's value in the reference's unit, as if it were of that where one of them has none; None where their
    units do not agree."""
    one, other = set(candidate.unit), set(reference.unit)
    if ("%" in one) != ("%" in other):
        return None
    if not one or not other or one <= other or other <= one:
        return candidate.value
    if len(one) == len(other) == 1:
        (from_unit,), (to_unit,) = one, other
        for scale in _SCALES:
            if from_unit in scale and to_unit in scale:
                return candidate.value * scale[from_unit] / scale[to_unit]
    return None


def unit_at_end(text: str) -> tuple[str, tuple[str, ...]]:
    """An expression without the well-known unit at its end, and that unit."""
    found = re.search(r"(?<=[\d})]) ?((?:square |cubic )?[A-Za-z]{2,}(?:\^\{?[23]\}?)?|%|\^\\circ)$", text)
    unit = _unit_of(found.group(1)) if found else None
    if found and unit and all(word in _ALIASES or word in ("square", "cubic") or "^" in word for word in unit):
        return text[: found.start()].strip(), unit
    return text, ()


def _value(read: re.Match[str]) -> Number | None:
    sign = -1 if read["sign"] == "-" else 1
    whole, above, below = read["whole"] or read["whole2"], read["ma"] or read["na"], read["mb"] or read["nb"]
    if whole is not None:
        if int(below) == 0 or int(above) >= int(below):
            return None
        return Number(sign * (int(whole) + Fraction(int(above), int(below))))
    above, below = read["fa"] or read["pa"] or read["a"], read["fb"] or read["pb"] or read["b"]
    if above is not None:
        if (read["fs"] or read["ps"]) == "-":
            sign = -sign
        one, other = _decimal(above), _decimal(below)
        if other == 0:
            return None
        value = one / other
        lowest = one.denominator == other.denominator == 1 and value.denominator == other != 1
        return Number(sign * value, fraction=True, lowest=lowest)
    bar = read["bar"] or read["bar2"]
    if bar is not None:
        fixed = read["fixed"]
        head = Fraction(int((read["before"] or "0") + fixed), 10 ** len(fixed))
        return Number(sign * (head + Fraction(int(bar), (10 ** len(bar) - 1) * 10 ** len(fixed))))
    power = read["e"] or read["ten"]
    if read["ten"] and abs(int(read["ten"])) < LEAST_POWER:
        return None
    return Number(sign * _decimal(read["digits"]) * Fraction(10) ** int(power or 0))


def _decimal(digits: str) -> Fraction:
    if digits.count(".") > 1:
        digits = digits.replace(".", "")
    return Fraction(re.sub(r"[ ,_'’]", "", digits).rstrip(".") or "0")


def _unit_of(rest: str) -> tuple[str, ...] | None:
    """The words of a unit; () for nothing, None for something else."""
    text = rest.strip()
    if not text:
        return ()
    if len(text) > LONGEST_UNIT or not _UNIT.fullmatch(text):
        return None
    attached = rest[0] != " "
    words = [_one_form(word) for word in re.findall(r"\^\\circ ?[CFK]?|%|/|[^\s/%\\]+", text.replace("\\cdot", " "))]
    words = ["/" if word == "per" else word for word in words]
    if len(words) > 5 or any(word in _NO_UNITS for word in words):
        return None
    first = words[0]
    if first not in _KNOWN.values() and "^" not in first and (attached or len(first) == 1):
        return None
    return tuple(words)


def _one_form(word: str) -> str:
    word = word.strip(".'’")
    base, power, exponent = word.partition("^") if not word.startswith("^") else (word, "", "")
    base = base if base.startswith("^") else base.lower()
    base = base.strip() if len(base.strip()) > 6 else base.strip()
    if base.startswith("^\\circ"):
        base = "^\\circ" if base == "^\\circ" else base.replace(" ", "")
    known = _KNOWN.get(base) or (_KNOWN.get(base[:-1]) if base.endswith("s") else None)
    plural = base[:-1] if len(base) > 3 and base.endswith("s") and not base.endswith("ss") else base
    return (known or plural) + (power + exponent.strip("{}") if power else "")
