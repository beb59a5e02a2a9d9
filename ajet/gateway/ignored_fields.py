"""Request fields that this gateway ignores, removes or refuses.

Invariant: a hint (no engine here follows it, no token depends on it) is recorded with its call, logged once, and never
refused. A field that would change the sampling distribution is refused with the reason: the trained and proven policy
is the run's.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from loguru import logger

from ajet.engine.contract import Sampling
from ajet.gateway.request import ParsedRequest, Refused

HINTS = frozenset({"reasoning_effort", "verbosity"})
"""Ignored hints, by their names in `ParsedRequest.engine_fields`."""
HONOURED = frozenset({"seed", "response_format"})
"""Fields for chat engines that token engines honour, too; `response_format` with a schema."""
_NEUTRAL_VALUES = {
    "logit_bias": "{}",
    "presence_penalty": "0",
    "frequency_penalty": "0",
    "repetition_penalty": "1",
    "min_p": "0",
}
"""Fields that change the sampling distribution, and their neutral values."""
_DECIDED_BY = {
    "temperature": "rollout.temperature (in validation: rollout.val_kwargs)",
    "top_p": "rollout.top_p (in validation: rollout.val_kwargs)",
    "top_k": "rollout.top_k (in validation: rollout.val_kwargs)",
    "seed": "a random seed that ajet draws for each reply",
    "max_tokens": "rollout.max_response_length_in_one_turn",
}
"""Sampling field -> the configuration key whose value replaces the client's."""


class IgnoredFieldLog:
    """Logs each ignored field once per gateway. Thread-safe."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def log_hints(self, names: Iterable[str]) -> None:
        """Log each request field that has no effect here, once per field name."""
        with self._lock:
            new_names = sorted(set(names) - self._names)
            self._names.update(new_names)
        if new_names:
            logger.info(
                "the agent's requests contain {}: ajet records these fields, and they do not change the reply",
                ", ".join(new_names),
            )

    def log_replaced(self, fields: Mapping[str, Any], run: Sampling) -> None:
        """Log each sampling field that the run replaces, with its configuration key.

        Args:
            fields: The replaced fields, with the request's values.
            run: The run's own sampling settings.
        """
        if self._names.issuperset(fields):
            return
        with self._lock:
            new_names = [name for name in fields if name not in self._names]
            self._names.update(new_names)
        for name in new_names:
            logger.warning(
                "the agent's requests contain {} = {}; ajet samples with {} instead, which is set by {}",
                *(name, fields[name], "its own value" if name == "seed" else getattr(run, name), _DECIDED_BY[name]),
            )


class RequestFilter:
    """Removes the tools and fields that the configuration names from requests."""

    def __init__(self, tools: Collection[str], fields: Collection[str]) -> None:
        """Build the filter of one gateway.

        Args:
            tools: Types of tools, from gateway.leave_out_tools.
            fields: Names of fields, from gateway.leave_out_fields.
        """
        self._tools, self._fields = frozenset(tools), frozenset(fields)
        self._logged_fields: set[str] = set()

    def strip(self, body: dict[str, Any]) -> list[str]:
        """Remove named tools and fields from a request's body. Return their names, and log each once."""
        removed = [name for name in body if name in self._fields and body[name] is not None]
        for name in removed:
            del body[name]
        if self._tools and isinstance(tools := body.get("tools"), list):
            stripped = [(tool, []) if not isinstance(tool, dict) else self._strip_tool(tool) for tool in tools]
            body["tools"] = [tool for tool, _ in stripped if tool]
            removed += dict.fromkeys(name for _, names in stripped for name in names)
        for name in set(removed) - self._logged_fields:
            self._logged_fields.add(name)
            logger.warning(
                "the agent's requests contain {}: ajet removes it and records this, because ajet.gateway.{} names it",
                *(name, "leave_out_fields" if name in self._fields else "leave_out_tools"),
            )
        return removed

    def _strip_tool(self, tool: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return what remains of a tool, and the removed types. Gemini's tools have one key per type instead of a
        `type`.
        """
        kind = tool.get("type")
        if kind is not None:
            return ({}, [kind]) if isinstance(kind, str) and kind in self._tools else (tool, [])
        return {key: tool[key] for key in tool if key not in self._tools}, [key for key in tool if key in self._tools]


def list_hints(request: ParsedRequest) -> dict[str, Any]:
    """Return the request's fields that have no effect here, with their values, for the record of the call."""
    hints = {name: value for name, value in request.engine_fields.items() if name in HINTS}
    return {**hints, **request.inert_fields}


def refuse_unsupported(request: ParsedRequest) -> None:
    """Raise Refused for a field that a token engine cannot honour, with the reason and the value to send instead."""
    supported = HONOURED if request.json_schema is not None else HONOURED - {"response_format"}
    for name in request.engine_fields:
        if name in supported or name in HINTS:
            continue
        reason = (
            f"{name} would sample from another distribution than the one that is trained and whose "
            f"log-probabilities are recorded: leave it out, or send {_NEUTRAL_VALUES[name]}"
            if name in _NEUTRAL_VALUES
            else f"this model's engine does not support {name}: leave it out"
        )
        raise Refused(reason, param=name, code="unsupported_parameter")
