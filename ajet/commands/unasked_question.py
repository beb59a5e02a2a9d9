"""Episodes whose model was never shown the task's question.

Invariant: found in what was sent, not in the agent's code; where the code that reads the empty field is known, its line
is named, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ajet.commands.own_frames import OwnFrame
from ajet.config.plugins import list_packages
from ajet.record.console import counted
from ajet.schema.episode import Episode
from ajet.schema.messages import text_of

_FIELD = "main_query"


def unasked_hint(episodes: Sequence[Episode], workflow: type[object]) -> str:
    """Return what to say of agents that use the empty `main_query` of a task; "" where each question was sent."""
    unasked = [episode for episode in episodes if is_unasked(episode)]
    if not unasked:
        return ""
    task = unasked[0].task
    cure = (
        "the question is in `task.init_messages`: pass `messages=task.init_messages` to the model, or name a column of "
        "text in ajet.task_reader.columns.main_query"
        if task.init_messages
        else f"the row's columns are in `task.metadata` ({', '.join(task.metadata) or 'none'})"
    )
    place = _find_reader(workflow)
    read = f" (read at {place})" if place else ""
    count = f"{len(unasked)} of {counted(len(episodes), 'episode')}"
    return f"{count} did not ask the task's question: `task.{_FIELD}` is empty{read}; {cure}"


def printed_task_hint(episodes: Sequence[Episode]) -> str:
    """Return what to say of agents that put a whole task into a prompt as text, its answer too; "" of none."""
    printed = [episode for episode in episodes if _is_printed(episode)]
    if not printed:
        return ""
    return (
        f"{len(printed)} of {counted(len(episodes), 'episode')} put the whole task into a prompt, with its metadata "
        f"(the answer is there, too): write `task.{_FIELD}` for the question"
    )


def _is_printed(episode: Episode) -> bool:
    start = f"{_FIELD}={episode.task.main_query!r}"
    sent = {index for call in episode.calls for index in call.messages}
    texts = [text_of(episode.messages[index]) for index in sent]
    return any(start in text and "init_messages=[" in text for text in texts)


def is_unasked(episode: Episode) -> bool:
    """Return True if the task has no `main_query`, and no message that was sent holds what it has instead."""
    task = episode.task
    if task.main_query.strip() or task.env_type != "no_env" or not episode.calls:
        return False
    sent = [episode.messages[index] for call in episode.calls for index in call.messages]
    words = [_normalize(text_of(message)) for message in sent]
    if not task.init_messages:
        asked = [text for message, text in zip(sent, words, strict=True) if message.get("role") == "user"]
        return not any(asked)
    questions = [_normalize(text_of(message)) for message in task.init_messages if message.get("role") == "user"]
    questions = [question for question in questions if question]
    return bool(questions) and not any(question in text for question in questions for text in words)


def source_file(workflow: type[object]) -> Path:
    """Return the file of the workflow's module; an empty path for one without a file."""
    return Path(getattr(sys.modules.get(workflow.__module__), "__file__", None) or "")


def _normalize(text: str) -> str:
    return " ".join(text.split())


def _find_reader(workflow: type[object]) -> str:
    """Return file:line of the first line that reads the field, in the file of the workflow; "" if there is none."""
    file = source_file(workflow)
    if not file.is_file() or workflow.__module__.partition(".")[0] in list_packages():
        return ""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found = next((number for number, line in enumerate(lines, 1) if f".{_FIELD}" in line), None)
    return "" if found is None else OwnFrame(str(file), found, "", "").place
