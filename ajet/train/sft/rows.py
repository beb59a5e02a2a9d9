"""Parse rows of JSON Lines files into conversations to learn.

Invariant: a row without an assistant reply, or with an invalid conversation, is an error with file and line. Rows are
never skipped or repaired. Task ids are unique, even across files of the same name.
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
from ajet.schema.task import Task, extract_text
from ajet.task_reader.column_names import RowColumns
from ajet.task_reader.contract import find_file
from ajet.task_reader.jsonl import line_rows
from ajet.task_reader.plain_values import check_json, read_json
from ajet.task_reader.rows import BadRowError, json_kind
from ajet.tokens.template import arguments_of

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")
TEXTS = ("name", "tool_call_id", "reasoning_content")
"""Optional text fields of a message."""
WEIGHT = "weight"
"""Key of an assistant message: 0 is context, 1 is learned, same as in the files of fine-tuning services."""
PLAIN = "one JSON object per line with `messages` (and `tools`), or with `prompt` and `completion`"
PAIR = "one JSON object per line with `prompt`, `chosen` and `rejected`, each a list of messages (and `tools`)"


@dataclass(frozen=True, slots=True)
class RowConversation:
    """A conversation of a row. `learned` holds the indices of the assistant messages to learn."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    learned: frozenset[int]


@dataclass(frozen=True, slots=True)
class LessonRow:
    """A line of a file: a conversation, or the chosen and the rejected conversation of a pair."""

    task: Task
    conversations: tuple[RowConversation, ...]
    where: str
    written: float
    """Modification time of the file, in seconds since the epoch. A template may write the day into a prompt."""


def find_files(files: str | Sequence[str], base: Path, *, key: str) -> list[Path]:
    """Return the paths of files of rows. Raise TaskError for a missing file."""
    names = [files] if isinstance(files, str) else files
    return [find_file(name, base, key=key, what="file of rows") for name in names]


def read_files(files: str | Sequence[str], base: Path, *, pairs: bool, key: str) -> list[LessonRow]:
    """Read the rows of all files. Raise TaskError for invalid rows."""
    rows: list[LessonRow] = []
    titles: Counter[str] = Counter()
    for file in find_files(files, base, key=key):
        titles[file.name] += 1
        suffix = f"({titles[file.name]})" if titles[file.name] > 1 else ""
        rows += _read_file(file, pairs, f"{file.name}{suffix}")
    if not rows:
        file_names = files if isinstance(files, str) else ", ".join(files)
        raise TaskError("The files contain no row to learn from.", where=file_names, expected=PAIR if pairs else PLAIN)
    return rows


def _read_file(file: Path, pairs: bool, title: str) -> Iterator[LessonRow]:
    """Yield the rows of one JSON Lines file. Raises TaskError with file and line for an invalid row."""
    written = file.stat().st_mtime
    for number, row in line_rows(file):
        location = f"{file}:{number}"
        try:
            if isinstance(row, BadRowError):
                raise row
            check_json(row)
            row = RowColumns(row).rename(COLUMNS)
            conversations = _parse_pair(row) if pairs else (_parse_conversation(row),)
        except BadRowError as problem:
            raise TaskError(
                f"A row cannot be used: {problem}.", where=location, expected=PAIR if pairs else PLAIN
            ) from None
        question = next(
            (extract_text(message) for message in conversations[0].messages if message["role"] == "user"), ""
        )
        digest = hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).hexdigest()
        task = Task(main_query=question, task_id=f"{title}:{number}", metadata={"content": digest})
        yield LessonRow(task, conversations, location, written)


def _parse_conversation(row: Mapping[str, Any]) -> RowConversation:
    """Return the conversation of a row: `messages`, or `prompt` as context and `completion` to learn. Raises
    BadRowError.
    """
    if "messages" in row:
        return _mark_learned(_parse_messages(row, "messages"), _parse_tools(row), 0)
    if "prompt" in row and "completion" in row:
        prompt = _parse_messages(row, "prompt")
        return _mark_learned([*prompt, *_parse_messages(row, "completion")], _parse_tools(row), len(prompt))
    raise BadRowError(f"it has the keys {', '.join(row) or 'nothing'}, but no `messages`")


