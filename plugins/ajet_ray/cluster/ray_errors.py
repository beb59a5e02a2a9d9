"""What an error of Ray says, without the traces of its processes.

Invariant: an error that was raised in another process is said by its last line, the one that names it; workers that
were killed for want of memory by the line that says so, which a page of advice follows.
"""

from __future__ import annotations

LOW_MEMORY = "running low on memory"


def last_line(problem: Exception) -> str:
    """The last line with something on it; the error's kind where it says nothing."""
    said = [line for line in str(problem).splitlines() if line.strip()]
    said = [line for line in said if LOW_MEMORY in line] or said
    return said[-1].strip() if said else type(problem).__name__
