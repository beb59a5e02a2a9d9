"""Units, currencies and magnitudes of answers, and conversions between units of one kind.

Invariant: a unit is in these lists with the listed spelling: symbols case-sensitive, names in any case and number.
Other text after a number is no unit, so `5 incorrect` never states 5.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache

MAGNITUDES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "lakh": 10**5, "crore": 10**7, "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8,
}  # fmt: skip
CURRENCY_MAGNITUDES = {"k": 10**3, "K": 10**3, "M": 10**6, "m": 10**6, "bn": 10**9, "B": 10**9, "b": 10**9}
"""Suffixes that are magnitudes after an amount of money only: `$5k`."""

_METRIC = """
length 1 m meter metre
mass 1 g gram gramme
time 1 s second sec
volume 1/1000 L,l liter litre
energy 1 J joule
power 1 W watt
voltage 1 V volt
current 1 A ampere amp
frequency 1 Hz hertz
force 1 N newton
pressure 1 Pa pascal
resistance 1 Ω ohm
amount 1 mol mole
charge 1 C coulomb
flux 1 T tesla
capacitance 1 F farad
temperature 1 K kelvin
energy 1.602176634e-19 eV electronvolt
"""
"""Kind, size, symbols, names; combined with every prefix."""
_PREFIXES = {
    "": ("", 0), "k": ("kilo", 3), "c": ("centi", -2), "m": ("milli", -3), "µ": ("micro", -6), "n": ("nano", -9),
    "M": ("mega", 6), "G": ("giga", 9),
}  # fmt: skip
_OTHERS = """
length 0.0254 in inch inches
length 0.3048 ft foot feet
length 0.9144 yd yard
length 1609.344 mi mile
length 1e-10 Å angstrom
length 1 米
length 0.01 厘米
length 0.001 毫米
length 1000 千米,公里
mass 1e6 ton,tons tonne 吨
mass 453.59237 lb,lbs pound
mass 28.349523125 oz ounce
mass 1 克
mass 1000 千克,公斤
time 1 秒
time 60 min minute mins 分钟
time 3600 h,hr,hrs hour 小时
time 86400 day day 天
time 604800 week week
months 1 month month
months 12 yr year
volume 0.003785411784 gal gallon
volume 0.000946352946 qt quart
volume 0.000473176473 pt pint
volume 1/1000 升
volume 1/1000000 毫升
energy 1e-7 erg
energy 4.184 cal calorie
celsius 1 °C celsius
fahrenheit 1 °F fahrenheit
angle 1 ° degree deg 度
radian 1 rad radian
percent 1 %
dollar 1 $,USD,US$ dollar
dollar 0.01 ¢ cent
euro 1 €,EUR euro
sterling 1 £,GBP pound
sterling 0.01 pence penny pence
yen 1 ¥,JPY yen
yuan 1 ¥,CNY,RMB yuan 元 块
yuan 0.1 角
rupee 1 ₹,INR,Rs rupee
unit 1 unit unit
"""
_COUNTED = """
animal apple arrangement attempt bag ball balloon banana basket bean bear bee bicycle bike bird block blouse boat bolt
book bottle bouquet bowl box boy brick brother bug bus cake calf can candle candy car card carrot cat cell chair
chapter chicken child chip chocolate class clown coconut coin color combination computer cookie cow crayon cube cup
customer cycle deer desk diamond digit dish divisor dog doll donut door download dress drink driver duck edge egg
element employee envelope episode family fish flower folder fork fruit game gift girl glass goat goose graph grape
group guest guitar hat hen horse house integer item jar juice kid kitten knife lady lamp laptop leaf lemon letter line
machine magazine man marble match meal member message mouse muffin mug necklace notebook nut orange outcome page pair
pan pancake paper passenger patient path peach pear pen pencil penguin permutation person photo picture pie piece pig
pizza plant plate player point potato puppy puzzle question rabbit ring road rock room root rose row sandwich sheep
shell shelf shirt shoe sister slice snack sock solution song soup spoon stamp star step sticker stone store story
strawberry student subset sweet swimmer table teacher team ticket tile tomato toy train tree triangle truck vase
vegetable vehicle vertex video visitor vote way window woman worker 人 个 只 本 张 页 棵 支 辆 岁
"""
"""Countable things of word problems."""
_PLURALS = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "geese": "goose",
    "leaves": "leaf", "shelves": "shelf", "knives": "knife", "calves": "calf", "vertices": "vertex",
}  # fmt: skip
_PHRASES = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?i:per ?cents?)(?![A-Za-z])", "%"),
        (r"\\mu ?", "µ"),
        (r"\\AA(?![A-Za-z])", "Å"),
        (r"\\Omega", "Ω"),
        (r"(?:\^\\circ|degrees?) ?(?:C(?![a-z])|Celsius)", "°C"),
        (r"(?:\^\\circ|degrees?) ?(?:F(?![a-z])|Fahrenheit)", "°F"),
        (r"\^\\circ", " °"),
        (r"(?<![A-Za-z])kph(?![A-Za-z])", "km/h"),
        (r"(?<![A-Za-z])mph(?![A-Za-z])", "mi/h"),
        (r"(?<![A-Za-z])sq\.? ", "square "),
        (r"平方([米厘千公毫里]+)", r"\1^2"),
        (r"立方([米厘毫]+)", r"\1^3"),
        (r"US dollar", "dollar"),
        (r"(?<=year) old$|(?<=years) old$", ""),
    )
)
_SPELLED = {"KM": "km", "Km": "km", "KG": "kg", "Kg": "kg", "CM": "cm", "MM": "mm", "ML": "mL", "HZ": "Hz"}
_TOKEN = re.compile(
    r" ?(?:(?P<join>/|\\cdot|\*|per(?![A-Za-z]))|(?P<power>square|cubic)(?![A-Za-z])"
    r"|(?P<word>US\$|[%$€£¥₹¢°]?[A-Za-zµΩÅ]+\.?|[%$€£¥₹¢°]|[\u4e00-\u9fff]+)(?:\^?\{?(?P<exponent>-?\d)\}?)?)"
)
_LONGEST = 80

Unit = tuple[str, ...]
"""Factors in alphabetical order, such as ("h^-1", "km"); () without a unit."""


def _build_meanings() -> dict[str, list[tuple[str, Fraction]]]:
    """Return the possible (kind, size) of each spelling of a unit.

    Symbols are keys as written ("km"). Names are keys in lower case with a leading blank (" kilometer"), so that a name
    never equals a symbol.
    """
    meanings: dict[str, list[tuple[str, Fraction]]] = {}
    for table, prefixes in ((_METRIC, _PREFIXES), (_OTHERS, {"": ("", 0)})):
        for entry in table.strip().splitlines():
            kind, size, symbols, *names = entry.split()
            for prefix, (name, power) in prefixes.items():
                meaning = (kind, Fraction(size) * Fraction(10) ** power)
                for spelling in [prefix + word for word in symbols.split(",")] + [f" {name}{word}" for word in names]:
                    meanings.setdefault(spelling, []).append(meaning)
    for noun in _COUNTED.split():
        meanings.setdefault(f" {noun}", [(noun, Fraction(1))])
    return meanings


_MEANINGS = _build_meanings()


def parse_unit(text: str) -> Unit | None:
    """Return the unit of a text such as `km/h`; () for an empty text, None if a word of the text is no unit."""
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return None if text else ()
    for pattern, spelling in _PHRASES:
        text = pattern.sub(spelling, text)
    text = text.strip()
    factors: dict[str, int] = {}
    offset, direction, power = 0, 1, 1
    while offset < len(text):
        token = _TOKEN.match(text, offset)
        if token is None:
            return None
        offset = token.end()
        if token["join"]:  # factors after `/` or `per` are divisors
            direction = -1 if token["join"] in ("/", "per") else direction
        elif token["power"]:
            power = 2 if token["power"] == "square" else 3
        else:
            word = _find_spelling(token["word"])
            if word is None or word in factors:
                return None
            factors[word] = direction * power * int(token["exponent"] or 1)
            power = 1
    return tuple(sorted(name if exponent == 1 else f"{name}^{exponent}" for name, exponent in factors.items())) or None


def get_ratio(one: Unit, other: Unit) -> Fraction | None:
    """Return how many units `other` one unit `one` is, as for km and m 1000; None for units of different kinds."""
    return next(
        (
            size / other_size
            for kinds, size in _list_meanings(one)
            for other_kinds, other_size in _list_meanings(other)
            if kinds == other_kinds
        ),
        None,
    )


def _find_spelling(word: str) -> str | None:
    """Return the list's spelling of a word: a symbol, or a name in any case and number."""
    symbol = _SPELLED.get(word, word).removesuffix(".")
    if symbol in _MEANINGS:
        return symbol
    name = word.lower().removesuffix(".")
    name_forms = (
        name,
        _PLURALS.get(name),
        name.removesuffix("s"),
        name.removesuffix("es"),
        f"{name.removesuffix('ies')}y",
    )
    return next((name_form for name_form in name_forms if f" {name_form}" in _MEANINGS), None)


@lru_cache(maxsize=1024)
def _list_meanings(unit: Unit) -> list[tuple[dict[str, int], Fraction]]:
    """Return each meaning of a unit as (power by kind, size); a pound is a mass and money.

    A single letter that is no unit has its own kind.
    """
    readings = [(Counter[str](), Fraction(1))]
    for factor in unit:
        word, _, exponent = factor.partition("^")
        power = int(exponent or 1)
        meanings = [*_MEANINGS.get(word, []), *_MEANINGS.get(f" {word}", [])] or [(f"letter {word}", Fraction(1))]
        readings = [
            (_add_kind(kinds, kind, power), size * scale**power) for kinds, size in readings for kind, scale in meanings
        ]
    return [({kind: power for kind, power in kinds.items() if power}, size) for kinds, size in readings]


def _add_kind(kinds: Counter[str], kind: str, times: int) -> Counter[str]:
    """Return the powers by kind after adding a factor. A volume is a length to the power of 3, so `L` equals `dm^3`."""
    if kind == "volume":
        kind, times = "length", 3 * times
    return Counter({**kinds, kind: kinds[kind] + times})
