"""Keys by their dotted path: does one exist, and which is nearest; a backbone's own keys by the nearest of ours.

Invariant: the schema is the only list of keys, and its table of accepted names of those that do nothing; this module
reads them and adds nothing. The layers that compose a backbone's configuration are the only list of counterparts: a key
that one of them fills from a key of ours is that key's; one filled from a value that no YAML can set is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from ajet.config.document import leaves, read_document
from ajet.config.schema.accepted import ACCEPTED, MOVED, UNCHANGED, accepted, moved
from ajet.config.schema.base import Section, sections_of, subsection, walk
from ajet.config.schema.extended import config_model


def first_names() -> Collection[str]:
    """The keys directly under `ajet:`, those that are only accepted among them."""
    return {*config_model().model_fields, *(name.split(".")[0] for name in (*ACCEPTED, *UNCHANGED, *MOVED))}


def may_be_set(path: Sequence[Any]) -> bool:
    """Whether a YAML may hold something at `path` below `ajet`, with an effect or without."""
    return find_key(moved(path)) is not None or accepted(path) is not None


def find_key(path: Sequence[Any]) -> FieldInfo | type[Section] | None:
    """The field (or section) at `path` below `ajet`; the field itself for a path into a free mapping or a list."""
    model: type[Section] = config_model()
    named = False  # of a mapping of sections: any name leads to one
    for index, name in enumerate(path):
        if named:
            named = False
            continue
        field = model.model_fields.get(name) if isinstance(name, str) else None
        if field is None:
            return None
        nested = subsection(field)
        rest = path[index + 1 :]
        if (each := sections_of(field)) is not None and len(rest) > 1:
            model, named = each, True
            continue
        if nested is None:
            return field if not rest or "dict" in str(field.annotation) or isinstance(rest[0], int) else None
        model = nested
    return model


def keys_of(section: type[Section] | None) -> str:
    """The words for a mapping of the section's first keys."""
    names = list(section.model_fields) if section is not None else []
    return f"a mapping of keys: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "a mapping"


@lru_cache(maxsize=1)
def dotted_keys() -> tuple[str, ...]:
    """Every plain key below `ajet`, e.g. "rollout.num_repeat", and every section."""
    plain = [".".join(path) for path, _, _ in walk(config_model())]
    sections = {key.rsplit(".", depth)[0] for key in plain for depth in range(1, key.count(".") + 1)}
    return (*plain, *sorted(sections))


def nearest_key(path: Sequence[Any]) -> str | None:
    """The valid key that an unknown one most likely means: a sibling with a similar name, or the same name (or a
    similar one) in another section."""
    *parents, name = [str(part) for part in path]
    home = ".".join(parents)
    siblings = [key for key in dotted_keys() if key.rpartition(".")[0] == home]
    near = get_close_matches(name, [key.rpartition(".")[2] for key in siblings], 1, cutoff=0.6)
    if near:
        return ".".join([*parents, near[0]])
    wanted = ".".join([*parents, name])
    names: dict[str, list[str]] = {}
    for key in dotted_keys():
        names.setdefault(key.rpartition(".")[2], []).append(key)
    alike = get_close_matches(name, names, 1, cutoff=0.75)
    if alike:
        return max(names[alike[0]], key=lambda key: SequenceMatcher(None, key, wanted).ratio())
    whole = get_close_matches(wanted, dotted_keys(), 1, cutoff=0.75)
    return whole[0] if whole else None


_FILLED = re.compile(r"(?P<translated>\$\{ajet\.pick:)?\$\{(?P<key>ajet(\.\w+)+)\}")


class Nearest(NamedTuple):
    """A key of ours."""

    key: str
    same: bool
    """Whether values mean the same there."""


def nearest_of_ours(path: Sequence[Any], layers: tuple[Path, ...]) -> Nearest | None:
    """Ours for the key at `path` (`actor_rollout_ref`, `model`, `lora_rank`) of the backbone that these layers compose;
    None where it has none."""
    return _known(layers).get(tuple(path))


def list_counterparts(layers: tuple[Path, ...]) -> dict[tuple[Any, ...], Nearest]:
    """Return each key that these layers fill from ours, and ours."""
    return dict(_known(layers))


def find_first_filled(key: str, layers: tuple[Path, ...]) -> tuple[Any, ...] | None:
    """Return the path of the first key that these layers fill from ours; None if they fill none."""
    return next((path for path, near in _known(layers).items() if near.key == key), None)


@lru_cache(maxsize=8)
def _known(layers: tuple[Path, ...]) -> dict[tuple[Any, ...], Nearest]:
    found = {}
    for layer in layers:
        for path, value in leaves(read_document(layer).tree):
            filled = _FILLED.match(value) if isinstance(value, str) else None
            if filled is not None and find_key(filled["key"].split(".")[1:]) is not None:
                found[path] = Nearest(filled["key"], not filled["translated"] and filled.end() == len(value))
    return found
