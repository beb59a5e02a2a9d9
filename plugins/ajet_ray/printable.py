"""A backbone's configuration in printable form."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ajet.config.resolution import HIDDEN, is_secret_path


def make_printable(tree: dict[str, Any], users: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config with masked secrets.

    A value that the user wrote as an interpolation of `oc.env` is shown as written, since the resolved value may be a
    secret of the environment.

    Args:
        tree: the resolved config.
        users: the part of it written by the user, with unresolved interpolations.
    """
    tree = deepcopy(tree)

    def mask_node(node: Any, written: Any, path: tuple[Any, ...]) -> Any:
        """Return a node of the resolved config with masked secrets.

        Args:
            node: a section, list or value of the resolved config.
            written: the same node as written by the user, or None if the user did not write it.
            path: the keys that lead to the node, without the indices of lists.
        """
        if isinstance(node, dict):
            written_section = written if isinstance(written, dict) else {}
            return {key: mask_node(value, written_section.get(key), (*path, key)) for key, value in node.items()}
        if isinstance(node, list):
            # A list of another length was built from several sources, so its items have no written counterpart.
            written_items = written if isinstance(written, list) and len(written) == len(node) else [None] * len(node)
            return [
                mask_node(value, written_item, path) for value, written_item in zip(node, written_items, strict=True)
            ]
        if isinstance(written, str) and "oc.env" in written:
            return written
        return HIDDEN if is_secret_path(path) and isinstance(node, str) and node else node

    return {key: mask_node(value, users.get(key), (key,)) for key, value in tree.items()}
