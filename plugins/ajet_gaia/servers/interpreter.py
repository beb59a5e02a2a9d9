"""The program that runs the model's Python: reads one request per line from a descriptor, writes one answer per line.

Invariants: names persist between requests. Printed output is bounded while printing. The value of a last expression is
shown, as in notebooks. The program is started by its path, so it imports only the standard library.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import traceback
from typing import Any


class BoundedText(io.TextIOBase):
    """Stores the first characters written and counts the others."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.parts: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Store the characters that fit, and count all of them. Return the full length, as `write` must."""
        free = self.limit - self.size
        if free > 0:
            self.parts.append(text[:free])
        self.size += len(text)
        return len(text)

    def text(self) -> str:
        """Return the stored characters, with a note about dropped ones."""
        excess = self.size - self.limit
        return "".join(self.parts) + (f"\n[{excess} more characters were dropped]" if excess > 0 else "")


def run(code: str, names: dict[str, Any], limit: int) -> dict[str, str]:
    """Run code in the persistent names; return printed output, last value and error."""
    out = BoundedText(limit)
    sys.stdout = sys.stderr = out
    try:
        tree = ast.parse(code, "<code>")
        last_statement = tree.body[-1] if tree.body else None
        if isinstance(last_statement, ast.Expr):
            tree.body.pop()
        exec(compile(tree, "<code>", "exec"), names)
        if isinstance(last_statement, ast.Expr):
            value = eval(compile(ast.Expression(last_statement.value), "<code>", "eval"), names)
            if value is not None:
                out.write(f"{value!r}\n")
        error = ""
    except SystemExit as exit_request:
        error = f"SystemExit: {exit_request.code}"
    except BaseException as raised:  # noqa: BLE001 - the border where a model's code runs
        traceback_lines = traceback.format_exception(type(raised), raised, raised.__traceback__)
        # Frames of this file say nothing about the model's code.
        error = "".join(line for line in traceback_lines if __file__ not in line)[-limit:]
    finally:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    return {"output": out.text(), "error": error}


def main(read: int, write: int, limit: int) -> None:
    """Run requests until the pipe of requests closes: a JSON string of code per line, a JSON answer per line.

    Args:
        read: descriptor of the requests.
        write: descriptor of the answers.
        limit: characters of output per answer.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    with open(read) as requests, open(write, "w") as answers:
        for line in requests:
            answers.write(json.dumps(run(json.loads(line), names, limit)) + "\n")
            answers.flush()


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    main(*map(int, sys.argv[1:4]))
