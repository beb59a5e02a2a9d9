"""Look up keys by dotted path: existence, nearest valid key, and the error for an unknown key.

Invariant: the schema is the only list of keys, and the table of accepted names is the only list of keys without effect.
The layers of a backbone are the only list of counterparts: a backbone key filled from an ajet key counts as the ajet
key.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from ajet.config.backbones import Descriptor, list_shipped_backbones
from ajet.config.document import list_leaves, read_document
from ajet.config.plugins import describe_broken
from ajet.config.schema import agentrl
from ajet.config.schema.accepted import ACCEPTED, FIXED, MOVED, explain_accepted_key, map_moved_key
from ajet.config.schema.base import Section, find_entry_model, find_section_model, walk_keys
from ajet.config.schema.extended import config_model
from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError


def list_top_names() -> Collection[str]:
    """Return the keys directly below `ajet:`, including names that are accepted without effect."""
    return {*config_model().model_fields, *(name.split(".")[0] for name in (*ACCEPTED, *FIXED, *MOVED))}


def is_settable(path: Sequence[Any]) -> bool:
    """Return True if a YAML may hold a value at `path` below `ajet`, with or without effect."""
    return find_key(map_moved_key(path)) is not None or explain_accepted_key(path) is not None


def find_key(path: Sequence[Any]) -> FieldInfo | type[Section] | None:
    """Return the schema's field or section at `path` below `ajet`, or None for an unknown key.

    A path into a free mapping or into a list returns the field that holds it.
    """
    model: type[Section] = config_model()
    is_named_section = False  # True after a mapping of sections, where any name leads to a section
    for index, name in enumerate(path):
        if is_named_section:
            is_named_section = False
            continue
        field = model.model_fields.get(name) if isinstance(name, str) else None
        if field is None:
            return None
        nested_section = find_section_model(field)
        deeper_path = path[index + 1 :]
        if (entry_model := find_entry_model(field)) is not None and len(deeper_path) > 1:
            model, is_named_section = entry_model, True
            continue
        if nested_section is None:
            return (
                field if not deeper_path or "dict" in str(field.annotation) or isinstance(deeper_path[0], int) else None
            )
        model = nested_section
    return model


def describe_keys(section: type[Section] | None) -> str:
    """Return "a mapping of keys: …" with the section's first five keys, for error messages."""
    names = list(section.model_fields) if section is not None else []
    return f"a mapping of keys: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "a mapping"


@lru_cache(maxsize=1)
def list_dotted_keys() -> tuple[str, ...]:
    """Return the dotted name of every key below `ajet` ("rollout.num_repeat"), then those of the sections."""
    key_names = [".".join(path) for path, _, _ in walk_keys(config_model())]
    sections = {key.rsplit(".", depth)[0] for key in key_names for depth in range(1, key.count(".") + 1)}
    return (*key_names, *sorted(sections))


def suggest_key(path: Sequence[Any]) -> str | None:
    """Return the valid key most similar to an unknown one, or None.

    Preferred is a similar name in the same section, then a similar last name anywhere, then a similar dotted key.
    """
    *parents, name = [str(part) for part in path]
    section = ".".join(parents)
    siblings = [key for key in list_dotted_keys() if key.rpartition(".")[0] == section]
    similar = get_close_matches(name, [key.rpartition(".")[2] for key in siblings], 1, cutoff=0.6)
    if similar:
        return ".".join([*parents, similar[0]])
    full_key = ".".join([*parents, name])
    keys_by_last_name: dict[str, list[str]] = {}
    for key in list_dotted_keys():
        keys_by_last_name.setdefault(key.rpartition(".")[2], []).append(key)
    same_names = get_close_matches(name, keys_by_last_name, 1, cutoff=0.75)
    if same_names:
        return max(keys_by_last_name[same_names[0]], key=lambda key: SequenceMatcher(None, key, full_key).ratio())
    similar_keys = get_close_matches(full_key, list_dotted_keys(), 1, cutoff=0.75)
    return similar_keys[0] if similar_keys else None


_FILLED = re.compile(r"(?P<translated>\$\{ajet\.pick:)?\$\{(?P<key>ajet(\.\w+)+)\}")


