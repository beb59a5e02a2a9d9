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
    """Keys of one section that the user has set without effect, all for the same reason."""

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
    """Return why a key has no effect with these settings, or None if it has one.

    Of several reasons, the one for the outermost section is returned.

    Args:
        notes: The key's notes, from `walk_keys`.
        backbone: The backbone of the run.
        serving: True in `ajet serve`.
    """
    # Such a server plays the held-out tasks itself.
    is_validating = serving and config.rollout.user_workflow is not None and "trains" in backbone.can
    declared_reason = (
        None
        if _is_chosen(notes.get("unless"), config)
        else _find_declared_reason(notes, backbone, serving, is_validating)
    )
    reasons: list[IdleReason] = [declared_reason] if declared_reason is not None else []
    if (
        config.sft.objective is not None
        and not serving
        and (sft_reason := _find_in_table(GIVEN, notes["path"])) is not None
    ):
        reasons.append(sft_reason)
    for choice in notes["when"]:
        setting_text = _spell_value(_get_setting(config, choice.key))
        values = list_values(choice.values, find_all_parts("store"))
        if setting_text not in values and not (choice.or_own and is_reference(setting_text)):
            reasons.append(IdleReason(choice.source, f"{choice.key} is {setting_text}"))
    return min(reasons, key=lambda reason: len(reason.source), default=None)


def _spell_value(value: Any) -> str:
    """Return a setting's value as a YAML spells it: null, true, 8, text."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _is_chosen(choice: Sequence[str] | None, config: AjetConfig) -> bool:
    """Return True if a setting has the value that `choice` (key, value) names. False without a choice."""
    return choice is not None and _get_setting(config, choice[0]) == choice[1]


def _get_setting(config: Any, key: str) -> Any:
    """Return the value of a dotted key below `ajet`."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _find_declared_reason(
    notes: dict[str, Any], backbone: Descriptor, serving: bool, validates: bool
) -> IdleReason | None:
    """Return why a key has no effect by the schema, else by the backbone's descriptor, or None if it has one.

    Args:
        notes: The key's notes, from `walk_keys`.
        serving: True in `ajet serve`.
        validates: True if the server runs held-out tasks as a training run does, so that keys of clients have an
            effect.
    """
    for scope in (SERVE,) * serving + (EVERYWHERE,):
        if scope in notes["idle"]:
            reason: IdleReason | None = notes["idle"][scope]
            if not (validates and reason is not None and reason.why in OF_CLIENTS):
                return reason
    return _find_in_table(backbone.idle, notes["path"])


def _find_in_table(table: Mapping[str, str | None], path: tuple[str, ...]) -> IdleReason | None:
    """Return the reason for the longest prefix of `path` in a table of dotted keys, or None without one.

    The value None in the table marks a key with an effect inside a section without effect.
    """
    for depth in range(len(path), 0, -1):
        if (name := ".".join(path[:depth])) in table:
            reason = table[name]
            return None if reason is None else IdleReason(path[:depth], reason)
    return None


def find_idle_keys(config: AjetConfig, layers: Layers, *, serving: bool = False) -> list[IdleKeys]:
    """Return the keys that the user set and that have no effect, in the order in which they were set.

    Keys of one section with the same reason form one entry.

    Args:
        layers: All sources of values.
        serving: True in `ajet serve`.
    """
    user_layers = list_user_layers(layers)
    keys_by_reason: dict[tuple[str, str], list[_IdleKey]] = {}
    backbone_keys = [
        *_find_keys_of_other_backbones(config, user_layers),
        *_find_keys_decided_by_ours(config, user_layers),
        *_find_unread_keys(config, user_layers),
    ]
    idle_keys = [
        *_find_ineffective_keys(config, user_layers, serving),
        *_find_accepted_keys(user_layers),
        *backbone_keys,
    ]
    for key in sorted(idle_keys, key=lambda key: key.place):
        keys_by_reason.setdefault((key.section, key.why), []).append(key)
    return [
        IdleKeys(tuple(key.name for key in same_reason), section, same_reason[0].where, reason)
        for (section, reason), same_reason in keys_by_reason.items()
    ]


def format_idle_keys(idle_keys: Sequence[IdleKeys], place: str) -> str:
    """Return all idle keys as lines of text below a heading, or "" without idle keys.

    Args:
        place: Where the keys have no effect, such as "on the backbone local".
    """
    if not idle_keys:
        return ""
    rows = [f"  {key.name} ({key.where}): {key.why}" for key in idle_keys]
    return "\n".join([f"Keys that are set but have no effect {place}:", *rows])


def list_user_layers(layers: Layers) -> tuple[Layer, ...]:
    """Return the layers that the user wrote: the YAML, then flags and overrides."""
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
    """Yield the user's keys in ajet's schema that have no effect with these settings."""
    backbone = find_backbone(config.backbone)
    for path, field, notes in walk_keys(config_model()):
        full_path = ("ajet", *path)
        layer = find_last_layer(full_path, users)
        if layer is None or (is_written_by_ajet(layer) and field.default in (layer.get_value(full_path), "auto")):
            continue  # ajet wrote this value: the default, or the value chosen for "auto"
        if (reason := find_idle_reason(notes, config, backbone, serving=serving)) is not None:
            yield _make_idle_key(full_path, ("ajet", *reason.source), layer, users, reason.why)


