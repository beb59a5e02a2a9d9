"""Tool uses held to what else the record says: to each other, and to the tool messages that entered the context.

Invariant: a use is contradicted by its chain (any field of it or of an earlier one was changed) or by the message that
answers its call (that is not what the tool gave). Only the first message under an id is held: what a client makes of it
later (a shortened history) is its own doing, and a fork. A text from which the record blots out a secret is held to
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet.record.tool_uses import chained, encode_uses
from ajet.schema.call import Call
from ajet.schema.messages import extract_text
from ajet.schema.tool_use import ToolUse, compute_digest
from ajet_proof.tokens.proof_findings import WrongToken

REDACTED = "[redacted "


def prove_uses(
    uses: Sequence[ToolUse], calls: Sequence[Call], messages: Sequence[Mapping[str, Any]], episode: str
) -> Iterator[tuple[ToolUse, WrongToken | None]]:
    """Each use that something could contradict, and what does."""
    answers = _answers(messages)
    before = ""
    for at, use in enumerate(uses):
        wrong = None
        blotted = REDACTED in str(encode_uses([use]))
        if use.chain:
            if not blotted and chained(before, use) != use.chain:
                wrong = WrongToken(episode, 0, 0, f"tool use {at} ({use.name}) is not as it was recorded")
            yield use, wrong
        before = use.chain
    for call_id, index in answers.items():
        named = [use for use in uses if use.call_id == call_id]
        text = extract_text(messages[index])
        blotted = REDACTED in text or any(REDACTED in use.result for use in named)
        if named and not blotted and not any(_is_result(text, use) for use in named):
            call = next((call.index for call in calls if index in call.messages), 0)
            what = f"the tool message {call_id} is not what the recorded use of {named[0].name} answered"
            yield named[0], WrongToken(episode, call, 0, what)


def _answers(messages: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The first tool message of each call's id."""
    found: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "tool" and isinstance(call_id := message.get("tool_call_id"), str):
            found.setdefault(call_id, index)
    return found


def _is_result(text: str, use: ToolUse) -> bool:
    if use.shown_whole and compute_digest(text) != use.digest:
        return False
    return text.startswith(use.result) and len(text) == use.shown
