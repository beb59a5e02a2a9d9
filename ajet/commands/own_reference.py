"""References to classes and functions that a program has at hand.

Invariant: what is answered finds the same thing again where the run looks for it, or it is refused: in a file by the
file, in the running program or notebook by `__main__`, which no other process can find.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ajet.schema.errors import UserError


def reference_of(kind: Any) -> str:
    """A name or a reference as it is, or the reference to a class or function of a file, or of a notebook, which has
    none. Raises UserError."""
    if isinstance(kind, str):
        return kind
    name = getattr(kind, "__qualname__", repr(kind))
    module = sys.modules.get(getattr(kind, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if file is None and module is sys.modules["__main__"]:
        return str(live_reference(kind))
    if file is None or not name.isidentifier():
        raise UserError(
            f"{name} can't be named by a reference.",
            expected="a class or function at the top level of a file",
            do="move it there, or pass a reference such as workflow.py->MyWorkflow",
        )
    return f"{Path(file).resolve()}->{name}"


def live_reference(kind: Any) -> Any:
    """What the running program defines, as a reference to it there: to load its file again would run it again. Raises
    UserError for what has no name there, or one that means something else by now."""
    if getattr(kind, "__module__", None) != "__main__":
        return kind
    name = getattr(kind, "__qualname__", repr(kind))
    if getattr(sys.modules["__main__"], name, None) is not kind:
        raise UserError(
            f"{name} can't be named by a reference.",
            expected="a class or function at the top level of the program or notebook, under its own name",
            do="define it there with `def` or `class`",
        )
    return f"__main__->{name}"
