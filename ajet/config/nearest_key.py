"""Keys of a backbone's own by the nearest key of ours.

Invariant: the layers that compose its configuration out of ours are the only list: a key of its own that one of them
fills from a key of ours is that key's. What a layer fills from a value that no YAML can set is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ajet.config.document import leaves, read_document
from ajet.config.keys import find_key

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
