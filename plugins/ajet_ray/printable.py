"""A backbone's configuration in printable form."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ajet.config.resolution import HIDDEN, is_secret_path


def make_printable(tree: dict[str, Any], users: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config in which secrets are masked.

    Values written with `oc.env` are shown as written, not resolved.

    Args:
        tree: the resolved config.
        users: the part of it written by the user, with unresolved interpolations.
    """
    tree = deepcopy(tree)

    def cleaned(node: Any, written: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(node, dict):
            written_section = written if isinstance(written, dict) else {}
            return {name: cleaned(value, written_section.get(name), (*path, name)) for name, value in node.items()}
        if isinstance(node, list):
            items = written if isinstance(written, list) and len(written) == len(node) else [None] * len(node)
            return [cleaned(value, item, path) for value, item in zip(node, items, strict=True)]
        if isinstance(written, str) and "oc.env" in written:
            return written
        return HIDDEN if is_secret_path(path) and isinstance(node, str) and node else node

    return {name: cleaned(value, users.get(name), (name,)) for name, value in tree.items()}
