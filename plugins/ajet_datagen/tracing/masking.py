"""Mask personal data in traces with a function of the user.

Invariant: the function gets every text used by later steps; ids, roles and types are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.config.references import resolve_reference
from ajet.schema.errors import TaskError
from ajet_datagen.tracing.trace import AgentTrace

KEY = "ajet.task_reader.tracing.mask"
NOT_TEXT = ("role", "type", "id", "tool_call_id")
"""Message fields that are never masked."""


def mask_traces(traces: Sequence[AgentTrace], reference: str | None, *, base: Path) -> list[AgentTrace]:
    """Return the traces with each text replaced by the function's result.

    Args:
        reference: `file.py->function` of type `(str) -> str`; None keeps the texts and logs a warning.

    Raises:
        UserError: The reference names no function.
        TaskError: The function raised, or returned no text.
    """
    if reference is None:
        if traces:
            logger.warning("personal data in these traces is not masked; to mask it, set {} to a masking function", KEY)
        return list(traces)
    function = resolve_reference(reference, base=base, what=KEY)
    return [_mask_trace(trace, function) for trace in traces]


def _mask_trace(trace: AgentTrace, function: Callable[[str], str]) -> AgentTrace:
    def mask(text: str) -> str:
        try:
            masked = function(text)
        except Exception as error:  # the user's code may raise anything
            raise TaskError(
                f"The masking function failed: {type(error).__name__}: {error}", where=f"{KEY}, {trace.where}"
            ) from error
        if not isinstance(masked, str):
            raise TaskError(
                f"The masking function returned {type(masked).__name__}.",
                where=f"{KEY}, {trace.where}",
                expected="a string",
            )
        return masked

    def mask_tree(value: Any, field: str = "") -> Any:
        if isinstance(value, str):
            return value if field in NOT_TEXT else mask(value)
        if isinstance(value, Mapping):
            return {key: mask_tree(item, key) for key, item in value.items()}
        return [mask_tree(item, field) for item in value] if isinstance(value, (list, tuple)) else value

    def mask_optional(text: str | None) -> str | None:
        return None if text is None else mask(text)

    rating = trace.rating
    return replace(
        trace,
        messages=tuple(mask_tree(each) for each in trace.messages),
        reply=mask_tree(trace.reply),
        tools=tuple(mask_tree(each) for each in trace.tools),
        session=mask(trace.session),
        rating=replace(rating, corrected=mask_optional(rating.corrected), comment=mask_optional(rating.comment)),
    )
