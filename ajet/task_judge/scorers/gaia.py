"""Rules of the GAIA leaderboard, with four deviations.

Invariant: text that is no number matches no number; the leaderboard turns such text into infinity, so `foo` matches
`inf` (alone and in lists). None and an empty reference match no answer; on the leaderboard `!!!` matches an empty
reference and None matches the text "None". All other verdicts equal the leaderboard's.
"""

from __future__ import annotations

import re
import string
from typing import Any

from ajet.task_judge.extraction import answer_text, tagged_answer

_SIGNS = str.maketrans("", "", "$%,")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPLIT = re.compile("[,;]")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def question_scorer(model_answer: str | None, ground_truth: str | None) -> bool:
    """Return True if an answer is right by the rules of the GAIA leaderboard; the reference selects the rule.

    Numbers are compared by value, lists piece by piece in order, and other texts without white space, case and
    punctuation.
    """
    if model_answer is None or ground_truth is None or not ground_truth.strip():
        return False
    if _parse_float(ground_truth) is not None:
        return _same_number(model_answer, ground_truth)
    if _SPLIT.search(ground_truth):
        answer_pieces, truth_pieces = _SPLIT.split(model_answer), _SPLIT.split(ground_truth)
        return len(answer_pieces) == len(truth_pieces) and all(
            _same_piece(*pair) for pair in zip(answer_pieces, truth_pieces, strict=True)
        )
    return fold_punctuation(model_answer) == fold_punctuation(ground_truth)


def gaia(solution_str: str, reply: str, ground_truth: Any) -> tuple[float, bool]:
    """Return (1.0, True) if the answer is right by the rules of the GAIA leaderboard, else (0.0, False).

    Args:
        solution_str: The complete answer text. The content of its first <answer> tags outside of reasoning is the
            answer.
        reply: The answer without such tags.
        ground_truth: The right answer.
    """
    answer = tagged_answer(solution_str, first=True)
    is_right = question_scorer(reply if answer is None else answer, answer_text(ground_truth))
    return float(is_right), is_right


def gaia_reward_func(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """Return 1.0 if the content of the first <answer> tags is right, else 0.0: AWorld's reward function for verl.

    The parameters are those of verl's reward functions; `data_source` and `extra_info` are not used.
    """
    match = _TAGGED.search(solution_str or "")
    return float(match is not None and question_scorer(match[1].strip(), answer_text(ground_truth)))


def _same_piece(answer: str, expected: str) -> bool:
    """Return True if a piece of a list is right: compared as numbers if the expected piece is one, else as text."""
    return (
        _same_number(answer, expected)
        if _parse_float(expected) is not None
        else fold_spaces(answer) == fold_spaces(expected)
    )


def _same_number(answer: str, expected: str) -> bool:
    """Return True if a text without `$`, `%` and `,` has the expected value. A text that is no number is wrong."""
    return _parse_float(answer.translate(_SIGNS)) == _parse_float(expected)


def _parse_float(text: str) -> float | None:
    """Return the text's value as Python reads floats, or None if the text is no float."""
    try:
        return float(text)
    except ValueError:
        return None


def fold_punctuation(text: str) -> str:
    """Return the text in lower case without white space and ASCII punctuation."""
    return fold_spaces(text).translate(_PUNCTUATION)


def fold_spaces(text: str) -> str:
    """Return the text in lower case without white space."""
    return re.sub(r"\s", "", text).lower()
