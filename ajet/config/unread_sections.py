"""Finds sections of a backbone's config at a place where no code reads them, and ajet's equivalent keys.

Only a descriptor's `roots` are read at the root of a YAML. Its `sections` count below the backbone's name. Equivalents
come from the layers that fill backbone keys (`find_counterpart`) and from the descriptor's tables (`advice`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from ajet.config.backbones import Descriptor, list_shipped_backbones
from ajet.config.compose import ABSENT, Layer, Layers
from ajet.config.document import KeyPath, list_leaves
from ajet.config.keys import find_counterpart, find_first_filled

_DATA_SET = "ajet.task_reader.huggingface_dat_repo.dataset_path"
JUDGE = "ajet.task_judge.judge_protocol"
_FIRST_LINES = ("ajet.model.path", "ajet.rollout.num_repeat", "ajet.data.")
"""Keys, and a section, to copy into the suggested lines for a YAML without our keys."""
_REWARDS: tuple[KeyPath, ...] = (("custom_reward_function",), ("reward", "custom_reward_function"))
"""Places of a reward function in verl's config, by `path` and `name`."""
_FILES: tuple[KeyPath, ...] = (("data", "train_files"), ("data", "val_files"))
_TURNS: KeyPath = ("actor_rollout_ref", "rollout", "multi_turn")
_SERVERS = "mcp_servers_config_path"
_WORKFLOW = "ajet.rollout.user_workflow"
_TO_FILL_IN = {_WORKFLOW: "workflow.py->MyWorkflow", _DATA_SET: "<YOUR_DATA_SET>"}


class UnreadKey(NamedTuple):
    """A backbone's key that the user wrote at a place where no code reads it, with ajet's key instead."""

    path: KeyPath
    layer: Layer
    ours: str
    """ajet's key with the same meaning, or ""."""
    value: Any
    """The equivalent value of our key."""
    advice: str


def find_unread_keys(users: Sequence[Layer]) -> Iterator[UnreadKey]:
    """Yield the user's keys that a backbone ignores, because their section must stand below the backbone's name.

    A top-level section such as `data` may also be the workflow's own. It counts as the backbone's if one of its keys is
    the backbone's, or if the YAML has other sections of the backbone.
    """
    for owner in list_shipped_backbones().values():
        has_others = any(layer.get_value((root,)) is not ABSENT for layer in users for root in owner.roots)
        for root in owner.sections:
            if root in owner.roots:
                continue
            keys = {path: (layer, value) for layer in users for path, value in _list_keys(layer, root)}
            values = {path: value for path, (_, value) in keys.items()}
            unread = [UnreadKey(path, layer, *_advise_on_key(path, values, owner)) for path, (layer, _) in keys.items()]
            if has_others or any(unread_key.advice for unread_key in unread):
                general_advice = f"not read; ajet reads {owner.name}'s own keys only below `{owner.name}:`"
                yield from (
                    unread_key if unread_key.advice else unread_key._replace(advice=general_advice)
                    for unread_key in unread
                )


def suggest_first_lines(layers: Layers, missing: Sequence[str]) -> str:
    """Return the lines below `ajet:` that a YAML of another trainer lacks, with values from its sections.

    Returns "" if the YAML has no section of a backbone.

    Args:
        missing: Keys that a run still needs.
    """
    document = [layer for layer in layers.stack if layer.document is not None][-1]
    user_layers = layers.stack[layers.stack.index(document) :]
    for owner in list_shipped_backbones().values():
        roots = [root for root in dict.fromkeys((*owner.roots, *owner.sections)) if root in document.tree]
        keys = {path: value for root in roots for path, value in _list_keys(document, root)}
        values_by_path = {path[1:] if path[0] == owner.name else path: value for path, value in keys.items()}
        if not any(_advise_on_key(path, values_by_path, owner)[2] for path in values_by_path):
            continue
        tree: dict[str, Any] = {}
        for key, value in _copy_values(values_by_path, owner, missing, document).items():
            *sections, name = key.split(".")
            if any(layer.get_value((*sections, name)) is not ABSENT for layer in user_layers):
                continue
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            node[name] = value
        instruction = "add to `ajet:`" if document.tree.get("ajet") else "put before them"
        lines = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110).rstrip()
        advice = f"ajet can read the keys of {owner.name} in {', '.join(roots)}"
        if owner.defaults_page:
            advice += f"; keys that are missing there get ajet's defaults ({owner.defaults_page})"
        return f"{advice}; {instruction}:\n{lines}"
    return ""


