"""Debug finds messages that attempts share, in what was sent."""

from __future__ import annotations

from typing import Any

import pytest

from ajet import Task
from ajet.commands.agent_hints import shared_messages_hint
from tests.commands.test_unasked_question import played

FIRST, SECOND = Task(task_id="1", main_query="What is 1 + 1?"), Task(task_id="2", main_query="What is 2 + 2?")
EXAMPLE = Task(task_id="3", main_query="What is 3 + 3?", metadata={"example": "What is 1 + 1?"})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("sent", "is_found"),
    [
        ([user(SECOND.main_query)], False),
        ([user(FIRST.main_query), user(SECOND.main_query)], True),
        ([user(SECOND.main_query), user(SECOND.main_query)], True),
        ([user(f"Example: {FIRST.main_query} 2"), user(SECOND.main_query)], False),
        ([{"role": "system", "content": "Calculate."}, user(SECOND.main_query)], False),
    ],
)
def test_shared_messages_are_found(sent: list[dict[str, Any]], is_found: bool) -> None:
    hint = shared_messages_hint([played(FIRST, user(FIRST.main_query)), played(SECOND, *sent)], None)
    assert ("1 episode" in hint) is is_found


def test_example_in_the_task_is_its_own() -> None:
    episodes = [
        played(FIRST, user(FIRST.main_query)),
        played(EXAMPLE, user(FIRST.main_query), user(EXAMPLE.main_query)),
    ]
    assert shared_messages_hint(episodes, None) == ""


def test_example_of_each_request_is_the_prompt() -> None:
    example = user(FIRST.main_query)
    assert shared_messages_hint([played(SECOND, example, user(SECOND.main_query))] * 2, None) == ""


def test_attempts_at_one_task_that_share_messages() -> None:
    episodes = [played(FIRST, user(FIRST.main_query)), played(FIRST, user(FIRST.main_query), user(FIRST.main_query))]
    assert "test_shared_messages.py" in shared_messages_hint(episodes, type("Agent", (), {"__module__": __name__}))
