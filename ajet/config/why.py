"""Explains where a value comes from: the value in each layer (source), and the layer that wins.

Invariant: the printed winner is the value that the run uses. Secrets are hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ajet.config.compose import ABSENT
from ajet.config.document import KeyPath
from ajet.config.experiment import Experiment
from ajet.config.idle import find_idle_reason
from ajet.config.keys import find_key, make_unknown_key_error
from ajet.config.resolution import is_literal_secret, is_secret_path
from ajet.config.schema.accepted import explain_accepted_key, map_moved_key
from ajet.config.schema.base import describe_field, walk_keys
from ajet.config.schema.extended import config_model
from ajet.schema.secrets import replace_secret_shapes


def explain_key(experiment: Experiment, key: str) -> Iterator[str]:
    """Yield lines of text with the value of a key in each layer, and the layer that wins.

    For a section, each of its set keys gets one line.

    Raises:
        ConfigError: The key does not exist.
    """
    short_key = key.removeprefix("ajet.")
    if (sentence := explain_accepted_key(short_key.split("."))) is not None:
        yield f"ajet.{short_key} may be set, but has no effect: {sentence}"
        return
    path = _parse_key(experiment, key)
    value = _get_node(experiment.config.to_dict(), path)
    if not isinstance(value, dict):
        yield from _explain_one_key(experiment, path, value)
        return
    for leaf, inner in _walk_leaves(value, path):
        layer = experiment.layers.find_winner(leaf)
        location = layer.locate(leaf) if layer else ""
        yield f"{_join_path(leaf)} = {_format_value(leaf, inner)}    ({location})"


def list_origins(experiment: Experiment) -> dict[str, str]:
    """Return where each value that is not ajet's default was set: file name and line, flag or override, by key."""
    tree = experiment.config.to_dict()
    default_layer = experiment.layers.stack[0]
    origins = {}
    for leaf, _ in _walk_leaves(tree, ()):
        layer = experiment.layers.find_winner(leaf)
        if layer is not None and layer is not default_layer:
            location = layer.locate(leaf)
            origins[_join_path(leaf)] = (
                location.removeprefix(f"{layer.document.path.parent}/") if layer.document else location
            )
    return origins


def _parse_key(experiment: Experiment, key: str) -> KeyPath:
    """Return the path of a key as the user wrote it: with or without `ajet.`, or under a name that ajet has changed.

    Raises:
        ConfigError: The key does not exist.
    """
    written_path: KeyPath = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    path = ("ajet", *map_moved_key(written_path[1:])) if written_path[0] == "ajet" else map_moved_key(written_path)
    tree = experiment.config.to_dict()
    top_sections = {*experiment.sections, *experiment.backbone_overrides}
    path_below_ajet = path[1:] if path[0] == "ajet" else path
    if not path_below_ajet or find_key(path_below_ajet) is not None:
        path = ("ajet", *path_below_ajet)
    if _get_node(tree, path) is ABSENT:
        raise make_unknown_key_error(path_below_ajet, where=f"ajet config why {key}", also=top_sections)
    return path


def _explain_one_key(experiment: Experiment, path: KeyPath, value: Any) -> Iterator[str]:
    """Yield lines on one key: its value, meaning, effect, and value in each layer with an arrow at the winner."""
    yield f"{_join_path(path)} = {_format_value(path, value)}"
    if path[0] == "ajet":
        field = find_key(path[1:])
        if field is not None and not isinstance(field, type):
            yield f"  {describe_field(field)}"
            yield from _explain_no_effect(experiment, path[1:])
    winner = experiment.layers.find_winner(path)
    titles = [layer.title for layer in experiment.layers.stack]
    width = max(map(len, titles))
    for layer in experiment.layers.stack:
        value_here = layer.get_value(path)
        if value_here is ABSENT:
            yield f"    {layer.title:<{width}}  -"
            continue
        location = f"  {layer.locate(path)}" if layer.document else ""
        yield f"  {'→' if layer is winner else ' '} {layer.title:<{width}}  {_format_value(path, value_here)}{location}"


def _explain_no_effect(experiment: Experiment, inside: KeyPath) -> Iterator[str]:
    """Yield a line with the reason if the key at the path `inside` below `ajet` has no effect in this run."""
    config = experiment.ajet
    for path, _, notes in walk_keys(config_model()):
        if path == inside and (idle := find_idle_reason(notes, config, experiment.backbone)) is not None:
            yield f"  It has no effect on the backbone {config.backbone}: {idle.why}"


def _walk_leaves(tree: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) of each value in nested mappings; an empty mapping counts as a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _walk_leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _get_node(tree: Any, path: KeyPath) -> Any:
    """Return the value at a path of nested mappings and lists, or ABSENT."""
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return tree


def _join_path(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _format_value(path: KeyPath, value: Any) -> str:
    """Return a value as YAML on one line, with secrets hidden."""
    from ajet.config.document import dump_yaml

    if is_secret_path(path) and is_literal_secret(value) and "${" not in str(value):
        return "(hidden)"
    if isinstance(value, str):
        value = replace_secret_shapes(value, "(hidden)")
    text = dump_yaml({"v": value}).removeprefix("v:").strip()
    return text if "\n" not in text else repr(value)
