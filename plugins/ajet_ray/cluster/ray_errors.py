"""Shorten Ray's errors, without the processes' traces.

Invariant: a remote error is reported by its last line, with the error's name. A worker killed for lack of memory is
reported by the line about memory, since advice follows from the line.
"""

from __future__ import annotations

from ajet.schema.errors import EngineFailure

LOW_MEMORY = "running low on memory"


def read_last_line(problem: Exception) -> str:
    """Return the last nonempty line, or the error's type."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    lines = [line for line in lines if LOW_MEMORY in line] or lines
    return lines[-1].strip() if lines else type(problem).__name__


def make_engine_failure(server: str, problem: Exception) -> EngineFailure:
    """Return the failure of a request to a serving actor. A request to a dead actor cannot be retried.

    Args:
        server: The failed component, for example "verl's server".
    """
    from ray.exceptions import ActorDiedError

    died = isinstance(problem, ActorDiedError)  # Ray raises it once the actor will not be started again
    text = f"{server} {'died' if died else 'failed'}: {read_last_line(problem).split('. ')[0]}"
    return EngineFailure(text, retryable=not died)
