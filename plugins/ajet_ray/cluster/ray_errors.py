"""Shortens Ray's errors to one line, without the stack traces of remote processes.

Invariant: a remote error is reported by its last line, with the error's name. A worker killed for lack of memory is
reported by the line about memory, because `ajet` derives its advice from this line.
"""

from __future__ import annotations

from ajet.schema.errors import EngineFailure

LOW_MEMORY = "running low on memory"


def read_last_line(problem: Exception) -> str:
    """Return the last nonempty line of an error's text, or the name of its type if the text is empty.

    If lines report that the node ran low on memory, the last of these is returned, since it says why Ray killed a
    process.
    """
    lines = [line for line in str(problem).splitlines() if line.strip()]
    lines = [line for line in lines if LOW_MEMORY in line] or lines
    return lines[-1].strip() if lines else type(problem).__name__


def make_engine_failure(server: str, problem: Exception) -> EngineFailure:
    """Convert Ray's error of a request to a serving actor into an EngineFailure.

    The failure is retryable unless the actor is dead.

    Args:
        server: name of the failed component for the message, for example "verl's server".
        problem: the error raised by Ray.
    """
    from ray.exceptions import ActorDiedError

    died = isinstance(problem, ActorDiedError)  # Ray raises it once the actor will not be started again
    text = f"{server} {'died' if died else 'failed'}: {read_last_line(problem).split('. ')[0]}"
    return EngineFailure(text, retryable=not died)