def _find_accepted_keys(users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield the user's keys that ajet accepts for AgentJet's YAMLs but does not use."""
    for name, reason in ACCEPTED.items():
        full_path = ("ajet", *name.split("."))
        layer = find_last_layer(full_path, users)
        if layer is not None:
            yield _make_idle_key(full_path, full_path, layer, users, reason)


def _find_keys_of_other_backbones(config: AjetConfig, users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield the user's keys in the sections of backbones that were not chosen.

    A key that has an equivalent in ajet gets a line which names it. The rest of a section shares one line.
    """
    current = find_backbone(config.backbone)
    for owner in list_shipped_backbones().values():
        for root in owner.roots:
            layer = find_last_layer((root,), users)
            if layer is None or root in current.roots:
                continue
            has_other_keys = False
            paths = (tuple(takewhile(lambda part: isinstance(part, str), path)) for path, _ in list_leaves(layer.tree))
            for path in dict.fromkeys(path for path in paths if path[0] == root):
                reason = _describe_ours(path, layer.get_value(path), config, owner)
                has_other_keys = has_other_keys or not reason
                if reason:
                    yield _make_idle_key(path, path, layer, users, reason)
            if has_other_keys:
                yield _make_idle_key(
                    (root,), (root,), layer, users, f"it is a key of {owner.name}, which ajet does not read here"
                )


def _find_keys_decided_by_ours(config: AjetConfig, users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield the user's keys of the chosen backbone whose value ajet replaces."""
    chosen_backbone = find_backbone(config.backbone)
    switched_off = [
        switch
        for switch in chosen_backbone.advice.switched
        if any(layer.get_value(path) is False for layer in users for path in _list_key_places(switch, chosen_backbone))
    ]
    for key, reason in chosen_backbone.advice.list_unread(switched_off).items():
        for path in _list_key_places(key, chosen_backbone):
            layer = find_last_layer(path, users)
            if (
                layer is None
                or layer.get_value(path) in (None, False)
                or _has_our_value(key, layer.get_value(path), config)
            ):
                continue
            yield _make_idle_key(path, path, layer, users, f"ajet overrides it; {reason}")


def _list_key_places(key: str, chosen: Descriptor) -> list[tuple[str, ...]]:
    """Return the paths at which a YAML may set a backbone's key, or [] if the key is not this backbone's."""
    path = tuple(key.split("."))
    return [path, (chosen.name, *path)] if path[0] in chosen.roots else []


def _has_our_value(key: str, value: Any, config: AjetConfig) -> bool:
    """Return True if a backbone's key has the value of ajet's key for the same thing."""
    ajet_values = {"trainer.logger": config.trainer_common.logger, "trainer.experiment_name": config.experiment_name}
    return key in ajet_values and (ajet_values[key] == value or [ajet_values[key]] == value)


def _find_unread_keys(config: AjetConfig, users: Sequence[Layer]) -> Iterator[_IdleKey]:
    """Yield the user's keys in backbone sections that no code reads.

    A key is left out if ajet's equivalent key has the same value.
    """
    for path, layer, ajet_key, value, advice in find_unread_keys(users):
        ajet_value: Any = config
        for name in ajet_key.split(".")[1:]:
            ajet_value = getattr(ajet_value, name, None)
        if not ajet_key or ajet_value != value:
            yield _make_idle_key(path, path[:-1], layer, users, advice)


def _describe_ours(path: KeyPath, value: Any, config: AjetConfig, owner: Descriptor) -> str:
    """Return a sentence with ajet's replacement for another backbone's key.

    "" without a replacement, or if ajet's key has the value already.

    Args:
        path: The key in the YAML.
        value: Its value.
        owner: The backbone that the key belongs to.
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
    """Return the last of the user's layers that sets the key, or None."""
    return next((layer for layer in reversed(users) if layer.get_value(path) is not ABSENT), None)


def is_written_by_ajet(layer: Layer) -> bool:
    """Return True if the layer is a resolved configuration that ajet wrote, which contains every key."""
    return layer.document is not None and layer.document.text.startswith(RESOLVED)


def locate_key(layer: Layer, path: KeyPath) -> str:
    """Return file:line of a key, or the override's key without its value, which may be a secret."""
    location = layer.locate(path)
    return location.partition("=")[0] if layer.document is None else re.sub(r"(:\d+):\d+$", r"\1", location)


def _make_idle_key(path: KeyPath, source: KeyPath, layer: Layer, users: Sequence[Layer], why: str) -> _IdleKey:
    """Return the entry of one idle key, with a sort key by layer and line.

    Args:
        path: The key.
        source: The key or section that has no effect; idle keys are grouped by it.
        layer: The user's layer that sets the key.
        users: All layers of the user.
    """
    location = locate_key(layer, path)
    line = re.search(r":(\d+)$", location) if layer.document is not None else None
    sort_key = users.index(layer), int(line[1]) if line is not None else 0
    return _IdleKey(".".join(map(str, path)), ".".join(map(str, source)), sort_key, location, why)
