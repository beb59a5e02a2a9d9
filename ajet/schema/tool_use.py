"""ToolUse: a use of a tool by an attempt, as a value.

Invariant: the tool's caller makes the value once, after result or failure. Both times come from the same clock.
`digest` covers the complete result, even if model or record hold only a part. Failures are data: `error` names the
source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ToolError = Literal[
    "", "tool", "unknown_tool", "arguments", "too_large", "timeout", "transport", "environment", "sandbox"
]
"""Reason of a missing result.

The model's mistake: "unknown_tool" and "arguments" (checked before sending). The tool's answer: "tool" (a reported
failure), "too_large". All other errors carry no information about the policy.
"""
BROWSE_AGENT = "browse_agent"
"""Recorded name of questions to a browse agent. The answers are in the tool's result."""
POLICY_ERRORS: frozenset[ToolError] = frozenset({"unknown_tool", "arguments"})
EXTERNAL_ERRORS: frozenset[ToolError] = frozenset({"timeout", "transport", "environment", "sandbox"})
"""Errors without information about the model. An episode ended by such an error is no outcome."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A use of a tool: name, arguments and result."""

    name: str
    """The tool's name as the model knows it."""
    arguments: Mapping[str, Any]
    result: str
    """The text shown to the model, without the last `cut` characters."""
    digest: str
    """`compute_digest` of the complete result text."""
    started: float
    """Seconds since the epoch, as `ended`."""
    ended: float
    error: ToolError = ""
    server: str = ""
    """Server or environment of the tool, or "" for a function of the workflow."""
    call_id: str = ""
    """The model's id of the tool call, or "" for calls by the code."""
    whole: int = -1
    """Characters of the complete result. -1: the model saw all."""
    json: bool = False
    """True if a returned value is shown as JSON."""
    cut: int = 0
    """Characters omitted from the end of the shown text by the record. Only the record sets the value."""
    images: int = 0
    """Number of images shown to the model with the text. The images are not stored."""
    chain: str = ""
    """Digest of all uses up to this one, identifying the world's state. Only the record sets the value."""

    @property
    def shown(self) -> int:
        """Number of characters of the result that the model was shown."""
        return len(self.result) + self.cut

    @property
    def shown_whole(self) -> bool:
        """True if the model was shown the complete result, so that `digest` is the digest of the shown text."""
        return self.whole in (-1, self.shown)


def compute_digest(text: str) -> str:
    """Return the SHA-256 of a result's text in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
