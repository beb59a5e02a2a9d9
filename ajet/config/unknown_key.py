"""The error for a key below `ajet:` that does not exist, with what was most likely meant.

Invariant: the schema, the layers of the backbones and the tables of other programs' names are the only sources; this
module reads them and adds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ajet.config.backbones import Descriptor, shipped
from ajet.config.document import leaves
from ajet.config.keys import first_names, list_counterparts, nearest_key, nearest_of_ours
from ajet.config.plugins import describe_broken
from ajet.config.schema import agentrl
from ajet.schema.commands import command
from ajet.schema.errors import ConfigError

_SECTION = "my_section"
_SHOWN = 4
"""Counterparts of a section's keys that one line names."""
_NO_MASKING = "ajet masks no personal data in traces; set `mask: mask.py->mask_text` to a function of yours"
REMOVED = {
    "task_reader.tracing.deidentify": _NO_MASKING,
    "task_reader.tracing.names": _NO_MASKING,
    "environment.mcp_client": "there is one MCP client, which speaks all revisions: delete the line",
}
"""Keys that existed once, each with what to write instead."""


def unknown_key(path: Sequence[Any], *, where: str, value: Any = None, also: Collection[str] = ()) -> ConfigError:
    """Return the error for a key that is not in the schema.

    Args:
        value: what it was set to, where known.
        also: the user's own root names.
    """
    shown = ".".join(str(part) for part in path)
    if (dotted := next((part for part in path if isinstance(part, str) and "." in part), None)) is not None:
        *above, last = dotted.split(".")
        return ConfigError(
            f"`{dotted}` is one key, with a dot in its name.",
            where=where,
            expected="one level of indentation for each name",
            do=f"write `{': {'.join(above)}: {{{last}: …{'}' * len(above)}`, or give {shown}=… on the command line",
        )
    if misplaced := _describe_misplaced(path, value):
        return ConfigError(f"There is no key ajet.{shown}.", where=where, do=misplaced)
    near = nearest_key(path)
    own = f"a key of your own goes into a section beside `ajet:`, and is read as config.{_SECTION}.{path[-1]}"
    if broken := describe_broken():
        own = f"{own}. {broken}"
    brought = _find_advice(shown) or REMOVED.get(shown, "")
    if not brought and (near is None or near.rpartition(".")[2] != path[-1]):
        brought = _find_by_last_name(str(path[-1])) or agentrl.advice(str(path[-1]))
    if brought:
        return ConfigError(f"There is no key ajet.{shown}.", where=where, do=f"{brought}; {own}")
    if near is None and also:
        roots = get_close_matches(str(path[0]), list(also), 1)
        near = ".".join([roots[0], *map(str, path[1:])]) if roots else None
        return ConfigError(
            f"There is no key {shown}.",
            where=where,
            do=f"did you mean {near}?" if near else f"see `{command('config', 'show')}`",
        )
    return ConfigError(
        f"There is no key ajet.{shown}.",
        where=where,
        do=f"did you mean ajet.{near}? ({own})" if near else f"{own}; ours are in docs/configuration.md",
    )


def _describe_misplaced(path: Sequence[Any], value: Any) -> str:
    """Return where a backbone's own section belongs that stands below `ajet:`; "" for any other key."""
    root = str(path[0])
    owner = next((each for each in shipped().values() if root in (*each.roots, *each.sections)), None)
    is_section = len(path) > 1 or value is None or isinstance(value, Mapping)
    if owner is None or root in first_names() or not is_section:
        return ""
    place = "at the top level, beside `ajet:`" if root in owner.roots else f"below `{owner.name}:` at the top level"
    keys = [(*path, *rest) for rest, _ in leaves(value)] if isinstance(value, Mapping) and value else [tuple(path)]
    ours = list(dict.fromkeys(each for key in keys for each in _list_ours(key, owner)))
    here = f"; below `ajet:` it is {', '.join(ours[:_SHOWN])}{', …' if len(ours) > _SHOWN else ''}" if ours else ""
    return f"`{root}` is {owner.name}'s own: write it {place}{here}"


def _list_ours(key: Sequence[Any], owner: Descriptor) -> Iterator[str]:
    own = tuple(part for part in (key[1:] if key[0] == owner.name else key) if isinstance(part, str))
    dotted = ".".join(own)
    if (near := nearest_of_ours(own, owner.filled)) is not None:
        yield near.key
    elif like := {**owner.advice.like, **owner.advice.short}.get(dotted):
        yield f"ajet.{like}"
    elif here := {**owner.advice.instead, **owner.advice.list_unread()}.get(dotted):
        yield here


def _find_advice(dotted: str) -> str:
    """Return what a backbone's descriptor says of a key of its own by that name; "" if none knows it."""
    for owner in shipped().values():
        if (ours := owner.advice.short.get(dotted)) is not None:
            return f"{owner.name}'s {dotted} is here {ours}"
        if (ours := owner.advice.instead.get(dotted)) is not None:
            page = f" ({owner.defaults_page})" if owner.defaults_page else ""
            return f"{owner.name}'s {dotted} is here {ours}{page}"
    return ""


def _find_by_last_name(name: str) -> str:
    """Return what a key of a backbone's own with that last name is here; "" if there is none, or several."""
    found = {
        (owner.name, ".".join(map(str, path)), near.key.removeprefix("ajet."))
        for owner in shipped().values()
        for path, near in list_counterparts(owner.filled).items()
        if path[-1] == name
    }
    found |= {
        (owner.name, key, ours)
        for owner in shipped().values()
        for key, ours in {**owner.advice.list_unread(), **owner.advice.like, **owner.advice.short}.items()
        if key.rpartition(".")[2] == name
    }
    if len({ours for *_, ours in found}) != 1:
        return ""
    owner, key, ours = min(found)
    return f"{owner}'s {key} is here {ours}"
