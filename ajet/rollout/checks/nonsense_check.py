"""Nonsense: the model is caught in a loop, or writes the chat template's own tokens.

Rules: `loop`: the same piece, with letters in it, at least 10 times in a row over at least 300 characters; or any
piece, digits and punctuation too, over at least 2,000 characters and 100 times. `special_token`: a token of a chat
template stands in the text. The cost is linear in the text.
"""

from __future__ import annotations

import re
from typing import Any

from ajet.rollout.checks.text import texts_of

LETTERS_LENGTH, LETTERS_TIMES = 300, 10
OTHER_LENGTH, OTHER_TIMES = 2_000, 100
STRIDE, KEY = 50, 24
_TEMPLATE = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|eot_id|eom_id|start_header_id|end_header_id|begin_of_text|end_of_text"
    r"|system|user|assistant|end)\|>|<(?:start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>"
)


def nonsense(message: dict[str, Any]) -> list[str]:
    """The rules that an assistant message breaks."""
    texts = texts_of(message)
    rules = []
    if any(loop_in(text) is not None for text in texts):
        rules.append("loop")
    if any(_TEMPLATE.search(text) for text in texts):
        rules.append("special_token")
    return rules


def loop_in(text: str) -> tuple[str, int] | None:
    """A repeated piece that is too long to be meant, and how often it stands in a row."""
    longest = len(text) // LETTERS_TIMES
    place = 0
    while place + KEY < len(text):
        step = STRIDE
        period = text.find(text[place : place + KEY], place + 1, place + longest + KEY) - place
        if period > 0:
            piece = text[place : place + period]
            start, stop = place, place + period
            while text.startswith(piece, stop):
                stop += period
            while start and text[start - 1] == text[start - 1 + period]:
                start -= 1
            times = (stop - start) // period
            if _too_much(piece, times):
                return piece, times
            step = max(step, stop - KEY - place)
        place += step
    return None


def _too_much(piece: str, times: int) -> bool:
    length = times * len(piece)
    if any(character.isalpha() for character in piece):
        return times >= LETTERS_TIMES and length >= LETTERS_LENGTH
    return times >= OTHER_TIMES and length >= OTHER_LENGTH
