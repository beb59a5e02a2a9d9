"""ToolUse: one use of a tool by an attempt, as a value.

Invariant: whoever ran the tool makes it once, when the tool has answered or failed; its times are two readings of one
clock, its `digest` is that of the whole result, also where `result` holds the part that the model was shown, or the
part of that which the record keeps. A failure is data: `error` says whose it was, at the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ToolError = Literal[
    "", "tool", "unknown_tool", "arguments", "too_large", "timeout", "transport", "environment", "sandbox"
]
"""Why a use has no good result. The model's own doing: "unknown_tool" and "arguments" (checked before anything is
sent). The tool's answer: "tool" (it says that it failed), "too_large". Nobody's that is trained: the rest."""
BROWSE_AGENT = "browse_agent"
"""The name under which questions to a browse agent are recorded; what it answers is in the result of the tool."""
POLICY_ERRORS: frozenset[ToolError] = frozenset({"unknown_tool", "arguments"})
EXTERNAL_ERRORS: frozenset[ToolError] = frozenset({"timeout", "transport", "environment", "sandbox"})
"""What says nothing about the model: an episode that such a use ended is no outcome of it."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool: what was called, with what, and what came of it."""

    name: str
    """As the model was told it."""
    arguments: Mapping[str, Any]
    result: str
    """The text that the model was shown, without the last `cut` characters."""
    digest: str
    """`digest_of` the whole result, before it was cut."""
    started: float
    """Seconds since the epoch, as `ended`."""
    ended: float
    error: ToolError = ""
    server: str = ""
    """The server or environment that ran it; "" for a function of the workflow."""
    call_id: str = ""
    """The id under which the model asked for it; "" where the code asked."""
    whole: int = -1
    """Characters of the whole result; -1: the model was shown all of it. Whoever shows less says how much there is."""
    json: bool = False
    """Whether a value was returned that is shown as JSON, and not a text."""
    cut: int = 0
    """Characters at the end of what the model was shown that the record does not keep; only the record sets it."""
    images: int = 0
    """Images that the model was shown beside the text; the use has none of them."""
    chain: str = ""
    """Digest of all that the record has of this use and, through the one before it, of all earlier ones: what the state
    of the world that they acted on is known by. Only the record sets it."""

    @property
    def shown(self) -> int:
        """Characters that the model was shown."""
        return len(self.result) + self.cut

    @property
    def shown_whole(self) -> bool:
        """Whether `digest` is that of the very text that the model was shown."""
        return self.whole in (-1, self.shown)


def compute_digest(text: str) -> str:
    """SHA-256 of a result's text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
