"""verl's own sections over keys below `ajet`: which keys they override, and the experiment as verl gets it.

The files in `layers/` are the only mapping: a key of verl's is related to the keys of ours that it is
filled from, directly or through other keys of verl's. Nothing is refused here, and verl need not be installed.
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
"""A value of ours that a table translates."""
_PASS = f"{ACTOR}.ppo_max_token_len_per_gpu"
"""A bound in tokens, as ours is, where verl's own section sets it."""
_MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
"""Tasks of a mini batch, where ours counts the mini batches."""
_NAME = "ajet.experiment_name"
"""The run's folder has this name whatever verl calls the experiment."""


@dataclass(frozen=True, slots=True)
class OverriddenKey:
    """A key below `ajet` that the user set and that does not reach verl."""

    key: str
    where: str
    """file:line, or which override."""
    verl_key: str
    verl_where: str
    value: Any
    """The value that verl gets; one of the environment as it is written."""
    own: Any
    """The value below `ajet`, which it does not get."""


def find_overridden(experiment: Experiment) -> list[OverriddenKey]:
    """Return the user's keys below `ajet` for which a section of verl's sets another value."""
    users = list_user_layers(experiment.layers)
    found = []
    for verl, mapped, given, key in _list_set_keys(experiment):
        own, ours = find_own(experiment.layers, verl), tuple(key.split("."))
        layer = find_last_layer(ours, users)
        if own is None or layer is None or mapped == given:
            continue
        if is_written_by_ajet(layer) and get_setting(experiment.ajet, ours[1:]) == get_setting(
            config_model()(), ours[1:]
        ):
            continue
        places = locate_key(layer, ours), ".".join(map(str, own[1])), locate_key(own[0], own[1])
        written = own[0].get_value(own[1])
        shown = written if "oc.env" in str(written) else HIDDEN if is_secret_path(verl) else given
        own_value = HIDDEN if is_secret_path(verl) else get_setting(experiment.ajet, ours[1:])
        found.append(OverriddenKey(key, *places, shown, own_value))
    return found


def apply_sections(experiment: Experiment) -> Experiment:
    """Return the experiment whose keys below `ajet` have the values that verl gets from its own sections.

    A value that no key of ours can hold is verl's alone: its key below `ajet` stays as it is.
    """
    values: dict[str, tuple[str, list[Any]]] = {}
    batch = None
    for path, mapped, given, key in _list_set_keys(experiment):
        verl = ".".join(path)
        if mapped == given or key == _NAME:
            continue
        if verl == _MINI_BATCH:
            batch = batch or select_value(compose_sections(experiment)[1], "data.train_batch_size")
            if isinstance(batch, int) and isinstance(given, int) and given > 0 and batch % given == 0:
                values[key] = verl, [batch // given]
        elif verl == _PASS or path == find_first_filled(key, find_backbone("verl").filled):
            values[key] = verl, _list_candidates(given, _find_fill(verl))
    laid = experiment
    for key, (_, candidates) in values.items():
        for value in candidates:
            try:
                laid = laid.replace_defaults({key: value})
            except ValidationError:
                continue
            break
    known, tree, _ = compose_sections(laid) if values else ({}, {}, {})
    reverted = {
        key: get_setting(experiment.ajet, tuple(key.split(".")[1:]))
        for key, (verl, _) in values.items()
        if verl != _MINI_BATCH and select_value(known, verl) != select_value(tree, verl)
    }
    return laid.replace_defaults(reverted)


def _list_candidates(given: Any, raw: str) -> list[Any]:
    """Return the values of ours that may stand for one of verl's: itself, and what a table of the layer translates to
    it; itself not where the table has one value for all that it lacks."""
    found = _PICKED.match(raw)
    if found is None:
        return [given]
    pairs = [pair.partition(":")[::2] for pair in found[1].split(",")]
    translated = [yaml.safe_load(ours) for ours, theirs in pairs if yaml.safe_load(theirs) == given]
    return translated if found[2] else [given, *translated]


def _find_fill(verl: str) -> str:
    """Return how a layer fills a key of verl's."""
    return next((raw for layer in find_backbone("verl").filled if (raw := _read_fill(layer, verl))), "")


def _read_fill(layer: Path, verl: str) -> str:
    node: Any = read_document(layer).tree
    for name in verl.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, str) else ""


def describe_overridden(found: list[OverriddenKey]) -> str:
    """Return the lines for a screen or a log; "" for none."""
    if not found:
        return ""
    rows = [
        f"  {each.key} ({each.where}) is {each.own}, overridden by {each.verl_key} ({each.verl_where}): verl gets "
        f"{each.value}"
        for each in found
    ]
    return "\n".join(["Set twice; verl's own section counts:", *rows])


def _list_set_keys(experiment: Experiment) -> Iterator[tuple[KeyPath, Any, Any, str]]:
    """Yield each key that the user's sections set: its path, the value mapped from ours, the value that verl gets, and
    the key of ours that it is mapped from."""
    if not experiment.backbone_overrides:
        return
    known, tree, merged = compose_sections(experiment)
    # A list is one value: its places are no keys.
    for path in dict.fromkeys(
        tuple(takewhile(lambda part: isinstance(part, str), path)) for path, _ in list_leaves(merged)
    ):
        dotted = ".".join(path)
        if (key := find_counterpart(dotted, known)) is not None:
            yield path, select_value(known, dotted), select_value(tree, dotted), key


def find_counterpart(dotted: str, known: Any, seen: frozenset[str] = frozenset()) -> str | None:
    """Return the key of ours that a key of verl's is filled from; of several `LIKE`'s, or the first."""
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
    others = _DOTTED.findall(raw)
    ours = [each for each in others if each.startswith("ajet.") and find_key(each.split(".")[1:]) is not None]
    further = (find_counterpart(each, known, seen | {dotted}) for each in others if each not in seen)
    return ours[0] if ours else next((each for each in further if each is not None), None)


def select_value(tree: Any, dotted: str) -> Any:
    """Return the value at a dotted key of a composed config; None if there is none."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        found = OmegaConf.select(tree, dotted)
    except OmegaConfBaseException:  # an interpolation into verl's own files where verl is not installed
        return None
    return found if not OmegaConf.is_list(found) else OmegaConf.to_container(found, resolve=True)
