"""Keys below `verl:` that verl does not know.

Invariant: a key is refused only if no line of verl's source holds its name, so that nothing of verl can read it; what
verl hands on to other libraries (engine_kwargs, override_config, ray_init) may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.compose import ABSENT
from ajet.config.validate import together
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

_HANDED_ON = re.compile(r"override_.*|.*kwargs|ray_init|runtime_env|custom|env_vars")


def refuse_unknown(
    experiment: Experiment, users: Mapping[str, Any], known: Mapping[str, Any], sources: Iterator[Path]
) -> None:
    """Raises ConfigError that names the keys of `users` which neither `known` (verl's config and our layers) nor any of
    verl's `sources` holds."""
    strange = list(_strange(users, known, ()))
    if not strange:
        return
    names = {str(path[-1]) for path, _ in strange}
    for source in sources:
        names -= {name for name in names if re.search(rf"\b{re.escape(name)}\b", source.read_text(encoding="utf-8"))}
        if not names:
            return
    raise together([_refusal(experiment, path, keys) for path, keys in strange if path[-1] in names])


def _strange(node: Mapping[str, Any], known: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[tuple[Any, list[str]]]:
    """Each key that is not known, with those that are known beside it."""
    for name, value in node.items():
        path = (*at, str(name))
        if name not in known:
            yield path, [str(key) for key in known]
        elif isinstance(value, Mapping) and _is_closed(str(name), known[name]):
            yield from _strange(value, known[name], path)


def _is_closed(name: str, known: Any) -> bool:
    return isinstance(known, Mapping) and bool(known) and not _HANDED_ON.fullmatch(name)


def _refusal(experiment: Experiment, path: tuple[str, ...], beside: list[str]) -> ConfigError:
    layers = experiment.layers
    whole = next(
        (each for each in (path, ("verl", *path)) if any(layer.value(each) is not ABSENT for layer in layers.stack)),
        path,
    )
    near = get_close_matches(path[-1], beside, 1)
    return ConfigError(
        f"verl has no key {'.'.join(path)}.",
        where=layers.where(whole),
        do=f"did you mean {'.'.join((*whole[:-1], near[0]))}?" if near else "",
    )
