"""Recorded tool uses, held to each other and to the messages that carried their results."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from ajet.record.tool_uses import RESULT, bound_tool_use, chain_digest
from ajet.schema.tool_use import ToolUse, compute_digest
from ajet_proof.tokens.proof import prove_uses

LONG = "z" * (RESULT + 5)


def chain(*uses: ToolUse) -> list[ToolUse]:
    """As a session keeps them."""
    made: list[ToolUse] = []
    for use in map(bound_tool_use, uses):
        made.append(replace(use, chain=chain_digest(made[-1].chain if made else "", use)))
    return made


def use(result: str, call_id: str, **more: Any) -> ToolUse:
    return ToolUse("f", {"x": 1}, result, more.pop("digest", compute_digest(result)), 1.0, 2.0, call_id=call_id, **more)


USES = chain(use("seen", "a"), use("part", "b", digest=compute_digest("partition"), whole=9), use(LONG, "c"))


def message(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def wrong(uses: list[ToolUse], *messages: dict[str, Any]) -> list[str]:
    return [found.what for _, found in prove_uses(uses, [], messages, "e") if found is not None]


def test_messages_that_are_the_results_are_proven() -> None:
    parts = [{"type": "text", "text": "se"}, {"type": "text", "text": "en"}]
    assert wrong(USES, message("a", parts), message("b", "part"), message("c", LONG)) == []
    assert wrong(USES, message("a", "seen"), message("a", "cleared"), message("z", "of no recorded use")) == []
    assert wrong(USES, message("a", "[redacted KEY]")) == []


@pytest.mark.parametrize(
    ("call_id", "content"), [("a", "unseen"), ("a", "see"), ("b", "party"), ("c", LONG[:-1]), ("c", LONG[:-1] + "y")]
)
def test_a_message_that_is_another_is_found(call_id: str, content: str) -> None:
    (what,) = wrong(USES, message(call_id, content))
    assert f"the tool message {call_id}" in what


@pytest.mark.parametrize("name", [each.name for each in fields(ToolUse)])
def test_a_changed_field_of_a_use_is_found(name: str) -> None:
    value = getattr(USES[1], name)
    changed = {"x": 2} if name == "arguments" else f"{value}x" if isinstance(value, str) else not value
    changed = value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else changed
    assert wrong([USES[0], replace(USES[1], **{name: changed}), USES[2]])


def test_a_use_that_is_gone_or_moved_is_found() -> None:
    assert wrong([USES[0], USES[2]]) and wrong([USES[1], USES[0], USES[2]])
