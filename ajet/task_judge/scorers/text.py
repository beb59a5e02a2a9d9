"""Text scorers: `exact`, `f1`, `contains`, `regex`.

Invariant: the reference is a text, or a list of alternative texts. Both texts are normalized the same way. No scorer
understands sentences: "not Paris" contains "Paris".
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.task_judge.extraction import answer_text

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese, Korean."""
_WIDE = re.compile("[\uff01-\uffee]+")  # full-width and half-width letters
_MINUS = re.compile("[-\u2212](?![^\\W_])")
"""Before a number, read towards the start of the text."""
_IN_NUMBER = re.compile(r"[.,/:^'’]")
_PUNCTUATION = frozenset(string.punctuation)
PATTERN_SECONDS = 1.0
"""Time limit of a pattern; a slower match fails."""


def fold_width(text: str) -> str:
    """Return composed letters of one width: `é` for `e` and its accent, `A` for `Ａ`, `パ` for `ﾊﾟ`."""
    return unicodedata.normalize("NFC", _WIDE.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), text))


def fold_text(text: str) -> str:
    """Return the text in lower case, with single blanks and letters of one width; ligatures stay single letters."""
    folded = "".join(
        folded_letter if len(folded_letter := letter.casefold()) == 1 else letter.lower() for letter in fold_width(text)
    )
    return " ".join(folded.split())


def squad(text: str) -> str:
    """Return the text as SQuAD and HotpotQA normalize it: lower case, no punctuation, articles and extra white space.

    A text that would become empty keeps punctuation and articles, so "a" differs from "the".
    """
    letters = "".join(
        letter
        for letter in fold_width(text).lower()
        if letter not in _PUNCTUATION and not unicodedata.category(letter).startswith("P")
    )
    return " ".join(_ARTICLES.sub(" ", letters).split()) or fold_text(text)


_NORMALISED: dict[str, Callable[[str], str]] = {"plain": fold_text, "squad": squad, "none": str.strip}


def read_truths(ground_truth: Any) -> list[str]:
    """Return the alternative reference texts of a row's answer: the entries of a list, else the answer alone.

    A list of dicts is one text in content blocks.
    """
    has_several = isinstance(ground_truth, (list, tuple)) and not all(isinstance(truth, dict) for truth in ground_truth)
    return [answer_text(truth) for truth in ground_truth] if has_several else [answer_text(ground_truth)]


def exact(model_answer: str, ground_truth: Any, normalize: str = "plain") -> tuple[float, bool]:
    """Return (1.0, True) if the answer equals one of the references, else (0.0, False).

    Args:
        normalize: `plain`: case and white space do not count; `squad`: nor do punctuation and articles; `none`: only
            white space at both ends does not count.

    Raises:
        JudgeFailure: `normalize` has another value.
    """
    if normalize not in _NORMALISED:
        raise JudgeFailure(f"the scorer exact: normalize is {normalize!r}; it must be one of {', '.join(_NORMALISED)}")
    normalizer = _NORMALISED[normalize]
    is_right = normalizer(model_answer) in {normalizer(truth) for truth in read_truths(ground_truth)}
    return float(is_right), is_right


def f1(model_answer: str, ground_truth: Any) -> tuple[float, bool]:
    """Return (F1 score, success) of an answer: the harmonic mean of precision and recall over words.

    The best score over the references counts (SQuAD, arXiv 1606.05250, section 6.1). Success needs equal texts. In
    scripts without spaces each letter is a word (CMRC 2018).
    """
    best_score = max(_word_f1(_split_words(model_answer), _split_words(truth)) for truth in read_truths(ground_truth))
    return best_score, best_score == 1.0 and exact(model_answer, ground_truth, "squad")[1]


def _split_words(text: str) -> list[str]:
    """Return the words of a text normalized as by SQuAD; in scripts without spaces each letter is a word."""
    return _UNSPACED.sub(r" \g<0> ", squad(text)).split()


