"""Converts rows of any source to tasks with unique, stable ids.

Invariant: no two tasks of a split share a `task_id`. A generated id depends on the row's content, so reordering,
filtering and repeated reading keep the id.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.environment.services.chosen import is_service_url, is_world
from ajet.schema.task import Task, extract_text
from ajet.task_reader.column_names import RowColumns, fold_name, nearest_name
from ajet.task_reader.plain_values import BadRowError, to_plain

if TYPE_CHECKING:
    from ajet.config import Experiment

_PROMPT = "prompt"
QUERY_COLUMNS = ("main_query", "question", "query", _PROMPT, "problem", "messages")
ID_COLUMNS = ("task_id", "id")
ANSWER_COLUMNS = ("answer", "ground_truth", "final_answer", "solution", "target")

SHOWN_IDS = 3
"""Wrong ids that a warning lists, and places of each."""
SHOWN = 20
"""Maximum number of columns in an error."""


@dataclass(frozen=True)
class ColumnNames:
    """Column of each field; None: the first standard name present. A dotted name selects nested fields."""

    main_query: str | None = None
    task_id: str | None = None
    answer: str | None = None
    require_question: bool = False
    """Refuse a row with neither a text question nor messages."""

    @classmethod
    def of(cls, experiment: Experiment) -> ColumnNames:
        """Return the configured columns. An environment opens the dialogue itself, so no question is required."""
        reader, environment = experiment.ajet.task_reader, experiment.ajet.environment.use or ""
        brings_tasks = is_service_url(environment) or is_world(environment)
        names = reader.columns
        return cls(names.main_query, names.task_id, names.answer, reader.require_question and not brings_tasks)


def row_of(task: Task) -> dict[str, Any]:
    """Return a task's fields as a row, without empty fields. `task_of` builds the task from such a row."""
    return {name: value for name, value in task.model_dump().items() if value not in ("", [], {}, "no_env")}


def task_of(row: Mapping[str, Any], columns: ColumnNames) -> Task:
    """Build a task from a row of any source.

    The task's metadata is the row's `metadata` plus the columns that are no fields of Task, or without `metadata` the
    complete row. A list of messages opens the dialogue. Outside a `prompt` column, a last reply of the assistant is the
    reference answer, as in rows for supervised training. A row without a question needs a workflow that builds one from
    other columns.

    Args:
        columns: Names of the columns with question, id and answer. None: the standard names.

    Raises:
        BadRowError: the question is empty (or null in a configured column), a field has the wrong type, two columns
            have one name, or JSON cannot represent a value.
    """
    try:
        row_columns = RowColumns(to_plain(row))
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    row = row_columns.row
    query_column = columns.main_query or row_columns.first(QUERY_COLUMNS)
    query = None if query_column is None else row_columns.look_up(query_column)
    messages = row_columns.get("init_messages") or []
    reference_reply = None
    if isinstance(query, list) and messages:  # the messages already open the dialogue
        query = ""
    elif isinstance(query, list):
        messages, query = query, ""
        if fold_name(query_column or _PROMPT) != _PROMPT:  # in `prompt`, the assistant's text is part of the prompt
            messages, reference_reply = _split_reply(messages)
    query = "" if query is None else query
    env_type = row_columns.get("env_type") or "no_env"
    own_metadata = row_columns.get("metadata")
    metadata = dict(row)
    if isinstance(own_metadata, Mapping):  # then columns that are fields of Task do not belong to the metadata
        metadata = {name: value for name, value in row.items() if not row_columns.is_any_of(name, Task.model_fields)}
        metadata.update(own_metadata)
    answer = row_columns.look_up(columns.answer) if columns.answer else row_columns.first_value(ANSWER_COLUMNS)
    answer = reference_reply if answer is None else answer
    if answer is not None and (columns.answer or metadata.get("answer") is None):
        metadata["answer"] = answer
    task_id = row_columns.look_up(columns.task_id) if columns.task_id else row_columns.first_value(ID_COLUMNS)
    for name, value, expected_type in (("the question", query, str), ("env_type", env_type, str)):
        if not isinstance(value, expected_type):
            raise BadRowError(f"{name} is {type(value).__name__}, expected a string")
    if not (isinstance(messages, list) and all(isinstance(item, Mapping) and "role" in item for item in messages)):
        raise BadRowError("its messages are not a list of objects with a role")
    if isinstance(task_id, (dict, list, bool)):
        raise BadRowError(f"its task id is {type(task_id).__name__}, expected a string or a number")
    if not row:
        raise BadRowError("it is empty: it contains no question and no other value")
    if query_column is not None and not query.strip() and not messages and env_type == "no_env":
        raise BadRowError(f"it has no question: {columns.main_query or 'its text'} is empty")
    if columns.require_question and query_column is None and not messages and env_type == "no_env":
        raise _no_question_error(row)
    return Task(
        main_query=query,
        init_messages=[dict(item) for item in messages],
        task_id="" if task_id is None else str(task_id),
        env_type=env_type,
        metadata=metadata,
    )


def _split_reply(messages: list[Any]) -> tuple[list[Any], str | None]:
    """Split off a last reply of the assistant; return the messages before, and its text or None."""
    last = messages[-1] if messages else None
    if len(messages) < 2 or not isinstance(last, Mapping) or last.get("role") != "assistant":
        return messages, None
    text = extract_text(last)
    return messages[:-1], text or None


