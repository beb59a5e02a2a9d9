"""A function as a judge: `def reward(task, output)`, or the same with `async`.

Invariant: behind `judge_from` a function is a judge like any other: it may return what `compute_reward` may, and what
it raises is a failure of the judge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.config.functions import place_of, require_callable_with
from ajet.config.references import parse_reference
from ajet.schema.task import WorkflowOutput, WorkflowTask


def judge_from(function: Callable[..., Any], reference: str, *, what: str) -> type[Any]:
    """A judge class that asks `function(task, output)`; `task` is the Task. `what`: the key that holds the reference.
    Raises ConfigError unless it takes two arguments."""
    require_callable_with(function, ("task", "output"), what=what, reference=reference)

    async def compute_reward(self: Any, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        return await function(workflow_task.task, workflow_output)

    def compute_plain(self: Any, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        return function(workflow_task.task, workflow_output)

    class Asked:
        def __init__(self, config: Any) -> None:
            """Takes the composed config, as every judge does; a function has no use for it."""

    # a plain one is asked in a thread of its own, an async one where the others are
    asked = compute_reward if inspect.iscoroutinefunction(function) else compute_plain
    Asked.compute_reward = asked  # type: ignore[attr-defined]
    Asked.__name__ = Asked.__qualname__ = parse_reference(reference, what=what).name
    Asked.written_at = Path(place_of(function)).name  # type: ignore[attr-defined]
    Asked.__module__ = getattr(function, "__module__", None) or __name__
    return Asked