class Counterpart(NamedTuple):
    """The key of ajet from which a backbone's key gets its value."""

    key: str
    same: bool
    """True if values have the same meaning in both keys."""


def find_counterpart(path: Sequence[Any], layers: tuple[Path, ...]) -> Counterpart | None:
    """Return ajet's key that decides a backbone's key, or None.

    Args:
        path: The backbone's key, for example (`actor_rollout_ref`, `model`, `lora_rank`).
        layers: YAMLs that fill the backbone's configuration from ajet's keys.
    """
    return _read_counterparts(layers).get(tuple(path))


def list_counterparts(layers: tuple[Path, ...]) -> dict[tuple[Any, ...], Counterpart]:
    """Return ajet's deciding key of each backbone key that has one, by the backbone key's path.

    Args:
        layers: YAMLs that fill the backbone's configuration from ajet's keys.
    """
    return dict(_read_counterparts(layers))


def find_first_filled(key: str, layers: tuple[Path, ...]) -> tuple[Any, ...] | None:
    """Return the path of the first backbone key that is filled from ajet's key `key`, or None.

    Args:
        layers: YAMLs that fill the backbone's configuration from ajet's keys.
    """
    return next((path for path, counterpart in _read_counterparts(layers).items() if counterpart.key == key), None)


@lru_cache(maxsize=8)
def _read_counterparts(layers: tuple[Path, ...]) -> dict[tuple[Any, ...], Counterpart]:
    """Return ajet's deciding key by backbone key, read from the interpolations (`${ajet.…}`) in the layers' YAMLs."""
    counterparts = {}
    for layer in layers:
        for path, value in list_leaves(read_document(layer).tree):
            filled = _FILLED.match(value) if isinstance(value, str) else None
            if filled is not None and find_key(filled["key"].split(".")[1:]) is not None:
                counterparts[path] = Counterpart(filled["key"], not filled["translated"] and filled.end() == len(value))
    return counterparts


_SECTION = "my_section"
_SHOWN = 4
"""Limit on listed counterparts of a section's keys in a line."""
_NO_MASKING = "ajet masks no personal data in traces; write a function that does, and set `mask: mask.py->mask_text`"
REMOVED = {
    "task_reader.tracing.deidentify": _NO_MASKING,
    "task_reader.tracing.names": _NO_MASKING,
    "environment.mcp_client": "ajet's MCP client supports all revisions of the protocol: delete the line",
}
"""Removed keys, each with the replacement."""


def make_unknown_key_error(
    path: Sequence[Any], *, where: str, value: Any = None, also: Collection[str] = ()
) -> ConfigError:
    """Return the error for a key that is not in the schema, with the most likely cure.

    Args:
        path: The key, below `ajet`.
        where: The key's place in the YAML, or the override.
        value: The key's value, if known.
        also: The user's own top-level names, of which the key may be a misspelling.
    """
    dotted_key = ".".join(str(part) for part in path)
    if (dotted := next((part for part in path if isinstance(part, str) and "." in part), None)) is not None:
        *parents, last = dotted.split(".")
        return ConfigError(
            f"`{dotted}` is read as one key whose name contains a dot.",
            where=where,
            expected="a nested mapping: one level of indentation for each part of the name",
            do=f"write `{': {'.join(parents)}: {{{last}: …{'}' * len(parents)}`, or give {dotted_key}=… on the command "
            "line",
        )
    if misplaced := _describe_misplaced(path, value):
        return ConfigError(f"There is no key ajet.{dotted_key}.", where=where, do=misplaced)
    similar = suggest_key(path)
    advice = f"put a key of your own into a section next to `ajet:`; the code reads it as config.{_SECTION}.{path[-1]}"
    if broken := describe_broken():
        advice = f"{advice}. {broken}"
    replacement = _find_advice(dotted_key) or REMOVED.get(dotted_key, "")
    if not replacement and (similar is None or similar.rpartition(".")[2] != path[-1]):
        replacement = _find_by_last_name(str(path[-1])) or agentrl.advice(str(path[-1]))
    if replacement:
        return ConfigError(f"There is no key ajet.{dotted_key}.", where=where, do=f"{replacement}; {advice}")
    if similar is None and also:
        roots = get_close_matches(str(path[0]), list(also), 1)
        similar = ".".join([roots[0], *map(str, path[1:])]) if roots else None
        return ConfigError(
            f"There is no key {dotted_key}.",
            where=where,
            do=f"did you mean {similar}?" if similar else f"see `{format_command('config', 'show')}`",
        )
    return ConfigError(
        f"There is no key ajet.{dotted_key}.",
        where=where,
        do=f"did you mean ajet.{similar}? ({advice})"
        if similar
        else f"{advice}; docs/reference/configuration.md lists ajet's keys",
    )