def _no_question_error(row: Mapping[str, Any]) -> BadRowError:
    """Return the error for a row without a question column, with the most likely column."""
    similar = _nearest_question(row)
    column_list = ", ".join(list(row)[:SHOWN]) + (", …" if len(row) > SHOWN else "")
    advice = (
        f"set ajet.task_reader.columns.main_query={json.dumps(similar)} if that column contains the question; "
        if similar
        else ""
    )
    return BadRowError(
        f"it has neither a text question nor messages: none of its columns ({column_list}) is one of "
        + ", ".join(QUERY_COLUMNS)
        + (f"; the most similar column is {similar}" if similar else ""),
        do=f"{advice}set ajet.task_reader.require_question=false if the workflow builds the question from other "
        "columns",
    )


def _nearest_question(row: Mapping[str, Any]) -> str | None:
    """Return the column most likely to be the question, with dots for nested fields, or None.

    That is a column of messages, else the name most similar to a standard name, else any text that is no answer or id.
    """
    if (dialogue_column := next((name for name, value in row.items() if _is_dialogue(value)), None)) is not None:
        return dialogue_column
    text_columns = [name for name, value in row.items() if isinstance(value, str | list)]
    text_columns += [
        f"{name}.{field}"
        for name, value in row.items()
        if isinstance(value, Mapping)
        for field, field_value in value.items()
        if isinstance(field_value, str | list)
    ]
    for standard_name in QUERY_COLUMNS:
        if similar_name := next(
            (name for name in text_columns if standard_name in fold_name(name)), None
        ) or nearest_name(standard_name, text_columns):
            return similar_name
    other_columns = (*ANSWER_COLUMNS, *ID_COLUMNS)
    return next(
        (name for name in text_columns if not any(other_name in fold_name(name) for other_name in other_columns)),
        None,
    )


def _is_dialogue(value: Any) -> bool:
    """Return True for a list of messages with a user's, whose last message is not the assistant's."""
    if not (isinstance(value, list) and value):
        return False
    are_messages = all(isinstance(item, Mapping) and {"role", "content"} <= {*item} for item in value)
    return are_messages and value[-1]["role"] != "assistant" and any(item["role"] == "user" for item in value)


def assign_ids(tasks: Iterable[Task]) -> tuple[list[Task], dict[str, list[int]]]:
    """Give every task a unique id that depends on its content only.

    A missing id becomes a hash of the content; a shared id gets the hash appended; identical rows get a counter.

    Returns:
        The tasks, and for each id shared by several tasks their indices.
    """
    tasks = list(tasks)
    indices_by_id: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        indices_by_id.setdefault(task.task_id, []).append(index)
    id_counts = {task_id: len(indices) for task_id, indices in indices_by_id.items()}
    tasks_with_ids: list[Task] = []
    used_ids = {task_id for task_id, count in id_counts.items() if count == 1 and task_id}
    counter_by_id: Counter[str] = Counter()
    for task in tasks:
        if task.task_id and id_counts[task.task_id] == 1:
            tasks_with_ids.append(task)
            continue
        hashed_id = f"{task.task_id}-{_digest_content(task)}" if task.task_id else _digest_content(task)
        unique_id = hashed_id
        while unique_id in used_ids:
            counter_by_id[hashed_id] += 1
            unique_id = f"{hashed_id}-{counter_by_id[hashed_id] + 1}"
        used_ids.add(unique_id)
        tasks_with_ids.append(task.model_copy(update={"task_id": unique_id}))
    return tasks_with_ids, {
        task_id: indices for task_id, indices in indices_by_id.items() if task_id and len(indices) > 1
    }


def explain_ids(tasks: Sequence[Task], shared: Mapping[str, Sequence[int]], place: Callable[[int], str]) -> str:
    """Return a warning about shared and empty ids, with the places of their tasks; "" without any.

    Args:
        tasks: The tasks as read.
        shared: For each id shared by several tasks their indices.
        place: Returns the location of a task, such as file and line, by its index.
    """
    problems = [
        f"the same id {json.dumps(task_id, ensure_ascii=False)} at {_format_places(indices, place)}"
        for task_id, indices in list(shared.items())[:SHOWN_IDS]
    ]
    problems += [f"{len(shared) - SHOWN_IDS} more such ids"] if len(shared) > SHOWN_IDS else []
    indices_without_id = [
        index for index, task in enumerate(tasks) if any(task.metadata.get(name) == "" for name in ID_COLUMNS)
    ]
    problems += [f"an empty id at {_format_places(indices_without_id, place)}"] if indices_without_id else []
    if not problems:
        return ""
    return (
        f"{'; '.join(problems)}. ajet gives these tasks ids made from their content; to use your own ids, make each "
        "id unique and not empty"
    )


def _format_places(indices: Sequence[int], place: Callable[[int], str]) -> str:
    """Return the places of the first SHOWN_IDS tasks, and how many more there are."""
    remaining = len(indices) - SHOWN_IDS
    return ", ".join(map(place, indices[:SHOWN_IDS])) + (f" and {remaining} more" if remaining > 0 else "")


def read_finite(value: Any, name: str) -> float:
    """Return a JSON number as float. Raises BadRowError for other values and for numbers beyond the float range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRowError(f"`{name}` is {json_kind(value)}, expected a number")
    if not abs(value) <= sys.float_info.max:
        raise BadRowError(f"`{name}` is not a finite number")
    return float(value)


def json_kind(value: Any) -> str:
    """Return a value's kind in the words of JSON, for errors: "a number", "an empty list", "missing" for None."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text" if value else "empty text"
    kind = "list" if isinstance(value, list) else "object" if isinstance(value, Mapping) else type(value).__name__
    return f"{'a' if kind == 'list' else 'an'} {kind}" if value else f"an empty {kind}"


def _digest_content(task: Task) -> str:
    """Return a hash of the task's content without its id, 16 hexadecimal digits."""
    text = json.dumps(task.model_dump(exclude={"task_id"}), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
