"""Scorer `numeric`: compares numbers with a tolerance and units.

Invariant: an answer states one number. Uncomputed expressions, several different numbers, bounds, ranges, dates, times,
ordinals and denied numbers do not count.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.task_judge.extraction import answer_text, hash_answer
from ajet.task_judge.math_number import StatedNumber, convert_to_unit, parse_number
from ajet.task_judge.math_text import normalize_math

LONGEST = 10_000
"""Maximum characters of an answer."""
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x2212: "-", 0x3002: ".", 0x3001: ","}
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,40}>|\*\*|__|[`\"“”«»]|\\\(|\\\)|\\\[|\\\]")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d{1,2}(?:,\d{2})+,\d{3}(?!,?\d)|\d+)(?:\.\d+)?|\.\d+"
_POWER = r"(?:[eE][+-]?\d{1,3}|\s?(?:\\times|\\cdot|[×*·x])\s?10\s?(?:\^\s?\{?[+-]?\d{1,3}\}?|[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3}))"
_AFTER_DIGIT_POWER = re.compile(rf"(?<=\d){_POWER}", re.IGNORECASE)
_VALUE = re.compile(
    r"(?P<sign>(?<![\w)\]}.])(?:[+-]\s?)|\b(?:minus|negative)\s+)?(?P<money>[$€£¥₹]\s?)?"
    rf"(?P<number>\\[dt]?frac\s?\{{\d+\}}\{{\d+\}}|(?:{_DIGITS})(?:{_POWER}|\s?/\s?\d+)?)"
    r"(?P<unit>\s?(?:\\?%|per\s?cents?\b|\^\\circ\s?[CF]?|°\s?[CF]?|[A-Za-zµΩ]+\b(?:/[A-Za-z]+)?))?",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    r"[\d)}]\s*(?:[-+*×·÷^!]|\\times|\\cdot|\\div|\\pm|±|\*\*|[⁰¹²³⁴⁵⁶⁷⁸⁹½¼¾])\s*[\d({\\$]|\d\s*[⁰¹²³⁴⁵⁶⁷⁸⁹½¼¾^₀₁₂₃₄₅₆₇₈₉]|^\W*\d+!\s*$"
    r"|(?:±|\\pm)\s*\d|(?:√|\\sqrt|\b(?:sqrt|log|ln|sin|cos|tan|exp|abs|gcd|lcm|max|min))\s*[({]?\s*\d|[A-Za-z]\(\s*-?\d|\|\s*-?\d",
    re.IGNORECASE,
)
_COMPUTED_IN_WORDS = re.compile(
    r"\b(?:twice|double|triple|half|(?:half|third|quarter|fourth|fifth|tenth|square|cube|root) of)\s+\d"
    r"|\d\s*(?:squared|cubed|factorial|choose\s+\d|(?:halves|thirds|quarters|fourths|fifths|tenths|(?:hundred|thousand|"
    r"million)ths)\b|and an? \w)",
    re.IGNORECASE,
)
_MORE = "more|less|fewer|greater|larger|smaller|bigger|higher|lower|above|below|over|under|beyond|up"
_AT_END = r"at (?:the |an? )?(?:very )?(?:most|least|minimum|maximum)"
_BOUND = re.compile(
    r"\d\s*[<>≤≥≲≳]|(?<![-=])[<>≤≥≲≳]=?\s*[$€£]?[+-]?\d|\\(?:leq?|geq?|lt|gt)(?![A-Za-z])|\d\s*\+(?=\s*(?:$|[^\s\d(]|[A-Za-z]))"
    rf"|\b(?:{_AT_END}|(?:{_MORE}) than(?: or equal to)?|(?:below|above) or equal(?: to)?|over|under|above|below|up to|"
    r"beyond|upwards of|in excess of|exceed(?:s|ing)?|minimum(?: of)?|maximum(?: of)?|no (?:more|less|fewer) than|"
    r"mindestens|höchstens|über|unter|mehr als|weniger als|wenigstens|bis zu|maximal|minimal|al menos|como m[aá]ximo|"
    r"m[aá]s de|menos de|hasta|au moins|au plus|plus de|moins de|jusqu['’]à|almeno|не менее|не более|больше|меньше)"
    r"\s+[$€£]?\s?[+-]?\d"
    r"|(?:至少|最多|至多|超过|超過|不到|不足|大于|大於|小于|小於|多于|少于|高于|低于|等于或)\s*\d"
    rf"|(?<![\d,.])\d[\d,.]*\s?[^\W\d]{{0,12}}\s?(?:\b(?:or|and) (?:{_MORE})\b|{_AT_END}\b|(?:min|max)(?:imum)?\b"
    r"|tops\b|plus\b|(?:up|on)wards?\b|以上|以下|以内|以內|多|余|餘|未満|未满|を超|より|이상|이하|미만|초과)",
    re.IGNORECASE,
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DATE = re.compile(
    rf"\b{_MONTH}\.?\s+\d{{1,4}}\b|\d(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}\b|(?<!\d)\d+[-/.]\d+[-/.]\d+|\d+:\d\d|\d\s*[年月日号]"
    r"|\d\s*(?:[ap]\.?m\b|o['’]?clock)|\d(?:st|nd|rd|th)\b|第\s*\d",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\d\s*(?:[-–—~～至到]|\.\.+)\s*\d")
_DENIED = re.compile(
    r"\b(?:not|never|wrong|incorrect|false|nicht|kein|keine|pas|não|nunca|не)\b|n['’]t\b|\bno (?:es|son)\b"
    r"|不是|并非|並非|不等于|错|錯|≠|!=|\\neq?(?![a-z])"
    r"|(?:\b(?:neither|nor|except|(?:all|anything|everything) but|other than)\s|除了|非)\s*\d"
    r"|\d\s?\w{0,12}(?:以外|\s?\?)",
    re.IGNORECASE,
)
_NAME_LETTER = re.compile("[A-Za-z_]")
_GOES_ON = re.compile(r"[.,]\d|[_^/{]")
_FACTOR = re.compile(
    r"\s?-?(?:hundred|thousand|million|billion|trillion|quadrillion|dozen|score|gross|mil|millones|millionen|milliard(?:en)?|mio|mrd|"
    r"lakh|crore|тыс\w*|млн|млрд|милли(?:он|ард)\w*|k|m|b|bn|mn|tn)s?\b|\s?[十百千万萬亿億兆]",
    re.IGNORECASE,
)
"""Words that multiply a number; an unsupported one makes the answer unreadable."""


def numeric(
    model_answer: str,
    ground_truth: Any,
    tolerance: float = 0.0,
    relative: float = 0.0,
    units: Literal["convert", "ignore", "required"] = "convert",
) -> Verdict:
    """Return a verdict with reward 1 if the answer's number is near enough to the reference, else 0.

    Args:
        model_answer: The answer, which must state exactly one number.
        ground_truth: The reference, with or without a unit.
        tolerance: Allowed absolute difference, in the reference's unit.
        relative: Allowed difference as a share of the reference. The larger limit counts.
        units: `convert`: another unit of the same kind is converted, and one side may omit its unit, except percent;
            `required`: an answer without the reference's unit is wrong; `ignore`: units do not count.

    Raises:
        JudgeFailure: the reference is no number, or `units` has another value.
    """
    if units not in ("convert", "ignore", "required"):
        raise JudgeFailure(f"the scorer numeric: units is {units!r}; it must be convert, ignore or required")
    true_number = parse_number(normalize_math(hash_answer(ground_truth) or answer_text(ground_truth)))
    if true_number is None:
        raise JudgeFailure(f"the row's answer {answer_text(ground_truth)[:80]!r} is not a number")
    answer_number = find_stated_number(model_answer)
    if answer_number is None:
        return Verdict(0.0, False, "the answer contains no number, or several")
    if units == "required" and true_number.unit and not answer_number.unit:
        return Verdict(0.0, False, "the answer has no unit")
    value = answer_number.value if units == "ignore" else convert_to_unit(answer_number, true_number)
    if value is None:
        units_of = " and ".join(" ".join(number.unit) or "none" for number in (answer_number, true_number))
        return Verdict(0.0, False, f"the units do not agree: {units_of}")
    distance = abs(value - true_number.value)
    is_right = distance <= max(Fraction(tolerance), Fraction(relative) * abs(true_number.value))
    return Verdict(
        float(is_right),
        is_right,
        f"the answer is {_format_value(value)}, but {_format_value(true_number.value)} is right",
    )


def _format_value(value: Fraction) -> str:
    """Return a value as a decimal with 6 significant digits."""
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.6g}"


def find_stated_number(answer: str) -> StatedNumber | None:
    """Return the only number stated in an answer; None for no number, several different ones, or a computation.

    Bounds, ranges, dates and denied numbers give None, too.
    """
    text = _TAG.sub("", answer.translate(_WIDE)).strip()
    if len(text) > LONGEST or any(
        pattern.search(text) for pattern in (_DENIED, _BOUND, _DATE, _RANGE, _COMPUTED_IN_WORDS)
    ):
        return None
    complete_number = parse_number(normalize_math(text))
    if complete_number is not None:
        return None if _is_factor_unread(complete_number) else complete_number
    if _COMPUTED.search(_AFTER_DIGIT_POWER.sub("", text)):
        return None
    first_number: StatedNumber | None = None
    position = 0
    while (match := _VALUE.search(text, position)) is not None:
        position = match.end("number")
        if not match["money"] and _NAME_LETTER.match(text[match.start() - 1 : match.start()]):
            continue  # the number is part of a name such as x1
        number = _read_value(text, match)
        if number is None:
            return None
        first_number = first_number or number
        if number.value != first_number.value:
            return None
    return first_number


def _read_value(text: str, match: re.Match[str]) -> StatedNumber | None:
    """Return a matched number of a sentence with its unit; None if the value is ambiguous."""
    start, stop = match.start(), match.end("number")
    if text[start - 1 : start] in tuple("\\^.,/#") or _GOES_ON.match(text, stop):
        return None  # part of an expression, a TeX command or a longer number
    sign = "-" if (match["sign"] or "").strip().lower() in ("-", "minus", "negative") else ""
    bare_number = parse_number(normalize_math(f"{sign}{match['number']}"))
    unit = match["unit"] or ""
    number_with_unit = (
        parse_number(normalize_math(f"{sign}{match['money'] or ''}{match['number']}{unit}"))
        if unit or match["money"]
        else bare_number
    )
    if number_with_unit is not None and unit and _FACTOR.match(unit) and _is_factor_unread(number_with_unit):
        return None
    if number_with_unit is None and unit and not unit[0].isspace():
        return None  # letters that are no unit: 5x
    # A word such as "million" after the number must have become part of its value.
    if _FACTOR.match(text, stop) and (
        number_with_unit is None
        or bare_number is None
        or number_with_unit.value == bare_number.value
        and not number_with_unit.unit
    ):
        return None
    return number_with_unit or bare_number


def _is_factor_unread(read: StatedNumber) -> bool:
    """Return True if a word that multiplies, such as "million", was parsed as a unit of the number."""
    words = {word for word in read.unit if len(word) > 1}
    return bool(words) and any(_FACTOR.fullmatch(f" {word}") for word in words)
