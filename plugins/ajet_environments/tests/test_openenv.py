"""OpenEnv's world: which action a message means."""

from __future__ import annotations

import pytest

from ajet_environments.services.openenv import parse_action

SCHEMA = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    "said",
    [
        '```json\n{"a": 1}\n```', '~~~json\r\n{"a": 1}\r\n~~~', '```bash\nls\n```\n```json title="x"\n{"a": 1}\n```',
        '1. act\n   ```json\n   {"a": 1}\n   ```', '```json\n{"a": 1}', '```json {"a": 1}```',
        '<action>{"a": 1}</action>',
        '```json\n{"a": 2}\n```\n<action> {"a": 1} </action>', '{"a": 2} then {"a": 1}',
    ],
)  # fmt: skip
def test_action_is_found_in_reply(said):
    assert parse_action({"role": "assistant", "content": said}, SCHEMA) == {"a": 1}


def test_reply_without_an_object_is_no_action():
    assert parse_action({"role": "assistant", "content": "```text\nnothing\n```"}, SCHEMA) is None