def _describe_misplaced(path: Sequence[Any], value: Any) -> str:
    """Return where a backbone's section belongs that was written below `ajet:`, or "" for any other key."""
    root = str(path[0])
    owner = next(
        (backbone for backbone in list_shipped_backbones().values() if root in (*backbone.roots, *backbone.sections)),
        None,
    )
    is_section = len(path) > 1 or value is None or isinstance(value, Mapping)
    if owner is None or root in list_top_names() or not is_section:
        return ""
    right_place = (
        "at the top level, next to `ajet:`" if root in owner.roots else f"below `{owner.name}:` at the top level"
    )
    section_keys = (
        [(*path, *inner_path) for inner_path, _ in list_leaves(value)]
        if isinstance(value, Mapping) and value
        else [tuple(path)]
    )
    similar_keys = list(dict.fromkeys(ajet_key for key in section_keys for ajet_key in _list_ours(key, owner)))
    ajet_keys = (
        f"; ajet's own keys for it are {', '.join(similar_keys[:_SHOWN])}{', …' if len(similar_keys) > _SHOWN else ''}"
        if similar_keys
        else ""
    )
    return f"`{root}` is a section of {owner.name}: write it {right_place}{ajet_keys}"


def _list_ours(key: Sequence[Any], owner: Descriptor) -> Iterator[str]:
    """Yield ajet's key for a backbone's key, or the advice on it; nothing if there is neither.

    Args:
        key: The key's path in the YAML, with or without the backbone's name in front.
        owner: The backbone that the key belongs to.
    """
    backbone_path = tuple(part for part in (key[1:] if key[0] == owner.name else key) if isinstance(part, str))
    dotted = ".".join(backbone_path)
    if (counterpart := find_counterpart(backbone_path, owner.filled)) is not None:
        yield counterpart.key
    elif like := {**owner.advice.like, **owner.advice.short}.get(dotted):
        yield f"ajet.{like}"
    elif advice := {**owner.advice.instead, **owner.advice.list_unread()}.get(dotted):
        yield advice


def _find_advice(dotted: str) -> str:
    """Return which key of ajet replaces a backbone's key of this dotted name, or "" if no backbone has advice on it."""
    for owner in list_shipped_backbones().values():
        if (ajet_key := owner.advice.short.get(dotted)) is not None:
            return f"in ajet, {owner.name}'s {dotted} is {ajet_key}"
        if (ajet_key := owner.advice.instead.get(dotted)) is not None:
            page = f" ({owner.defaults_page})" if owner.defaults_page else ""
            return f"in ajet, {owner.name}'s {dotted} is {ajet_key}{page}"
    return ""


def _find_by_last_name(name: str) -> str:
    """Return which key of ajet replaces the backbone keys with this last name, or "" unless it is a single one."""
    candidates = {
        (owner.name, ".".join(map(str, path)), counterpart.key.removeprefix("ajet."))
        for owner in list_shipped_backbones().values()
        for path, counterpart in list_counterparts(owner.filled).items()
        if path[-1] == name
    }
    candidates |= {
        (owner.name, key, ajet_key)
        for owner in list_shipped_backbones().values()
        for key, ajet_key in {**owner.advice.list_unread(), **owner.advice.like, **owner.advice.short}.items()
        if key.rpartition(".")[2] == name
    }
    if len({ajet_key for *_, ajet_key in candidates}) != 1:
        return ""
    owner, key, ajet_key = min(candidates)
    return f"in ajet, {owner}'s {key} is {ajet_key}"
