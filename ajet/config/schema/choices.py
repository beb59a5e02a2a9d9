"""Values that are a known name or a reference to something of the user's own.

Invariant: a reference to a class of the user's is taken wherever a name is. Which names are known is the catalogue's to
say; what is neither is one error, with the nearest of them.
"""

from __future__ import annotations

from difflib import get_close_matches

from ajet.config.catalogue import Kind, brought, own
from ajet.config.handed import known


def is_reference(text: str) -> bool:
    """Whether `text` has the form `file.py->Class` or `pkg.module:Class`."""
    left, arrow, right = text.rpartition("->")
    if not arrow:
        left, arrow, right = text.rpartition(":")
    return bool(arrow and left and right.strip().isidentifier())


def require_known(text: str, kind: Kind) -> None:
    """Raises ValueError unless `text` names a part of this kind or refers to one."""
    names = [*known().of(kind)]
    if text in names or is_reference(text):
        return
    names += brought(kind)  # asked last: it looks at every installed package
    if text in names:
        return
    near = get_close_matches(text, names, 1) or [name for name in names if text and name.startswith(text)]
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(f"one of {', '.join(names)}, or a reference such as {own(kind)}{hint}")
