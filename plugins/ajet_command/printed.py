"""Parse the score printed by a command as its last line: `{"reward": 0.5, "errors": []}`.

Invariant: a line without a finite reward is never a reward of 0. With errors there is no reward, and the first error
decides the failed boundary (`Boundary`).
"""

from __future__ import annotations

import math
from typing import Any

from ajet.schema.bounded_json import load_json
from ajet.schema.errors import (
    AgentFailure,
    BoundaryError,
    EngineFailure,
    EnvironmentFailure,
    JudgeFailure,
    SandboxFailure,
    ToolFailure,
)
from ajet.schema.task import WorkflowOutput

FAILURES: dict[str, type[BoundaryError]] = {
    kind.boundary: kind
    for kind in (AgentFailure, EngineFailure, EnvironmentFailure, JudgeFailure, SandboxFailure, ToolFailure)
}
FORM = '{"reward": 0.5, "errors": []}'


def apply_score(output: WorkflowOutput, printed: str) -> WorkflowOutput:
    """Set reward, final answer and metrics of the output from the last line. Raises the line's failure, or AgentFailure
    for a malformed line."""
    score = parse_score(printed)
    if score["errors"]:
        raise make_failure(score["errors"][0])
    output.reward = float(score["reward"])
    if "answer" in score:
        output.metadata["final_answer"] = score["answer"]
    metrics = score.get("metrics")
    if isinstance(metrics, dict):
        output.log_metrics |= {str(name): value for name, value in metrics.items() if is_number(value)}
    return output


def parse_score(printed: str) -> dict[str, Any]:
    """Parse the last line. Raises AgentFailure for another format."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    try:
        score = load_json(last)
    except (ValueError, RecursionError):
        score = None
    if not isinstance(score, dict) or not isinstance(score.setdefault("errors", []), list):
        raise AgentFailure(
            f"the last line that the command printed is not a score; expected {FORM}, got {last[:200]!r}"
        )
    if not score["errors"] and not is_number(score.get("reward")):
        raise AgentFailure(f"the command printed neither a finite reward nor an error: {last[:200]!r}")
    return score


def make_failure(error: Any) -> BoundaryError:
    """Convert `{"boundary", "type", "message"}` to a failure; an unknown boundary is an environment failure, never a
    reward."""
    row = error if isinstance(error, dict) else {"message": str(error)}
    kind = FAILURES.get(str(row.get("boundary")), EnvironmentFailure)
    message = ": ".join(str(row[name]) for name in ("type", "message") if row.get(name))
    return kind(message or "the command reported an error without a message")


def is_number(value: Any) -> bool:
    """True for a finite number."""
    return isinstance(value, (bool, int, float)) and math.isfinite(value)
