"""Checks for abnormal output, run on every reply with trainable tokens.

Invariants: a rule fires only on text found in no sensible answer. Merely unusual text (mathematics, other scripts,
tables, rulers, binary digits) passes. A check takes the reply as an assistant message and returns the names of the
fired rules. The cost of a check is linear in the text.

`nonsense`: `loop`: a piece with letters repeats at least 10 times in a row over at least 300 characters, or any piece,
digits and punctuation too, repeats at least 100 times over at least 2,000 characters. `special_token`: the text
contains a token of a chat template.

`wrong_toolcall`: `arguments`: a call's arguments are no JSON object. `name`: a call names no function. `leftover`: the
text contains the markup of a call, left because parsing the call failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from ajet.schema.call import Call
from ajet.schema.errors import ConfigError

LETTERS_LENGTH, LETTERS_TIMES = 300, 10
OTHER_LENGTH, OTHER_TIMES = 2_000, 100
STRIDE, KEY = 50, 24
"""Characters between two places of the text where `find_loop` searches, and characters compared at each place."""
_TEMPLATE = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|eot_id|eom_id|start_header_id|end_header_id|begin_of_text|end_of_text"
    r"|system|user|assistant|end)\|>|<(?:start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>"
)
_MARKUP = re.compile(r"</?tool_call>|<function=|</?function_call>|<\|python_tag\|>|\[TOOL_CALLS\]")


def open_checks(names: Sequence[str]) -> Callable[[Call, dict[str, Any]], list[str]] | None:
    """Return the function to call after each reply, or None if no check is named.

    The function returns the fired rules as `check:rule`.

    Raises:
        ConfigError: A name is not the name of a check.
    """
    for name in names:
        if name not in CHECKS:
            raise ConfigError(
                f"There is no output check named {name}.",
                where="ajet.rollout.compute_madness_checklist",
                expected=f"any of {', '.join(CHECKS)}",
            )

    def inspect(call: Call, message: dict[str, Any]) -> list[str]:
        if not call.trained:
            return []
        return [f"{name}:{rule}" for name in names for rule in CHECKS[name](message)]

    return inspect if names else None


def find_nonsense(message: dict[str, Any]) -> list[str]:
    """Return the names of the `nonsense` rules that an assistant message breaks: `loop`, `special_token`."""
    texts = _list_texts(message)
    rules = []
    if any(find_loop(text) is not None for text in texts):
        rules.append("loop")
    if any(_TEMPLATE.search(text) for text in texts):
        rules.append("special_token")
    return rules


def find_loop(text: str) -> tuple[str, int] | None:
    """Return a piece of the text that repeats too often in a row, and the number of repeats. None: no such piece.

    Every STRIDE characters, the next KEY characters are searched further on in the text. The distance to a match is the
    length of a possible piece, and counting its repeats to both sides decides.
    """
    # A longer piece has no room for LETTERS_TIMES repeats in this text.
    longest = len(text) // LETTERS_TIMES
    position = 0
    while position + KEY < len(text):
        step = STRIDE
        period = text.find(text[position : position + KEY], position + 1, position + longest + KEY) - position
        if period > 0:
            piece = text[position : position + period]
            start, stop = position, position + period
            while text.startswith(piece, stop):
                stop += period
            while start and text[start - 1] == text[start - 1 + period]:
                start -= 1
            times = (stop - start) // period
            if _is_excessive(piece, times):
                return piece, times
            # Go on at the end of these repeats, which keeps the cost linear.
            step = max(step, stop - KEY - position)
        position += step
    return None


def _is_excessive(piece: str, times: int) -> bool:
    """True if a piece repeats often enough in a row to be a loop. A piece without letters may be a table or a ruler, so
    it may repeat more often.
    """
    length = times * len(piece)
    if any(character.isalpha() for character in piece):
        return times >= LETTERS_TIMES and length >= LETTERS_LENGTH
    return times >= OTHER_TIMES and length >= OTHER_LENGTH


def find_wrong_toolcall(message: dict[str, Any]) -> list[str]:
    """Return the names of the `wrong_toolcall` rules that an assistant message breaks."""
    rules = []
    calls = [call.get("function") or {} for call in message.get("tool_calls") or []]
    if any(not _is_json_object(call.get("arguments")) for call in calls):
        rules.append("arguments")
    if any(not (isinstance(call.get("name"), str) and call["name"].strip()) for call in calls):
        rules.append("name")
    content = {"content": message.get("content")}
    if any(_MARKUP.search(text) for text in _list_texts(content)):
        rules.append("leftover")
    return rules


def _is_json_object(arguments: Any) -> bool:
    """True if a call's arguments are a dict, or text that parses to a JSON object."""
    if isinstance(arguments, dict):
        return True
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False


def _list_texts(message: dict[str, Any]) -> list[str]:
    """Return the texts of content and reasoning. Content may be a string or a list of blocks."""
    texts = []
    for name in ("content", "reasoning_content"):
        value = message.get(name)
        blocks = value if isinstance(value, list) else [value]
        for block in blocks:
            text = block.get("text") if isinstance(block, dict) else block
            if isinstance(text, str) and text:
                texts.append(text)
    return texts


CHECKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "nonsense": find_nonsense,
    "wrong_toolcall": find_wrong_toolcall,
}
