"""Keys of verl by the nearest key of ours.

Invariant: the layers that compose verl's configuration out of ours are the only list: a key of verl that one of them
fills from a key of ours is that key's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ajet.config.compose import leaves
from ajet.config.document import read_document
from ajet.config.locations import default_config

_FILLED = re.compile(r"(?P<translated>\$\{ajet\.pick:)?\$\{(?P<key>ajet(\.\w+)+)\}")
_LAYERS = ("verl_default", "verl_fsdp")


class Nearest(NamedTuple):
    """A key of ours."""

    key: str
    same: bool
    """Whether values of verl's key mean the same there."""


def nearest_of_ours(path: Sequence[Any]) -> Nearest | None:
    """Ours for the key of verl at `path` (`actor_rollout_ref`, `model`, `lora_rank`); None where it has none."""
    return _known().get(tuple(path))


@lru_cache(maxsize=1)
def _known() -> dict[tuple[Any, ...], Nearest]:
    found = {}
    for name in _LAYERS:
        for path, value in leaves(read_document(default_config() / "verl" / f"{name}.yaml").tree):
            filled = _FILLED.match(value) if isinstance(value, str) else None
            if filled is not None:
                found[path] = Nearest(filled["key"], not filled["translated"] and filled.end() == len(value))
    return found
