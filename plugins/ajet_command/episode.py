"""What a command gets of its episode, wherever it runs: placeholders, variables and the task file; and its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ajet.schema.bounded_json import load_json
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import Task, WorkflowTask

LONGEST_VARIABLE = 100_000
"""Bytes; Linux allows 128 KiB."""


def list_episode_values(workflow_task: WorkflowTask, endpoint: Endpoint, config: Any) -> dict[str, str]:
    """Return the placeholders of the task, the model and the configuration."""
    task, rollout = workflow_task.task, config["ajet"]["rollout"]
    return {
        "model": endpoint.model,
        "base_url": endpoint.base_url,
        "api_key": endpoint.api_key,
        "context_tokens": str(rollout["max_model_len"]),
        "reply_tokens": str(rollout["max_response_length_in_one_turn"]),
        "task": _get_question(task),
        "task_id": task.task_id,
        "episode": workflow_task.episode_uuid,
        **{f"metadata.{name}": _format_value(value) for name, value in task.metadata.items()},
    }


def list_episode_variables(endpoint: Endpoint, values: Mapping[str, str], task_file: str) -> dict[str, str | None]:
    """Return the variables of the episode's addresses, keys and task; None for a task that is too long for one.

    Args:
        endpoint: the model's address, as the command reaches it.
        values: placeholders of `list_episode_values`.
        task_file: path of the task file, as the command sees it.
    """
    return {
        **endpoint.environment,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_MODEL": endpoint.model,
        "GOOGLE_GEMINI_BASE_URL": endpoint.base_url.removesuffix("/v1"),
        "GEMINI_API_KEY": endpoint.api_key,
        "AJET_BASE_URL": endpoint.base_url,
        "AJET_API_KEY": endpoint.api_key,
        "AJET_MODEL": endpoint.model,
        "AJET_TASK": values["task"] if len(values["task"].encode(errors="replace")) <= LONGEST_VARIABLE else None,
        "AJET_TASK_ID": values["task_id"],
        "AJET_TASK_FILE": task_file,
        "AJET_EPISODE": values["episode"],
    }


def describe_task(task: Task, visible: Iterable[str]) -> dict[str, Any]:
    """Return the content of the task file, with only the metadata keys in `visible`."""
    return {
        "task_id": task.task_id,
        "main_query": task.main_query,
        "init_messages": task.init_messages,
        "metadata": {name: task.metadata[name] for name in visible if name in task.metadata},
    }


def extract_answer(answer: str, stdout: str, read_file: Callable[[str], str]) -> str:
    """Return the agent's answer: standard output, its last non-empty line, a file, or a value of a JSON file.

    Args:
        answer: `command_agent.answer`.
        read_file: returns the content of a file of the agent, or "" without the file.
    """
    if answer.startswith("file:"):
        name, _, keys = answer.removeprefix("file:").partition("#")
        return _read_value(read_file(name), keys)
    if answer == "last_line":
        lines = [line.strip() for line in stdout.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    return stdout


def _get_question(task: Task) -> str:
    """Return the task as text; for a task of messages, the last user message."""
    if task.main_query:
        return task.main_query
    texts = [message.get("content") for message in task.init_messages if message.get("role") == "user"]
    return texts[-1] if texts and isinstance(texts[-1], str) else ""


def _read_value(text: str, keys: str) -> str:
    """Return the value at `keys` (`info.answer`) of a JSON text, or the text without keys; "" without the value."""
    if not keys:
        return text
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        return ""
    for key in keys.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else _format_value(value)


def _format_value(value: Any) -> str:
    """Return texts unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
