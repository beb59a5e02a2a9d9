"""Finds keys below `ajet` that verl's own sections override, and writes the effective values back to the experiment.

The files in `layers/` are the only mapping: a verl key is related to its source keys below `ajet`, directly or through
other verl keys. This module refuses nothing and works without verl installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from ajet.config.backbones import find_backbone
from ajet.config.document import KeyPath, list_leaves, read_document
from ajet.config.idle import find_last_layer, is_written_by_ajet, list_user_layers, locate_key
from ajet.config.keys import find_first_filled, find_key
from ajet.config.readiness import get_setting
from ajet.config.resolution import HIDDEN, is_secret_path
from ajet.config.schema.extended import config_model
from ajet_verl.config.effective import ACTOR, find_own
from ajet_verl.config.layer import compose_sections
from ajet_verl.verls import LIKE

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

_DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+")
_PICKED = re.compile(r"\$\{ajet\.pick:\$\{[\w.]+\},\{([^{}]*)\}(,)?")
"""Matches a value in a layer that a table of `ajet.pick` translates."""
_PASS = f"{ACTOR}.ppo_max_token_len_per_gpu"
"""verl's limit of tokens per forward pass, which ajet counts in the same unit."""
_MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
"""Key of verl with another unit: tasks per mini-batch, where ajet counts mini-batches."""
_NAME = "ajet.experiment_name"
"""Names the run's folder, independent of verl's experiment name."""


@dataclass(frozen=True, slots=True)
class OverriddenKey:
    """A key below `ajet` that the user set and that a key in a verl section overrides."""

    key: str
    where: str
    """Where the key is set: file:line, or the override."""
    verl_key: str
    verl_where: str
    value: Any
    """The value effective in verl. Interpolations of environment variables are shown as written."""
    own: Any
    """The overridden value below `ajet`."""


def find_overridden(experiment: Experiment) -> list[OverriddenKey]:
    """Return the user's keys below `ajet` that a verl section overrides with another value."""
    user_layers = list_user_layers(experiment.layers)
    overridden = []
    for verl_path, mapped_value, verl_value, key in _list_set_keys(experiment):
        users_setting, ajet_path = find_own(experiment.layers, verl_path), tuple(key.split("."))
        layer = find_last_layer(ajet_path, user_layers)
        if users_setting is None or layer is None or mapped_value == verl_value:
            continue
        verl_layer, path_in_layer = users_setting
        # ajet wrote this key itself with its default, so nothing of the user is overridden.
        if is_written_by_ajet(layer) and get_setting(experiment.ajet, ajet_path[1:]) == get_setting(
            config_model()(), ajet_path[1:]
        ):
            continue
        verl_key, verl_where = ".".join(map(str, path_in_layer)), locate_key(verl_layer, path_in_layer)
        written, own_value = verl_layer.get_value(path_in_layer), get_setting(experiment.ajet, ajet_path[1:])
        if is_secret_path(verl_path):
            verl_value = own_value = HIDDEN
        # The value of an environment variable may be a secret under any key; its name is none.
        shown_value = written if "oc.env" in str(written) else verl_value
        overridden.append(
            OverriddenKey(key, locate_key(layer, ajet_path), verl_key, verl_where, shown_value, own_value)
        )
    return overridden


