"""Drops tasks whose prompt exceeds `data.max_prompt_length`, or refuses them.

Invariant: no prompt is ever cut. Only the task's own text counts (init_messages, or main_query as one user message);
the gateway bounds images and additions of a workflow per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.schema.errors import TaskError
from ajet.schema.task import Task, extract_text

if TYPE_CHECKING:
    from ajet.config.schema.data import DataConfig


def drop_overlong(tasks: Sequence[Task], data: DataConfig, tokenizer: Any) -> Sequence[Task]:
    """Return the tasks whose prompt has at most `data.max_prompt_length` tokens, and log how many were left out.

    Args:
        tokenizer: Counts tokens. None: no task is overlong.

    Raises:
        TaskError: no task is left, or a task is overlong and `data.on_overlong` is error.
    """
    limit: int = data.max_prompt_length
    fitting = [task for task in tasks if _fits_prompt(task, tokenizer, limit)]
    dropped_count = len(tasks) - len(fitting)
    if not dropped_count:
        return tasks
    overlong = next(task for task in tasks if not _fits_prompt(task, tokenizer, limit))
    description = (
        f"{dropped_count} of {len(tasks)} tasks have a prompt longer than {limit} tokens "
        f"(the first: {overlong.task_id})"
    )
    if data.on_overlong == "error" or not fitting:
        raise TaskError(
            f"{description}.",
            where=f"task {overlong.task_id}",
            expected=f"at most ajet.data.max_prompt_length = {limit} tokens",
            do="raise ajet.data.max_prompt_length, or set ajet.data.on_overlong: filter",
        )
    logger.warning("{}; ajet leaves these tasks out", description)
    return fitting


def _fits_prompt(task: Task, tokenizer: Any, limit: int) -> bool:
    """Return True if a task's messages and question have at most `limit` tokens; always without a tokenizer."""
    text = "\n".join(extract_text(message) for message in task.init_messages) + task.main_query
    if tokenizer is None or len(text.encode()) <= limit:  # a token is at least one byte
        return True
    return len(tokenizer.encode(text, add_special_tokens=False, verbose=False)) <= limit
