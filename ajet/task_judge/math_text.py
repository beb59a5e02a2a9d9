r"""One spelling for the many in which people and models write the same mathematics.

Invariant: `plain` changes how something is written and never what it says: dashes, thin spaces, vulgar fractions,
superscripts, TeX's spacing and fonts, markdown around the whole, and words that only announce the answer.
"""

from __future__ import annotations

import re
import unicodedata

_DASHES = str.maketrans({"−": "-", "–": "-", "‒": "-", "‑": "-", "﹣": "-", "－": "-"})
_SIGNS = {
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": r"\div ", "⁄": "/", "∕": "/", "π": r"\pi ", "∞": r"\infty ",
    "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ", "≤": r"\le ", "≥": r"\ge ", "≈": r"\approx ", "±": r"\pm ",
    "{,}": ",", r"\!": "", r"\$": "$", r"\%": "%", r"\degree": r"^\circ ", r"^{\circ}": r"^\circ ", r"\left": "",
    r"\right": "", r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\lbrace": r"\{", r"\rbrace": r"\}",
    r"\leq": r"\le", r"\geq": r"\ge", r"\displaystyle": "", "{}": "", "**": "", "`": "",
}  # fmt: skip
_ZERO_WIDTH = re.compile("[\u200b\u200c\u200d\u2060\ufeff]")
_SPACES = re.compile(r"(?:[\s\u00a0\u2000-\u200a\u202f\u205f\u3000]|\\[,;: ]|\\q?quad(?![A-Za-z])|(?<!\\)~)+")
_FONTS = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|operatorname|mbox|hbox|boxed|fbox)\s*\{([^{}]*)\}"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
_INLINE = re.compile(r"(?<!\\)\$([^$]*[^$\s\\])\$(?!\d)")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("*", "*"), ("_", "_"), ('"', '"'), ("“", "”"))
_ANNOUNCED = re.compile(
    r"(?:(?:so|thus|therefore|hence|and),?\s+)?(?:(?:the|my|our)\s+)?(?:(?:final|correct|right)\s+)?"
    r"(?:(?:answer|result|solution|value)\s*(?:is|:|=)|it\s+is|it's|we\s+get|that\s+is)\s*(?:exactly\s+)?:?\s*",
    re.IGNORECASE,
)


def plain(text: str) -> str:
    """The text in the one spelling."""
    text = _ZERO_WIDTH.sub("", unicodedata.normalize("NFC", text)).translate(_DASHES)
    text = "".join(_fraction(letter) for letter in text)
    text = _RAISED.sub(lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root.group(1) or root.group(2)}}}", text)
    text = _INLINE.sub(r"\1", _unwrapped(text))
    for sign, spelling in _SIGNS.items():
        if sign in text:
            text = _replaced(text, sign, spelling)
    for _ in range(4):
        unfonted = _FONTS.sub(r" \1 ", text)
        if unfonted == text:
            break
        text = unfonted
    text = re.sub(r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*(\d)(?![\d}])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt\{-1\}", "i", text)
    text = re.sub(r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi ", text)
    text = _unwrapped(_SPACES.sub(" ", text).strip())
    return _unwrapped(_ANNOUNCED.sub("", text, count=1) if _ANNOUNCED.match(text) else text)


def _replaced(text: str, sign: str, spelling: str) -> str:
    if sign[0] == "\\" and sign[-1].isalpha():
        return re.sub(re.escape(sign) + r"(?![A-Za-z])", lambda _: spelling, text)
    return text.replace(sign, spelling)


def _fraction(letter: str) -> str:
    if letter < "\u00bc" or unicodedata.category(letter) != "No" or letter.isdigit():
        return letter
    above, slash, below = unicodedata.normalize("NFKD", letter).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}" if slash and below else letter


def _unwrapped(text: str) -> str:
    """Without full stops at the end, and signs around the whole."""
    while True:
        before = text
        text = text.strip().rstrip(".").strip() if not text.endswith("...") else text.strip()
        for start, end in _WRAPPERS:
            inside = text[len(start) : len(text) - len(end)]
            if (
                len(text) > len(start) + len(end)
                and text.startswith(start)
                and text.endswith(end)
                and end not in inside
            ):
                text = inside
        if text == before:
            return text
