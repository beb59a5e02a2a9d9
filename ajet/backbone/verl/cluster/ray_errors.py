"""What an error of Ray says, without the traces of its processes.

Invariant: an error that was raised in another process is said by its last line, the one that names it.
"""

from __future__ import annotations


def last_line(problem: Exception) -> str:
    """The last line with something on it; the error's kind where it says nothing."""
    said = [line for line in str(problem).splitlines() if line.strip()]
    return said[-1].strip() if said else type(problem).__name__
