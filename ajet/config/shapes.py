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
    """Return the top-level names that belong to backbones: to the chosen one and to all that ship with ajet."""
    backbones = [*list_shipped_backbones().values(), chosen]
    return tuple(dict.fromkeys(root for backbone in backbones for root in backbone.roots))


@dataclass(frozen=True)
class YamlParts:
    """A user's YAML split by owner, with values as written and interpolations unresolved."""

    ajet: dict[str, Any]
    sections: dict[str, Any]
    backbone: dict[str, Any]


def split_document(document: Document, roots: Collection[str]) -> YamlParts:
    """Split a YAML by its top-level names: keys of `ajet`, sections of backbones, and the user's own sections.

    Args:
        roots: Top-level names of backbones.

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
    """Return a copy of the keys below `ajet`, with AgentJet's names of keys replaced by ajet's.

    A key that the YAML also sets under its own name wins.
    """
    renamed = deepcopy(ajet)
    for old_name_path, new_path in expand_moves(renamed):
        *parents, name = old_name_path
        old_section = _find_mapping(renamed, parents, create=False)
        if old_section is None or name not in old_section:
            continue
        value = old_section.pop(name)
        *sections, last = new_path
        new_section = _find_mapping(renamed, sections, create=True)
        if new_section is not None and last not in new_section:
            new_section[last] = value
            old_path = ("ajet", *parents, name)
            for path, position in [*document.places.items()]:
                if path[: len(old_path)] == old_path:
                    document.places[("ajet", *sections, last, *path[len(old_path) :])] = position
    return renamed


def _find_mapping(tree: dict[str, Any], path: list[str], *, create: bool) -> dict[str, Any] | None:
    """Return the mapping at `path`, or None if it is missing or no mapping. With `create`, missing ones are added."""
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
        unknown_entries = {
            index: entry for index, entry in enumerate(entries) if entry is not None and not _is_ours(entry)
        }
        if unknown_entries:
            *other_names, last_name = (f"/{name}" for name in list_shipped_backbones())
            expected = f"file://ajet/default_config, optionally with {', '.join(other_names)} or {last_name}"
            raise _make_unknown_entry_error(
                "hydra.searchpath",
                [*unknown_entries.values()],
                ("hydra", name, min(unknown_entries)),
                document,
                expected,
            )


def _is_ours(entry: Any) -> bool:
    """Return True if an entry of Hydra's search path is a folder of defaults that ajet supplies anyway."""
    match = _SEARCHPATH.fullmatch(entry) if isinstance(entry, str) else None
    return entry in _VERLS or (match is not None and (match["of"] is None or match["of"] in list_shipped_backbones()))


def _check_defaults(block: Any, document: Document) -> None:
    """Raise ConfigError if the YAML's `defaults` list names other defaults than those that ajet supplies anyway."""
    allowed = ("ajet_default", *(f"{name}_default" for name in list_shipped_backbones()), "_self_")
    entries = block if isinstance(block, list) else [] if block is None else [block]
    unknown_entries = {index: entry for index, entry in enumerate(entries) if entry not in (*allowed, *_VERLS)}
    if unknown_entries:
        raise _make_unknown_entry_error(
            "defaults", [*unknown_entries.values()], ("defaults", min(unknown_entries)), document, ", ".join(allowed)
        )


def _make_unknown_entry_error(
    name: str, values: list[Any], path: KeyPath, document: Document, expected: str
) -> ConfigError:
    """Return the error for entries of `hydra:` or `defaults:` that ajet does not support.

    Args:
        name: The key with the entries.
        values: The entries.
        path: Path of the first one.
        expected: What ajet supports there.
    """
    is_plural = len(values) > 1
    return ConfigError(
        f"`{name}` contains {' and '.join(map(repr, values))}, which ajet does not support there.",
        where=document.locate(path, value=True),
        expected=expected,
        do=f"delete {'them' if is_plural else 'it'}; ajet uses the installed defaults in any case",
    )
