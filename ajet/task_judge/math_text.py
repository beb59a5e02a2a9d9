r"""Normalizes the many spellings of mathematics by people and models.

Invariant: `normalize_math` changes spelling, never meaning: digits and signs of other scripts, dashes, thin spaces,
vulgar fractions, superscripts, TeX spacing, fonts and short forms, surrounding markdown and punctuation, and
introductory words.
"""

from __future__ import annotations

import re
import unicodedata

_DASHES = str.maketrans({"−": "-", "–": "-", "‒": "-", "‑": "-", "﹣": "-", "－": "-"})
_SIGNS = {
    "×": r"\times ", "·": r"\cdot ", "⁄": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "±": r"\pm ",
    "≠": r"\neq ", "∈": r"\in ", "ℝ": r"\mathbb{R}", "∛": r"\sqrt[3] ", "℃": r"^\circ C", "…": "...",
    r"\varnothing": r"\emptyset", r"\{\}": r"\emptyset", ">=": r"\ge ", "<=": r"\le ", r"\ldots": "...",
    r"\dots": "...", "、": ",", "。": ".", "٪": "%", "٫": ".", "٬": ",", "{,}": ",", r"\$": "$", r"\%": "%",
    r"\degree": r"^\circ ", r"^{\circ}": r"^\circ ", r"\left": "", r"\right": "", r"\dfrac": r"\frac",
    r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\colon": ":",
    "⟨": r"\langle ", "⟩": r"\rangle ",    r"\displaystyle": "", r"\bf": "",
    r"\rm": "", r"\it": "", "{}": "", "`": "",
}  # fmt: skip
_ZERO_WIDTH = re.compile("[\u200b\u200c\u200d\u2060\ufeff]")
_SPACES = re.compile(r"(?:[\s\u00a0\u2000-\u200a\u202f\u205f\u3000]|(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|(?<!\\)~)+")
_FONTS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|operatorname|[mhf]box|boxed|underline|emph|boldsymbol|bm)"
    r"\s*\{([^{}]*)\}"
)
_LOOKS = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}|\\[bB]igg?[lrm]?(?![A-Za-z])")
"""Colors and sizes of brackets."""
_PART = r"((?:[^{}]|\{[^{}]{0,200}\}){0,200}?)"
_TEX = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\\frac\s*([A-Za-z\d])", r"\\frac{\1}"),
        (r"\\frac\s*(\{[^{}]*\})\s*([A-Za-z\d])", r"\\frac\1{\2}"),
        (rf"(?:^|\{{) ?{_PART} ?\\over(?![A-Za-z]) ?{_PART} ?(?:$|\}})", r"\\frac{\1}{\2}"),
        (r"\\sqrt\[(\d)\] ?([A-Za-z\d])", r"\\sqrt[\1]{\2}"),
        (r"\\sqrt\{-1\}", "i"),
        (r"(?<![A-Za-z\\])(sin|cos|tan|log|ln|exp)(?![A-Za-z])", r"\\\1 "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])inf(?:inity)?(?![A-Za-z])", r"\\infty "),
        (r"(?<=[)\]])\s*U\s*(?=[(\[])", r"\\cup "),
        (r"(\.\d{0,30}?)\\dot\s*\{?(\d)\}?", r"\1\\overline{\2}"),
        (r"(\.\d{0,30}?)(\d)\2{2,}\.\.\.", r"\1\\overline{\2}"),
        (r"\s*(\^|_)\s*", r"\1"),
        (r":=", "="),
        (r"^ ?[A-Za-z] ?\\in(?![a-z])", ""),
        (r"^ ?\\\{ ?([A-Za-z]) ?(?:\\mid|\||:) ?(\1.*)\\\}$", r"\2"),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"\*\*", ""),
    )
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
_INLINE = re.compile(r"(?<!\\)\$([^$]*[^$\s\\])\$(?!\d)")
_WRAPPERS = (
    (r"\(", r"\)"), (r"\[", r"\]"), ("*", "*"), ("_", "_"), ('"', '"'), ("“", "”"), ("'", "'"),
)  # fmt: skip
_ANNOUNCED = re.compile(
    r"(?:(?:so|thus|therefore|hence|and),?\s+)?(?:(?:the|my|our)\s+)?(?:(?:final|correct|right)\s+)?"
    r"(?:(?:answer|result|solution|value)\s*(?:is|:|=)|it\s+is|it's|we\s+get|that\s+is)\s*(?:exactly\s+)?:?\s*"
    r"|答案(?:是|为)?:?\s*",
    re.IGNORECASE,
)


