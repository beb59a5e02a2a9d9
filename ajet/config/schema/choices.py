"""Values with a known name or a reference to the user's code.

Invariant: a reference is valid wherever a name of the kind is valid. Plug-ins supply the names. Any other value is a
single error with the nearest name.
"""

from __future__ import annotations

from difflib import get_close_matches

from ajet.config.plugin import NamedKind, spell_reference
from ajet.config.plugins import describe_broken, find_all_parts, find_parts


def is_reference(text: str) -> bool:
    """Return True if `text` has the form `file.py->Class` or `pkg.module:Class`."""
    place, arrow, name = text.rpartition("->")
    if not arrow:
        place, arrow, name = text.rpartition(":")
    return bool(arrow and place and name.strip().isidentifier())


def require_known(text: str, kind: NamedKind, *, or_own: bool) -> None:
    """Raise ValueError unless `text` names a part of the kind or, with `or_own`, refers to the user's code.

    The message lists the names and a similar one.
    """
    if text in find_parts(kind) or (or_own and is_reference(text)):
        return
    names = [*find_all_parts(kind)]  # this searches the installed packages
    if text in names:
        return
    similar = get_close_matches(text, names, 1) or [name for name in names if text and name.startswith(text)]
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    broken = f". {reason}" if (reason := describe_broken()) else ""
    reference_hint = f", or a reference such as {spell_reference(kind)}" if or_own else ""
    raise ValueError(f"one of {', '.join(names)}{reference_hint}{hint}{broken}")
