"""Finds idle keys: keys that the user has set and that have no effect in this run.

Invariant: the result follows from the schema (`idle`, `when`), the backbone's descriptor, the table of accepted keys
and the layers (sources of values). Idle keys are never refused. Each key has a line with key, place and reason. Keys of
a section with equal reasons share a line. A resolved file of ajet holds every key, so only values different from the
default count as set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from ajet.config.backbones import Descriptor, find_backbone, list_shipped_backbones
from ajet.config.compose import ABSENT, Layer, Layers
from ajet.config.document import KeyPath, list_leaves
from ajet.config.keys import find_counterpart
from ajet.config.plugins import find_all_parts
from ajet.config.schema import AjetConfig
from ajet.config.schema.accepted import ACCEPTED
from ajet.config.schema.base import EVERYWHERE, OF_CLIENTS, SERVE, IdleReason, list_values, walk_keys
from ajet.config.schema.choices import is_reference
from ajet.config.schema.extended import config_model
from ajet.config.schema.sft import IDLE_IN_SFT as GIVEN
from ajet.config.unread_sections import find_unread_keys

RESOLVED = "# The resolved config of "
"""First line of a resolved file."""


@dataclass(frozen=True, slots=True)
class IdleKeys:
    """Keys of one section without effect, with their common reason."""

    keys: tuple[str, ...]
    """Full dotted names of the keys."""
    section: str
    """The section of several keys."""
    where: str
    """file:line of the first key, or the override."""
    why: str

    @property
    def name(self) -> str:
        """The key, or the section with the number of its keys."""
        return self.keys[0] if len(self.keys) == 1 else f"{self.section} ({len(self.keys)} keys)"


def find_idle_reason(
    notes: dict[str, Any], config: AjetConfig, backbone: Descriptor, *, serving: bool = False
) -> IdleReason | None:
    """Return why a key has no effect with this backbone and these settings, or None if it has one.

    The reason is that of the outermost section without effect.

    Args:
        notes: the key's notes, from `walk_keys`.
        serving: True in `ajet serve`.
    """
    validates = serving and config.rollout.user_workflow is not None and "trains" in backbone.can
    declared = (
        None if _is_chosen(notes.get("unless"), config) else _find_declared_reason(notes, backbone, serving, validates)
    )
    reasons: list[IdleReason] = [declared] if declared is not None else []
    if (
        config.sft.objective is not None
        and not serving
        and (sft_reason := _find_in_table(GIVEN, notes["path"])) is not None
    ):
        reasons.append(sft_reason)
    for choice in notes["when"]:
        spelled = _spell_value(_get_setting(config, choice.key))
        values = list_values(choice.values, find_all_parts("store"))
        if spelled not in values and not (choice.or_own and is_reference(spelled)):
            reasons.append(IdleReason(choice.source, f"{choice.key} is {spelled}"))
    return min(reasons, key=lambda reason: len(reason.source), default=None)


def _spell_value(value: Any) -> str:
    """Return the value as a YAML spells it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _is_chosen(choice: Sequence[str] | None, config: AjetConfig) -> bool:
    return choice is not None and _get_setting(config, choice[0]) == choice[1]


