"""Where a value comes from: each layer's, and the winner.

Invariant: what is printed as the winner is what the run uses; secrets are hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ajet.config.compose import ABSENT
from ajet.config.document import KeyPath
from ajet.config.experiment import Experiment
from ajet.config.idle import idle_reason
from ajet.config.keys import find_key, unknown_key
from ajet.config.resolution import is_literal, is_secret
from ajet.config.schema.accepted import accepted, moved
from ajet.config.schema.base import described, walk
from ajet.config.schema.extended import config_model
from ajet.schema.secrets import without_secret_shapes


def explain(experiment: Experiment, key: str) -> Iterator[str]:
    """Lines that say, for a key (or each key of a section that anybody set), the value in each layer and the winner.
    Raises ConfigError for a key that does not exist."""
    named = key.removeprefix("ajet.")
    if (sentence := accepted(named.split("."))) is not None:
        yield f"ajet.{named} may be set, and has no effect: {sentence}"
        return
    path = _path(experiment, key)
    value = _at(experiment.config.to_dict(), path)
    if not isinstance(value, dict):
        yield from _one(experiment, path, value)
        return
    for leaf, inner in _leaves(value, path):
        layer = experiment.layers.winner(leaf)
        place = layer.where(leaf) if layer else ""
        yield f"{_dotted(leaf)} = {_shown(leaf, inner)}    ({place})"


def origins(experiment: Experiment) -> dict[str, str]:
    """Key -> where its value was set, of all that is not ajet's default: a file's name and line, a flag or an
    override."""
    tree = experiment.config.to_dict()
    first = experiment.layers.stack[0]
    found = {}
    for leaf, _ in _leaves(tree, ()):
        layer = experiment.layers.winner(leaf)
        if layer is not None and layer is not first:
            place = layer.where(leaf)
            found[_dotted(leaf)] = place.removeprefix(f"{layer.document.path.parent}/") if layer.document else place
    return found


def _path(experiment: Experiment, key: str) -> KeyPath:
    written: KeyPath = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    path = ("ajet", *moved(written[1:])) if written[0] == "ajet" else moved(written)
    tree = experiment.config.to_dict()
    own = {*experiment.sections, *experiment.backbone_overrides}
    inside = path[1:] if path[0] == "ajet" else path
    if not inside or find_key(inside) is not None:
        path = ("ajet", *inside)
    if _at(tree, path) is ABSENT:
        raise unknown_key(inside, where=f"ajet config why {key}", also=own)
    return path


def _one(experiment: Experiment, path: KeyPath, value: Any) -> Iterator[str]:
    yield f"{_dotted(path)} = {_shown(path, value)}"
    if path[0] == "ajet":
        field = find_key(path[1:])
        if field is not None and not isinstance(field, type):
            yield f"  {described(field)}"
            yield from _without_effect(experiment, path[1:])
    winner = experiment.layers.winner(path)
    titles = [layer.title for layer in experiment.layers.stack]
    width = max(map(len, titles))
    for layer in experiment.layers.stack:
        said = layer.value(path)
        if said is ABSENT:
            yield f"    {layer.title:<{width}}  -"
            continue
        place = f"  {layer.where(path)}" if layer.document else ""
        yield f"  {'→' if layer is winner else ' '} {layer.title:<{width}}  {_shown(path, said)}{place}"


def _without_effect(experiment: Experiment, inside: KeyPath) -> Iterator[str]:
    config = experiment.ajet
    for path, _, notes in walk(config_model()):
        if path == inside and (idle := idle_reason(notes, config, experiment.backbone)) is not None:
            yield f"  It has no effect on the backbone {config.backbone}: {idle.why}"


def _leaves(tree: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return tree


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _shown(path: KeyPath, value: Any) -> str:
    from ajet.config.document import dump_yaml

    if is_secret(path) and is_literal(value) and "${" not in str(value):
        return "(hidden)"
    if isinstance(value, str):
        value = without_secret_shapes(value, "(hidden)")
    text = dump_yaml({"v": value}).removeprefix("v:").strip()
    return text if "\n" not in text else repr(value)
