"""Worker process of math-verify: reads pairs, prints true or false, one line each.

Invariant: the process ends after its time limit and within its memory limit, even if the parent process is gone.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

MEMORY = 2 << 30
"""Maximum bytes of address space above the usage after imports, on supported systems."""
GRACE = 2
"""Seconds after the caller's limit until the process ends itself."""


def main() -> None:
    """Print "ready", then true or false for each line [candidate, reference, timeout] of standard input."""
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # prints of libraries must not mix with the answers
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # No `units`: math-verify would drop any unit. No search for numbers: it would find one anywhere in the text.
    forms = [
        LatexExtractionConfig(
            normalization_config=NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True)
        )
    ]

    def parsed(text: str) -> list[Any]:
        """Return math-verify's readings of an expression."""
        delimited = "$" in text or "\\[" in text or "\\(" in text
        parsed_forms: list[Any] = parse(text if delimited else f"${text}$", forms, parsing_timeout=None)
        return parsed_forms

    def same(candidate: str, reference: str) -> bool:
        """Return True if math-verify finds two expressions equal; False if it cannot read one."""
        try:
            return bool(
                verify(parsed(reference), parsed(candidate), timeout_seconds=None, allow_set_relation_comp=True)
            )
        except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
            return False

    same("1/2", "\\frac{1}{2}")  # builds the parser
    _limit_memory()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        candidate, reference, timeout = json.loads(line)
        if hasattr(signal, "alarm"):  # the alarm ends this process, in case the parent cannot
            signal.alarm(int(timeout) + GRACE)
        print(json.dumps(same(candidate, reference)), file=answers, flush=True)
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def _limit_memory() -> None:
    """Limit the address space to MEMORY bytes more than used now. No effect on systems without /proc or limits."""
    try:
        import resource
    except ImportError:
        return
    try:
        with open("/proc/self/statm") as file:
            used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY, hard))


if __name__ == "__main__":
    main()
