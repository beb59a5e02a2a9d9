"""The reward of the GAIA example, by the five functions of AWorld's page.

Verdicts equal the leaderboard's with four exceptions, listed in `ajet.task_judge.scorers.gaia`.
"""

from __future__ import annotations

import re

from ajet.task_judge.scorers.gaia import fold_punctuation, fold_spaces
from ajet.task_judge.scorers.gaia import gaia_reward_func as gaia_reward_func
from ajet.task_judge.scorers.gaia import question_scorer as question_scorer


def normalize_number_str(number_str: str) -> float:
    """Return the number of a text with `$`, `%` and `,`, or infinity for other text."""
    try:
        return float(number_str.translate(str.maketrans("", "", "$%,")))
    except ValueError:
        return float("inf")


def split_string(s: str, char_list: list[str] | None = None) -> list[str]:
    """Split `s` at the characters of `char_list` (default `,` and `;`)."""
    return re.split(f"[{''.join(char_list or [',', ';'])}]", s)


def normalize_str(input_str: str, remove_punct: bool = True) -> str:
    """Remove white space and case, and punctuation if `remove_punct`."""
    return fold_punctuation(input_str) if remove_punct else fold_spaces(input_str)