def _get_setting(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _find_declared_reason(
    notes: dict[str, Any], backbone: Descriptor, serving: bool, validates: bool
) -> IdleReason | None:
    """Return the reason that the schema declares for a key, or else the one in the backbone's descriptor.

    Args:
        validates: True if the server runs held-out tasks as a training run does.
    """
    for scope in (SERVE,) * serving + (EVERYWHERE,):
        if scope in notes["idle"]:
            reason: IdleReason | None = notes["idle"][scope]
            if not (validates and reason is not None and reason.why in OF_CLIENTS):
                return reason
    return _find_in_table(backbone.idle, notes["path"])


def _find_in_table(table: Mapping[str, str | None], path: tuple[str, ...]) -> IdleReason | None:
    """Return the reason of the longest prefix of `path` in a table of dotted keys."""
    for depth in range(len(path), 0, -1):
        if (name := ".".join(path[:depth])) in table:
            reason = table[name]
            return None if reason is None else IdleReason(path[:depth], reason)
    return None


def find_idle_keys(config: AjetConfig, layers: Layers, *, serving: bool = False) -> list[IdleKeys]:
    """Return the keys set by the user that have no effect, in the order of the layers.

    Args:
        layers: all sources of values.
        serving: True in `ajet serve`.
    """
    users = list_user_layers(layers)
    shared: dict[tuple[str, str], list[_IdleKey]] = {}
    others = [
        *_find_keys_of_other_backbones(config, users),
        *_find_keys_decided_by_ours(config, users),
        *_find_unread_keys(config, users),
    ]
    idle_keys = [*_find_ineffective_keys(config, users, serving), *_find_accepted_keys(users), *others]
    for key in sorted(idle_keys, key=lambda key: key.place):
        shared.setdefault((key.section, key.why), []).append(key)
    return [
        IdleKeys(tuple(each.name for each in same_reason), section, same_reason[0].where, reason)
        for (section, reason), same_reason in shared.items()
    ]


def format_idle_keys(idle_keys: Sequence[IdleKeys], place: str) -> str:
    """Return all idle keys as text under a heading with the place, or "" without idle keys."""
    if not idle_keys:
        return ""
    rows = [f"  {key.name} ({key.where}): {key.why}" for key in idle_keys]
    return "\n".join([f"Keys that are set but have no effect {place}:", *rows])


def list_user_layers(layers: Layers) -> tuple[Layer, ...]:
    """Return the layers that the user wrote: the YAML, flags and overrides."""
    # The last layer with a document is the user's YAML; flags and overrides follow it.
    return layers.stack[max(index for index, layer in enumerate(layers.stack) if layer.document is not None) :]


class _IdleKey(NamedTuple):
    """One key without effect, with its place and reason."""

    name: str
    section: str
    place: tuple[int, int]
    """Index of the layer, and line."""
    where: str
    why: str


def _find_ineffective_keys(config: AjetConfig, users: Sequence[Layer], serving: bool) -> Iterator[_IdleKey]:
    backbone = find_backbone(config.backbone)
    for path, field, notes in walk_keys(config_model()):
        full = ("ajet", *path)
        layer = find_last_layer(full, users)
        if layer is None or (is_written_by_ajet(layer) and field.default in (layer.get_value(full), "auto")):
            continue  # ajet wrote this value: the default, or the value chosen for "auto"
        if (reason := find_idle_reason(notes, config, backbone, serving=serving)) is not None:
            yield _make_idle_key(full, ("ajet", *reason.source), layer, users, reason.why)


def _find_accepted_keys(users: Sequence[Layer]) -> Iterator[_IdleKey]:
    for name, reason in ACCEPTED.items():
        full = ("ajet", *name.split("."))
        layer = find_last_layer(full, users)
        if layer is not None:
            yield _make_idle_key(full, full, layer, users, reason)


def _find_keys_of_other_backbones(config: AjetConfig, users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield keys in sections of backbones that are not chosen.

    A key with an equivalent key of ajet names it. The rest of a section shares a line.
    """
    current = find_backbone(config.backbone)
    for owner in list_shipped_backbones().values():
        for root in owner.roots:
            layer = find_last_layer((root,), users)
            if layer is None or root in current.roots:
                continue
            rest = False
            paths = (tuple(takewhile(lambda part: isinstance(part, str), path)) for path, _ in list_leaves(layer.tree))
            for path in dict.fromkeys(path for path in paths if path[0] == root):
                reason = _describe_ours(path, layer.get_value(path), config, owner)
                rest = rest or not reason
                if reason:
                    yield _make_idle_key(path, path, layer, users, reason)
            if rest:
                yield _make_idle_key(
                    (root,), (root,), layer, users, f"it is a key of {owner.name}, which ajet does not read here"
                )


def _find_keys_decided_by_ours(config: AjetConfig, users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield keys of the chosen backbone whose value ajet's own keys replace."""
    current = find_backbone(config.backbone)
    off = [
        switch
        for switch in current.advice.switched
        if any(layer.get_value(path) is False for layer in users for path in _list_key_places(switch, current))
    ]
    for key, reason in current.advice.list_unread(off).items():
        for path in _list_key_places(key, current):
            layer = find_last_layer(path, users)
            if (
                layer is None
                or layer.get_value(path) in (None, False)
                or _has_our_value(key, layer.get_value(path), config)
            ):
                continue
            yield _make_idle_key(path, path, layer, users, f"ajet overrides it; {reason}")


def _list_key_places(key: str, chosen: Descriptor) -> list[tuple[str, ...]]:
    """Return the paths at which a YAML may contain a backbone's key, or [] for another backbone's key."""
    path = tuple(key.split("."))
    return [path, (chosen.name, *path)] if path[0] in chosen.roots else []


def _has_our_value(key: str, value: Any, config: AjetConfig) -> bool:
    """Return True if ajet's key of the same name has the value already."""
    ajet_values = {"trainer.logger": config.trainer_common.logger, "trainer.experiment_name": config.experiment_name}
    return key in ajet_values and (ajet_values[key] == value or [ajet_values[key]] == value)


def _find_unread_keys(config: AjetConfig, users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield keys in backbone sections that no code reads, unless ajet's equivalent keys have the same values."""
    for path, layer, ajet_key, value, advice in find_unread_keys(users):
        node: Any = config
        for name in ajet_key.split(".")[1:]:
            node = getattr(node, name, None)
        if not ajet_key or node != value:
            yield _make_idle_key(path, path[:-1], layer, users, advice)


def _describe_ours(path: KeyPath, value: Any, config: AjetConfig, owner: Descriptor) -> str:
    """Return ajet's replacement for another backbone's key.

    Returns "" without a replacement, or if ajet's key has the value already.
    """
    backbone_path = path[1:] if path[0] == owner.name else path
    counterpart, dotted = find_counterpart(backbone_path, owner.filled), ".".join(map(str, backbone_path))
    if counterpart is None:
        advice = owner.advice
        if dotted in advice.like:
            return f"it is a key of {owner.name}; ajet's key for it is `ajet.{advice.like[dotted]}`"
        advised = {**advice.instead, **advice.list_unread()}.get(dotted, "")
        return f"it is a key of {owner.name}; in ajet: {advised}" if advised else ""
    ajet_value: Any = config
    for name in counterpart.key.split(".")[1:]:
        ajet_value = getattr(ajet_value, name, None)
    if counterpart.same and ajet_value == value:
        return ""
    suffix = f": {json.dumps(value)}" if counterpart.same else ""
    return f"it is a key of {owner.name}; ajet's key for it is `{counterpart.key}{suffix}`"


def find_last_layer(path: tuple[str, ...], users: Sequence[Layer]) -> Layer | None:
    """Return the user's last layer with the key, if any."""
    return next((layer for layer in reversed(users) if layer.get_value(path) is not ABSENT), None)


def is_written_by_ajet(layer: Layer) -> bool:
    """Return True if the layer is a resolved file, in which every key is present."""
    return layer.document is not None and layer.document.text.startswith(RESOLVED)


def locate_key(layer: Layer, path: KeyPath) -> str:
    """Return file:line of a key, or the override without the value, because values may be secret."""
    location = layer.locate(path)
    return location.partition("=")[0] if layer.document is None else re.sub(r"(:\d+):\d+$", r"\1", location)


def _make_idle_key(path: KeyPath, source: KeyPath, layer: Layer, users: Sequence[Layer], why: str) -> _IdleKey:
    location = locate_key(layer, path)
    line = re.search(r":(\d+)$", location) if layer.document is not None else None
    sort_key = users.index(layer), int(line[1]) if line is not None else 0
    return _IdleKey(".".join(map(str, path)), ".".join(map(str, source)), sort_key, location, why)