def normalize_math(text: str) -> str:
    """Return an answer in one spelling of its signs, spaces, TeX commands and numbers, without introductory words.

    The meaning is unchanged, so two normalized texts can be compared.
    """
    text = _ZERO_WIDTH.sub("", unicodedata.normalize("NFC", text)).translate(_DASHES)
    text = "".join(map(_normalize_letter, text)) if not text.isascii() else text
    # A "~" before a value means "about"; after a word it is TeX's hard space.
    text = re.sub(r"(?<![\w)}\].,:;$\\])~", r"\\approx ", text)
    text = re.sub(r"(?<!\\)\\!\s*", "", text)  # TeX's negative space
    text = _RAISED.sub(lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root.group(1) or root.group(2)}}}", text)
    text = _INLINE.sub(r"\1", _strip_wrappers(text))
    for sign, spelling in _SIGNS.items():
        if sign in text:
            text = _replace_sign(text, sign, spelling)
    text = _LOOKS.sub("", text)
    for _ in range(4):  # font commands may be nested
        unfonted = _FONTS.sub(r" \1 ", text)
        if unfonted == text:
            break
        text = unfonted
    text = _SPACES.sub(" ", text)
    for pattern, spelling in _TEX:
        text = pattern.sub(spelling, text)
    text = _strip_wrappers(_SPACES.sub(" ", text).strip())
    return _strip_wrappers(_ANNOUNCED.sub("", text, count=1) if _ANNOUNCED.match(text) else text)


def _replace_sign(text: str, sign: str, spelling: str) -> str:
    r"""Replace a sign or TeX command by its normalized spelling. `\left` is not replaced within `\leftarrow`."""
    if sign[0] == "\\" and sign[-1].isalpha():
        return re.sub(re.escape(sign) + r"(?![A-Za-z])", lambda _: spelling, text)
    return text.replace(sign, spelling)


def _normalize_letter(letter: str) -> str:
    """Return a full-width letter, a digit of another script or a vulgar fraction in ASCII and TeX.

    Other letters are returned unchanged.
    """
    if "\uff01" <= letter <= "\uff5e":  # the full-width forms of ASCII
        return chr(ord(letter) - 0xFEE0)
    if letter.isdecimal():
        return str(unicodedata.decimal(letter))
    if letter < "\u00bc" or unicodedata.category(letter) != "No" or letter.isdigit():
        return letter
    # U+2044 is the fraction slash: "½" decomposes to "1⁄2".
    above, slash, below = unicodedata.normalize("NFKD", letter).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}" if slash and below else letter


def _strip_wrappers(text: str) -> str:
    """Return the text without final punctuation, unmatched brackets, and quotes or marks around the complete text."""
    while True:
        previous = text
        text = text.strip()
        if not text.endswith("..."):
            stripped = text.rstrip(" .,;:").lstrip(" :")
            text = text if stripped.endswith("\\") else stripped
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1]
        if text.endswith(")") and not re.search(r"[(\[,]", text):
            text = text[:-1]
        if text.startswith("(") and not re.search(r"[)\],]", text):
            text = text[1:]
        for start, end in _WRAPPERS:
            content = text[len(start) : len(text) - len(end)]
            if (
                len(text) > len(start) + len(end)
                and text.startswith(start)
                and text.endswith(end)
                and end not in content
            ):
                text = content
        if text == previous:
            return text