def _word_f1(answer: list[str], expected: list[str]) -> float:
    """Return the F1 score of the words that an answer shares with the expected words, counted with repetition."""
    common = sum((Counter(answer) & Counter(expected)).values())
    return 2 * common / (len(answer) + len(expected)) if common else 0.0


def contains(
    reply: str, ground_truth: Any, all: bool = False, ignore_case: bool = True, whole_words: bool = True
) -> tuple[float, bool]:
    """Return (1.0, True) if the reply contains a reference, else (0.0, False).

    Args:
        all: True to require every reference instead of any.
        ignore_case: False to require equal case.
        whole_words: True to require complete words: "incorrect" does not contain "correct", nor "3.14" "3".
    """
    text, *references = (
        fold_text(original) if ignore_case else " ".join(fold_width(original).split())
        for original in (reply, *read_truths(ground_truth))
    )
    are_contained = [bool(reference) and _stands_in(reference, text, whole_words) for reference in references]
    is_right = False not in are_contained if all else any(are_contained)
    return float(is_right), is_right


def _stands_in(expected: str, text: str, whole_words: bool) -> bool:
    """Return True if `text` contains `expected`, with `whole_words` only as complete words and numbers."""
    if not whole_words:
        return expected in text
    position = text.find(expected)
    while position >= 0:
        end = position + len(expected)
        # Both from the match outwards, so the text before is reversed.
        before, after = text[max(position - 2, 0) : position][::-1], text[end : end + 2]
        is_negative = expected[0].isdigit() and _MINUS.match(before)
        if not is_negative and not _is_continued(before, expected[0]) and not _is_continued(after, expected[-1]):
            return True
        position = text.find(expected, position + 1)
    return False


def _is_continued(neighbours: str, edge: str) -> bool:
    """Return True if a word or number goes on beyond a match.

    Args:
        neighbours: At most two letters next to the match, the nearest first.
        edge: The match's letter next to them.
    """
    if not neighbours:
        return False
    if edge.isdigit() and _IN_NUMBER.match(neighbours) and neighbours[1:2].isdigit():
        return True
    is_letter = neighbours[0].isalnum() or unicodedata.category(neighbours[0]).startswith("M")
    return is_letter and edge.isalnum() and not _UNSPACED.match(neighbours[0]) and not _UNSPACED.match(edge)


class RegexScorer:
    """Scores 1 if the reply matches a regular expression: `pattern`, or without it the row's answer.

    With `full`, the complete extracted answer must match instead of a part of the reply.
    """

    def __init__(self, config: Any, pattern: str | None = None, full: bool = False, ignore_case: bool = False) -> None:
        """Compile the pattern. Raises ConfigError for an invalid one."""
        import regex

        self._flags = regex.IGNORECASE if ignore_case else 0
        self._matches_full_text, self._pattern = full, None
        if pattern is not None:
            try:
                self._pattern = regex.compile(pattern, self._flags)
            except regex.error as error:
                raise ConfigError(f"The scorer regex: {pattern!r} is not a valid pattern: {error}.",
                                  where="ajet.task_judge.scorers") from error  # fmt: skip

    def __call__(self, reply: str, model_answer: str, ground_truth: Any = None) -> tuple[float, bool] | None:
        """Return (1.0, True) for a match, else (0.0, False); None without a pattern in the settings and the row.

        A match that takes longer than PATTERN_SECONDS fails.

        Raises:
            JudgeFailure: the row's pattern is invalid.
        """
        import regex

        pattern = self._pattern
        if pattern is None:
            if ground_truth is None:
                return None
            try:
                pattern = regex.compile(answer_text(ground_truth), self._flags)
            except regex.error as error:
                raise JudgeFailure(f"the row's answer is not a valid pattern: {error}") from error
        try:
            match = (
                pattern.fullmatch(model_answer, timeout=PATTERN_SECONDS)
                if self._matches_full_text
                else pattern.search(reply, timeout=PATTERN_SECONDS)
            )
        except TimeoutError:
            return 0.0, False
        return float(match is not None), match is not None
