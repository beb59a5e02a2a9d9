"""Splits a user's YAML by its root sections: `ajet`, a backbone's config, and the user's own.

Invariant: every root name belongs to a single part. `ajet` is typed. `hydra` and `defaults` are checked, then dropped,
because ajet's layers are always composed; other entries in them are errors. The user's own sections reach the workflow
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ajet.config.backbones import Descriptor, list_shipped_backbones
from ajet.config.document import Document, KeyPath
from ajet.config.schema.accepted import expand_moves
from ajet.schema.errors import ConfigError

_HYDRAS_FOLDERS = ("run", "output_subdir")
"""Hydra's output settings, without effect in ajet."""
_SEARCHPATH = re.compile(r"file://(\./)?ajet/default_config(/(?P<of>\w+))?/?|pkg://ajet\.default_config.*")
_VERLS = ("file://external/verl/verl/trainer/config", "ppo_trainer")
"""verl's own defaults, supplied by the verl backbone."""


def list_backbone_roots(chosen: Descriptor) -> tuple[str, ...]:
    """Return the root names of the chosen backbone and of all backbones that ship with ajet."""
    backbones = [*list_shipped_backbones().values(), chosen]
    return tuple(dict.fromkeys(root for backbone in backbones for root in backbone.roots))


@dataclass(frozen=True)
class YamlParts:
    """A YAML split into parts, values as written, interpolations unresolved."""

    ajet: dict[str, Any]
    sections: dict[str, Any]
    backbone: dict[str, Any]


def split_document(document: Document, roots: Collection[str]) -> YamlParts:
    """Split the root names.

    Args:
        roots: The backbones' root names.

    Raises:
        ConfigError: An unknown `hydra:` or `defaults:` entry, or an `ajet:` that is no mapping.
    """
    tree = dict(document.tree)
    _check_hydra(tree.pop("hydra", None), document)
    _check_defaults(tree.pop("defaults", None), document)
    ajet = tree.pop("ajet", None)
    if ajet is None:
        ajet = {}
    if not isinstance(ajet, dict):
        raise ConfigError(
            f"`ajet` is {ajet!r}; it must be a mapping of keys.",
            where=document.locate(("ajet",), value=True),
            expected="keys such as model, rollout, task_reader",
        )
    for root in tree:
        if not isinstance(root, str):
            raise ConfigError(f"The key {root!r} at the top level is not a string.", where=document.locate((root,)))
    backbone = {root: tree.pop(root) for root in roots if root in tree}
    return YamlParts(
        _rename_moved_keys(ajet, document), tree, {root: value for root, value in backbone.items() if value is not None}
    )


def _rename_moved_keys(ajet: dict[str, Any], document: Document) -> dict[str, Any]:
    """Return the keys below `ajet`, with names of other versions replaced. Existing keys win."""
    result = deepcopy(ajet)
    for other, new_path in expand_moves(result):
        *parents, name = other
        holder = _find_mapping(result, parents, create=False)
        if holder is None or name not in holder:
            continue
        value = holder.pop(name)
        *sections, last = new_path
        home = _find_mapping(result, sections, create=True)
        if home is not None and last not in home:
            home[last] = value
            old_path = ("ajet", *parents, name)
            for path, position in [*document.places.items()]:
                if path[: len(old_path)] == old_path:
                    document.places[("ajet", *sections, last, *path[len(old_path) :])] = position
    return result


def _find_mapping(tree: dict[str, Any], path: list[str], *, create: bool) -> dict[str, Any] | None:
    """Return the mapping at `path`, or None if missing or of another type."""
    node: Any = tree
    for name in path:
        if create and node.get(name) is None:
            node[name] = {}
        node = node.get(name)
        if not isinstance(node, dict):
            return None
    return node


def _check_hydra(block: Any, document: Document) -> None:
    """Raise ConfigError if the YAML's `hydra` section contains more than a search path of ajet's own folders."""
    if block is None:
        return
    if not isinstance(block, dict):
        raise _make_unknown_entry_error("hydra", [block], ("hydra",), document, "searchpath")
    for name, value in block.items():
        if name in _HYDRAS_FOLDERS:
            continue
        if name != "searchpath":
            expected = "searchpath only; ajet ignores other settings of Hydra"
            raise _make_unknown_entry_error(f"hydra.{name}", [value], ("hydra", name), document, expected)
        entries = value if isinstance(value, list) else [value]
        odd = {index: entry for index, entry in enumerate(entries) if entry is not None and not _is_ours(entry)}
        if odd:
            *names, last = (f"/{name}" for name in list_shipped_backbones())
            expected = f"file://ajet/default_config, optionally with {', '.join(names)} or {last}"
            raise _make_unknown_entry_error(
                "hydra.searchpath", [*odd.values()], ("hydra", name, min(odd)), document, expected
            )


def _is_ours(entry: Any) -> bool:
    match = _SEARCHPATH.fullmatch(entry) if isinstance(entry, str) else None
    return entry in _VERLS or (match is not None and (match["of"] is None or match["of"] in list_shipped_backbones()))


def _check_defaults(block: Any, document: Document) -> None:
    allowed = ("ajet_default", *(f"{name}_default" for name in list_shipped_backbones()), "_self_")
    entries = block if isinstance(block, list) else [] if block is None else [block]
    odd = {index: entry for index, entry in enumerate(entries) if entry not in (*allowed, *_VERLS)}
    if odd:
        raise _make_unknown_entry_error(
            "defaults", [*odd.values()], ("defaults", min(odd)), document, ", ".join(allowed)
        )


def _make_unknown_entry_error(
    name: str, values: list[Any], path: KeyPath, document: Document, expected: str
) -> ConfigError:
    """Return the error for unknown entries. `path`: of the first entry."""
    several = len(values) > 1
    return ConfigError(
        f"`{name}` contains {' and '.join(map(repr, values))}, which ajet does not support there.",
        where=document.locate(path, value=True),
        expected=expected,
        do=f"delete {'them' if several else 'it'}; ajet uses the installed defaults in any case",
    )