def _parse_pair(row: Mapping[str, Any]) -> tuple[RowConversation, RowConversation]:
    """Return the chosen and the rejected conversation. Only the replies after their common prompt are learned."""
    missing = [name for name in ("chosen", "rejected") if name not in row]
    if missing:
        raise BadRowError(f"it has no key `{missing[0]}`")
    chosen, rejected = _parse_messages(row, "chosen"), _parse_messages(row, "rejected")
    prompt = _parse_messages(row, "prompt") if "prompt" in row else _common_prefix(chosen, rejected)
    if "prompt" not in row:
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    if chosen == rejected:
        raise BadRowError("its `chosen` and `rejected` are the same")
    tools = _parse_tools(row)
    return _mark_learned([*prompt, *chosen], tools, len(prompt)), _mark_learned(
        [*prompt, *rejected], tools, len(prompt)
    )


def _common_prefix(one: list[Message], other: list[Message]) -> list[Message]:
    """Return the messages with which both conversations begin."""
    size = next(
        (index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )
    return one[:size]


def _mark_learned(messages: list[Message], tools: tuple[Message, ...], first: int) -> RowConversation:
    """Return the conversation, cut after its last learned reply.

    Args:
        first: Index of the first message that may be learned. Replies before it are context.
    """
    learned = {index for index, message in enumerate(messages) if message["role"] == "assistant" and index >= first}
    learned -= {index for index in learned if not messages[index].get(WEIGHT, 1)}
    if not learned:
        raise BadRowError("it contains no reply of the assistant to learn")
    plain = tuple({name: value for name, value in message.items() if name != WEIGHT} for message in messages)
    return RowConversation(plain[: max(learned) + 1], tools, frozenset(learned))


def _parse_messages(row: Mapping[str, Any], name: str) -> list[Message]:
    """Return the checked messages under a key of a row. Raises BadRowError."""
    messages = row[name]
    if not isinstance(messages, list) or not messages:
        raise BadRowError(f"`{name}` is {json_kind(messages)}, expected a list of messages")
    return [_parse_message(message, f"{name}[{index}]") for index, message in enumerate(messages)]


def _parse_message(message: Any, place: str) -> Message:
    """Return a checked message without empty fields. Raises BadRowError.

    Args:
        place: The message's place in the row, for errors.
    """
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise BadRowError(f"{place} has the role {role!r:.60}, expected one of {', '.join(ROLES)}")
    content, calls = message.get("content"), message.get("tool_calls")
    is_text_blocks = isinstance(content, list) and all(
        isinstance(block, dict) and isinstance(block.get("text"), str) for block in content
    )
    if not isinstance(content, str | None) and not is_text_blocks:
        raise BadRowError(f"the content of {place} is {json_kind(content)}, expected text or blocks of text")
    if content is None and not calls:
        raise BadRowError(f"{place} is empty: it has neither content nor tool calls")
    if message["role"] == "assistant" and message.get(WEIGHT, 1) not in (0, 1):
        raise BadRowError(f"{place} has the weight {message[WEIGHT]!r:.60}, expected 0 or 1")
    for field in TEXTS:
        if not isinstance(message.get(field), str | None):
            raise BadRowError(f"{place}.{field} is {json_kind(message[field])}, expected text")
    if not isinstance(calls, list | None):
        raise BadRowError(f"{place}.tool_calls is {json_kind(calls)}, expected a list")
    for index, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRowError(f"{place}.tool_calls[{index}] contains no function name")
        if not isinstance(call.get("id"), str | None):
            raise BadRowError(f"{place}.tool_calls[{index}].id is {json_kind(call['id'])}, expected text")
        check_json(arguments_of(call), f"{place}.tool_calls[{index}].function.arguments")
    fields = {name: value for name, value in message.items() if value is not None}
    return {**fields, "content": content if content is not None else ""}


def _parse_tools(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the tools of a row, given as a list or as JSON text. Raises BadRowError."""
    tools = row.get("tools") or []
    if isinstance(tools, str):  # tables store `tools` as text, because a column has a single type
        try:
            tools = read_json(tools)
        except BadRowError as problem:
            raise BadRowError(f"`tools` is text, and {problem}") from None
        check_json(tools, "tools")
    is_invalid = not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    )
    if is_invalid:
        raise BadRowError('`tools` is not a list of {"type": "function", "function": {…}}')
    return tuple(tools)
