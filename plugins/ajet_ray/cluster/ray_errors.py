"""What an error of Ray says, without the traces of its processes.

Invariant: an error that was raised in another process is said by its last line, the one that names it; workers that
were killed for want of memory by the line that says so, which a page of advice follows.
"""

from __future__ import annotations

from ajet.schema.errors import EngineFailure

LOW_MEMORY = "running low on memory"


def read_last_line(problem: Exception) -> str:
    """The last line with something on it; the error's kind where it says nothing."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    lines = [line for line in lines if LOW_MEMORY in line] or lines
    return lines[-1].strip() if lines else type(problem).__name__


def make_engine_failure(server: str, problem: Exception) -> EngineFailure:
    """Return the failure of a request to an actor that serves the model; one to an actor that died cannot be mended.

    Args:
        server: What failed, such as "verl's server".
    """
    from ray.exceptions import ActorDiedError

    died = isinstance(problem, ActorDiedError)  # Ray raises it once the actor will not be started again
    text = f"{server} {'died' if died else 'failed'}: {read_last_line(problem).split('. ')[0]}"
    return EngineFailure(text, retryable=not died)
