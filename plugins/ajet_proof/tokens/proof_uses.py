"""Check recorded tool uses against each other and against tool messages.

Invariant: a use contradicts its hash chain (a changed field of the use or an earlier one), or the tool message of its
call. Only the first message with an id is checked: a client may shorten its history later, as a fork. Redacted texts
are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet.record.tool_uses import chain_digest, encode_uses
from ajet.schema.call import Call
from ajet.schema.messages import extract_text
from ajet.schema.tool_use import ToolUse, compute_digest
from ajet_proof.tokens.proof_findings import REDACTED, WrongToken


def prove_uses(
    uses: Sequence[ToolUse], calls: Sequence[Call], messages: Sequence[Mapping[str, Any]], episode: str
) -> Iterator[tuple[ToolUse, WrongToken | None]]:
    """Yield each checked tool use, with its problem or None."""
    answers = _find_tool_messages(messages)
    before = ""
    for at, use in enumerate(uses):
        wrong = None
        blotted = REDACTED in str(encode_uses([use]))
        if use.chain:
            if not blotted and chain_digest(before, use) != use.chain:
                wrong = WrongToken(episode, 0, 0, f"tool use {at} ({use.name}) was changed after recording")
            yield use, wrong
        before = use.chain
    for call_id, index in answers.items():
        named = [use for use in uses if use.call_id == call_id]
        text = extract_text(messages[index])
        blotted = REDACTED in text or any(REDACTED in use.result for use in named)
        if named and not blotted and not any(_is_result(text, use) for use in named):
            call = next((call.index for call in calls if index in call.messages), 0)
            what = f"the tool message {call_id} differs from the recorded result of {named[0].name}"
            yield named[0], WrongToken(episode, call, 0, what)


def _find_tool_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the index of the first tool message for each tool call id."""
    found: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "tool" and isinstance(call_id := message.get("tool_call_id"), str):
            found.setdefault(call_id, index)
    return found


def _is_result(text: str, use: ToolUse) -> bool:
    if use.shown_whole and compute_digest(text) != use.digest:
        return False
    return text.startswith(use.result) and len(text) == use.shown
