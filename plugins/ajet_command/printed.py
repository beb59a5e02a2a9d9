"""The score of a command that judges itself: the last line that it prints, `{"reward": 0.5, "errors": []}`.

Invariant: a line without a finite reward is never a reward of 0; where there is an error there is no reward, whatever
number stands beside it, and the first error says whose failure the episode is, in the words of `Boundary`.
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
    """The output with the reward of the last line; its `answer` is the final answer, its `metrics` are logged. Raises
    the failure that the line tells of, and AgentFailure for a line that tells nothing."""
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
    """The last line, read. Raises AgentFailure where it is none."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    try:
        score = load_json(last)
    except (ValueError, RecursionError):
        score = None
    if not isinstance(score, dict) or not isinstance(score.setdefault("errors", []), list):
        raise AgentFailure(f"the command printed no score; expected {FORM} as its last line, it is {last[:200]!r}")
    if not score["errors"] and not is_number(score.get("reward")):
        raise AgentFailure(f"the command printed no finite reward and no error: {last[:200]!r}")
    return score


def make_failure(error: Any) -> BoundaryError:
    """`{"boundary", "type", "message"}` as the failure that it is; one without a boundary that there is, is the
    environment's, which is never a reward."""
    row = error if isinstance(error, dict) else {"message": str(error)}
    kind = FAILURES.get(str(row.get("boundary")), EnvironmentFailure)
    message = ": ".join(str(row[name]) for name in ("type", "message") if row.get(name))
    return kind(message or "the command named an error and said nothing of it")


def is_number(value: Any) -> bool:
    """A finite one."""
    return isinstance(value, (bool, int, float)) and math.isfinite(value)