def apply_sections(experiment: Experiment) -> Experiment:
    """Return the experiment with the values effective in verl.

    A verl value without an equivalent below `ajet` leaves the ajet key unchanged.
    """
    values: dict[str, tuple[str, list[Any]]] = {}
    batch_tasks = None
    for path, mapped_value, verl_value, key in _list_set_keys(experiment):
        verl_key = ".".join(path)
        if mapped_value == verl_value or key == _NAME:
            continue
        if verl_key == _MINI_BATCH:
            batch_tasks = batch_tasks or select_value(compose_sections(experiment)[1], "data.train_batch_size")
            if (
                isinstance(batch_tasks, int)
                and isinstance(verl_value, int)
                and verl_value > 0
                and batch_tasks % verl_value == 0
            ):
                values[key] = verl_key, [batch_tasks // verl_value]
        elif verl_key == _PASS or path == find_first_filled(key, find_backbone("verl").filled):
            values[key] = verl_key, _list_candidates(verl_value, _find_fill(verl_key))
    updated = experiment
    for key, (_, candidates) in values.items():
        for value in candidates:
            try:
                updated = updated.replace_defaults({key: value})
            except ValidationError:
                continue
            break
    # Compose again with the new values. A key that still does not give verl's value gets its old value back.
    composed, tree, _ = compose_sections(updated) if values else ({}, {}, {})
    reverted = {
        key: get_setting(experiment.ajet, tuple(key.split(".")[1:]))
        for key, (verl_key, _) in values.items()
        if verl_key != _MINI_BATCH and select_value(composed, verl_key) != select_value(tree, verl_key)
    }
    return updated.replace_defaults(reverted)


def _list_candidates(verl_value: Any, raw: str) -> list[Any]:
    """Return the values below `ajet` that may give a value in verl: the value itself, and those in the layer's table.

    The value itself is no candidate if the table has a default.

    Args:
        verl_value: the value in verl.
        raw: the layer's expression for the verl key.
    """
    match = _PICKED.match(raw)
    if match is None:
        return [verl_value]
    pairs = [pair.partition(":")[::2] for pair in match[1].split(",")]
    translated = [
        yaml.safe_load(ajet_text) for ajet_text, verl_text in pairs if yaml.safe_load(verl_text) == verl_value
    ]
    return translated if match[2] else [verl_value, *translated]


def _find_fill(verl: str) -> str:
    """Return the expression that ajet's layers write for a verl key, or "" if none does."""
    return next((raw for layer in find_backbone("verl").filled if (raw := _read_fill(layer, verl))), "")


def _read_fill(layer: Path, verl: str) -> str:
    """Return the expression that a YAML layer of ajet writes for a verl key, or "" if it writes none."""
    node: Any = read_document(layer).tree
    for name in verl.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, str) else ""


def describe_overridden(found: list[OverriddenKey]) -> str:
    """Describe the overridden keys in lines for screen or log, or return "" if there are none."""
    if not found:
        return ""
    rows = [
        f"  {overridden.key} ({overridden.where}) is {overridden.own}, overridden by {overridden.verl_key} "
        f"({overridden.verl_where}): verl gets {overridden.value}"
        for overridden in found
    ]
    return "\n".join(["Keys set twice, for which verl's own section is used:", *rows])


def _list_set_keys(experiment: Experiment) -> Iterator[tuple[KeyPath, Any, Any, str]]:
    """Yield a tuple for each key in the user's verl sections that is mapped from a key below `ajet`.

    Yields:
        (path of the verl key, value mapped from ajet, value effective in verl, source key below `ajet`).
    """
    if not experiment.backbone_overrides:
        return
    composed, tree, user_sections = compose_sections(experiment)
    # A list is one value: its positions are no keys.
    for path in dict.fromkeys(
        tuple(takewhile(lambda part: isinstance(part, str), path)) for path, _ in list_leaves(user_sections)
    ):
        dotted = ".".join(path)
        if (key := find_counterpart(dotted, composed)) is not None:
            yield path, select_value(composed, dotted), select_value(tree, dotted), key


def find_counterpart(dotted: str, known: Any, seen: frozenset[str] = frozenset()) -> str | None:
    """Return the key below `ajet` from which ajet's layers compute a verl key, or None.

    An entry in `LIKE` wins over the first key in the layer's expression.

    Args:
        dotted: the verl key.
        known: verl's config without the user's sections, with unresolved interpolations.
        seen: verl keys visited already, against cycles.
    """
    from omegaconf import OmegaConf

    *parents, name = dotted.split(".")
    node = select_value(known, ".".join(parents))
    if not OmegaConf.is_dict(node) or name not in node:
        return None
    plain: Any = OmegaConf.to_container(node, resolve=False)
    raw = plain[name]
    if not (isinstance(raw, str) and "${" in raw):
        return None
    if dotted in LIKE:
        return f"ajet.{LIKE[dotted]}"
    referenced_keys = _DOTTED.findall(raw)
    ajet_keys = [
        referenced
        for referenced in referenced_keys
        if referenced.startswith("ajet.") and find_key(referenced.split(".")[1:]) is not None
    ]
    indirect_keys = (
        find_counterpart(referenced, known, seen | {dotted}) for referenced in referenced_keys if referenced not in seen
    )
    return ajet_keys[0] if ajet_keys else next((ajet_key for ajet_key in indirect_keys if ajet_key is not None), None)


def select_value(tree: Any, dotted: str) -> Any:
    """Return the value at a dotted key of a composed config, or None."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(tree, dotted)
    except OmegaConfBaseException:  # an interpolation into verl's files without verl installed
        return None
    return value if not OmegaConf.is_list(value) else OmegaConf.to_container(value, resolve=True)