def _copy_values(own: Mapping[KeyPath, Any], owner: Descriptor, missing: Sequence[str], layer: Layer) -> dict[str, Any]:
    """Return values for ajet's keys, taken from the keys of a backbone in the user's YAML.

    A missing value gets a placeholder.

    Args:
        own: Values of the backbone's keys, by path.
        owner: The backbone.
        missing: Keys of ajet that a run still needs.
        layer: The YAML.
    """
    values: dict[str, Any] = {"ajet.backbone": owner.name}
    for path, value in own.items():
        counterpart = find_counterpart(path, owner.filled)
        is_copied = counterpart is not None and counterpart.key.startswith(_FIRST_LINES)
        if counterpart is not None and is_copied and path == find_first_filled(counterpart.key, owner.filled):
            values[counterpart.key] = value
    folder = _find_data_folder(own.get(("data", "train_files")))
    to_fill_in = _TO_FILL_IN | ({_DATA_SET: folder} if folder else {})
    if isinstance(tools := own.get((*_TURNS, "tool_config_path")), str):
        to_fill_in[_WORKFLOW] = "mcp_agent"
        values["ajet.environment.use"] = _find_servers(tools, layer)
        if (turns := own.get((*_TURNS, "max_assistant_turns"))) is not None:
            values["ajet.rollout.mcp_agent.max_steps"] = turns
    values |= {key: to_fill_in[key] for key in missing if key in to_fill_in and key not in values}
    if judge := next((reference for prefix in _REWARDS if (reference := _find_judge(own, prefix))), ""):
        values[JUDGE] = judge
    return values


def _find_servers(tools: str, layer: Layer) -> str:
    """Return the file of MCP servers that verl's file of tools names, or a placeholder."""
    base = layer.document.path.parent if layer.document is not None else Path()
    servers_files = list_servers_files(base / tools)
    return servers_files[0] if servers_files else "<YOUR_MCP_SERVERS>"


def list_servers_files(tools: Path) -> list[str]:
    """Return the files of MCP servers in verl's file of tools, each once. Any other file gives []."""
    try:
        parsed = yaml.safe_load(tools.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    tool_entries = parsed.get("tools") if isinstance(parsed, dict) else None
    mcp_entries = [
        entry["mcp"] for entry in tool_entries or () if isinstance(entry, dict) and isinstance(entry.get("mcp"), dict)
    ]
    return list(dict.fromkeys(entry[_SERVERS] for entry in mcp_entries if isinstance(entry.get(_SERVERS), str)))


def _find_data_folder(files: Any) -> str:
    """Return the folder of the first file in verl's `train_files` or `val_files`, or ""."""
    first = files[0] if isinstance(files, list) and files else files
    return str(PurePosixPath(first).parent) if isinstance(first, str) else ""


def _find_judge(own: Mapping[KeyPath, Any], prefix: KeyPath) -> str:
    """Return the reference to the reward function that verl's keys below `prefix` name, or ""."""
    path, name = own.get((*prefix, "path")), own.get((*prefix, "name"), "compute_score")
    if not isinstance(path, str):
        return ""
    return f"{path.removeprefix('file://').removeprefix('pkg://')}->{name}"


def _list_keys(layer: Layer, root: str) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) of each key of a layer below the top-level name `root`. A list counts as one value."""
    for path, _ in list_leaves({root: layer.tree.get(root)}):
        key_path = path[: next((index for index, part in enumerate(path) if isinstance(part, int)), len(path))]
        if (value := layer.get_value(key_path)) not in (ABSENT, None):
            yield key_path, value


def _advise_on_key(path: KeyPath, own: Mapping[KeyPath, Any], owner: Descriptor) -> tuple[str, Any, str]:
    """Return ajet's key for a key of a backbone, ajet's value for it, and advice; "", None and "" without any.

    Args:
        path: The backbone's key.
        own: Values of all keys of the backbone.
        owner: The backbone.
    """
    dotted, value = ".".join(map(str, path)), own[path]
    if (counterpart := find_counterpart(path, owner.filled)) is not None:
        suffix = f": {json.dumps(value, default=str)}" if counterpart.same else ""
        return counterpart.key, value, f"not read; set {counterpart.key}{suffix}"
    if path[:-1] in _REWARDS and (judge := _find_judge(own, path[:-1])):
        return JUDGE, judge, f"not read; set {JUDGE}: {judge}"
    if path in _FILES and (folder := _find_data_folder(value)):
        return _DATA_SET, folder, f"not read; set {_DATA_SET}: {folder}"
    if (like := owner.advice.like.get(dotted)) is not None:
        return f"ajet.{like}", value, f"not read; set ajet.{like}"
    advice = owner.advice.instead.get(dotted)
    return "", None, f"not read; in ajet: {advice}" if advice is not None else ""
