"""Rows of a file -> conversations to learn from.

Invariant: no row is lost silently, and none is mended by a guess: one that cannot be read as a conversation with a
reply in it stops the reading and is named by file and line. No two rows have one name, also where two files do.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.schema.errors import TaskError
from ajet.schema.messages import text_of
from ajet.schema.task import Task
from ajet.task_reader.column_names import RowColumns
from ajet.task_reader.contract import find_file
from ajet.task_reader.jsonl import line_rows
from ajet.task_reader.plain_values import check_json, read_json
from ajet.task_reader.rows import BadRow, kind_of
from ajet.tokens.template import arguments_of

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")
TEXTS = ("name", "tool_call_id", "reasoning_content")
"""What else of a message is text, where it is there."""
WEIGHT = "weight"
"""Of an assistant message: 0 is context, 1 is learned (as fine-tuning services have it)."""
PLAIN = "one JSON object a line with `messages` (and `tools`), or with `prompt` and `completion`"
PAIR = "one JSON object a line with `prompt`, `chosen` and `rejected`, each a list of messages (and `tools`)"


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation. `learned`: the indices of the assistant messages that are learned."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    learned: frozenset[int]


@dataclass(frozen=True, slots=True)
class Row:
    """What one line gives to learn: one conversation, or the chosen and the rejected one of a pair."""

    task: Task
    talks: tuple[Talk, ...]
    where: str
    written: float
    """When its file was, in seconds since the epoch: the day that a template may write into a prompt."""


def find_files(files: str | Sequence[str], base: Path, *, key: str) -> list[Path]:
    """Return the paths of files of rows. Raises TaskError for one that is not there."""
    names = [files] if isinstance(files, str) else files
    return [find_file(name, base, key=key, what="file of rows") for name in names]


def read_files(files: str | Sequence[str], base: Path, *, pairs: bool, key: str) -> list[Row]:
    """The rows of all files. Raises TaskError."""
    found: list[Row] = []
    titles: Counter[str] = Counter()
    for file in find_files(files, base, key=key):
        titles[file.name] += 1
        again = f"({titles[file.name]})" if titles[file.name] > 1 else ""
        found += _read(file, pairs, f"{file.name}{again}")
    if not found:
        where = files if isinstance(files, str) else ", ".join(files)
        raise TaskError("There is nothing to learn from.", where=where, expected=PAIR if pairs else PLAIN)
    return found


def _read(file: Path, pairs: bool, title: str) -> Iterator[Row]:
    written = file.stat().st_mtime
    for number, row in line_rows(file):
        where = f"{file}:{number}"
        try:
            if isinstance(row, BadRow):
                raise row
            check_json(row)
            row = RowColumns(row).rename(COLUMNS)
            talks = _pair(row) if pairs else (_plain(row),)
        except BadRow as problem:
            raise TaskError(
                f"A row cannot be learned from: {problem}.", where=where, expected=PAIR if pairs else PLAIN
            ) from None
        asked = next((text_of(each) for each in talks[0].messages if each["role"] == "user"), "")
        digest = hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).hexdigest()
        task = Task(main_query=asked, task_id=f"{title}:{number}", metadata={"content": digest})
        yield Row(task, talks, where, written)


def _plain(row: Mapping[str, Any]) -> Talk:
    if "messages" in row:
        return _talk(_messages(row, "messages"), _tools(row), 0)
    if "prompt" in row and "completion" in row:
        prompt = _messages(row, "prompt")
        return _talk([*prompt, *_messages(row, "completion")], _tools(row), len(prompt))
    raise BadRow(f"it has {', '.join(row) or 'nothing'}, and no `messages`")


def _pair(row: Mapping[str, Any]) -> tuple[Talk, Talk]:
    lacking = [name for name in ("chosen", "rejected") if name not in row]
    if lacking:
        raise BadRow(f"it has no `{lacking[0]}`")
    chosen, rejected = _messages(row, "chosen"), _messages(row, "rejected")
    prompt = _messages(row, "prompt") if "prompt" in row else _common(chosen, rejected)
    if "prompt" not in row:
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    if chosen == rejected:
        raise BadRow("`chosen` and `rejected` are the same")
    tools = _tools(row)
    return _talk([*prompt, *chosen], tools, len(prompt)), _talk([*prompt, *rejected], tools, len(prompt))


def _common(one: list[Message], other: list[Message]) -> list[Message]:
    size = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:size]


def _talk(messages: list[Message], tools: tuple[Message, ...], first: int) -> Talk:
    """`first`: the index of the first message that may be learned."""
    learned = {at for at, each in enumerate(messages) if each["role"] == "assistant" and at >= first}
    learned -= {at for at in learned if not messages[at].get(WEIGHT, 1)}
    if not learned:
        raise BadRow("it holds no reply of the assistant to learn")
    told = tuple({name: value for name, value in each.items() if name != WEIGHT} for each in messages)
    return Talk(told[: max(learned) + 1], tools, frozenset(learned))


def _messages(row: Mapping[str, Any], name: str) -> list[Message]:
    listed = row[name]
    if not isinstance(listed, list) or not listed:
        raise BadRow(f"`{name}` is {kind_of(listed)}, expected a list of messages")
    return [_message(each, f"{name}[{at}]") for at, each in enumerate(listed)]


def _message(message: Any, place: str) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise BadRow(f"{place} has the role {role!r:.60}, expected one of {', '.join(ROLES)}")
    content, calls = message.get("content"), message.get("tool_calls")
    blocks = isinstance(content, list) and all(
        isinstance(block, dict) and isinstance(block.get("text"), str) for block in content
    )
    if not isinstance(content, str | None) and not blocks:
        raise BadRow(f"{place} has a content that is {kind_of(content)}, expected text or blocks of text")
    if content is None and not calls:
        raise BadRow(f"{place} says nothing: it has neither content nor tool calls")
    if message["role"] == "assistant" and message.get(WEIGHT, 1) not in (0, 1):
        raise BadRow(f"{place} has the weight {message[WEIGHT]!r:.60}, expected 0 or 1")
    for field in TEXTS:
        if not isinstance(message.get(field), str | None):
            raise BadRow(f"{place}.{field} is {kind_of(message[field])}, expected text")
    if not isinstance(calls, list | None):
        raise BadRow(f"{place}.tool_calls is {kind_of(calls)}, expected a list")
    for at, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRow(f"{place}.tool_calls[{at}] names no function")
        if not isinstance(call.get("id"), str | None):
            raise BadRow(f"{place}.tool_calls[{at}].id is {kind_of(call['id'])}, expected text")
        check_json(arguments_of(call), f"{place}.tool_calls[{at}].function.arguments")
    told = {name: value for name, value in message.items() if value is not None}
    return {**told, "content": content if content is not None else ""}


def _tools(row: Mapping[str, Any]) -> tuple[Message, ...]:
    tools = row.get("tools") or []
    if isinstance(tools, str):  # a table has a column of one type
        try:
            tools = read_json(tools)
        except BadRow as problem:
            raise BadRow(f"`tools` is text, and {problem}") from None
        check_json(tools, "tools")
    wrong = not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    )
    if wrong:
        raise BadRow('`tools` is no list of {"type": "function", "function": {…}}')
    return tuple(tools)
