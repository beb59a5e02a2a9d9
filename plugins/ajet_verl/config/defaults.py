"""Lists the keys for which ajet replaces verl's default by its own.

Invariant: `verls.DEFAULTS` is the only list of them, and a test compares the list with the installed verl. ajet's
defaults are converted to verl's keys by `layers/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.config.compose import ABSENT
from ajet.config.idle import list_user_layers
from ajet_verl.config.layer import compose_sections
from ajet_verl.config.precedence import find_counterpart, select_value
from ajet_verl.descriptor import VERL
from ajet_verl.verls import DEFAULTS

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

_UNBOUNDED = 1e9
"""Value that the YAML layers write for a disabled bound or for a step that is never reached."""


@dataclass(frozen=True, slots=True)
class ReplacedDefault:
    """A verl key that the user did not set and that gets ajet's default."""

    key: str
    verl: Any
    """The default value in verl itself."""
    ajet: Any
    """The default that ajet passes to verl."""
    ours: str
    """The corresponding key below `ajet`; "" if none exists."""


def list_replaced_defaults(experiment: Experiment) -> list[ReplacedDefault]:
    """Return the keys that the user did not set and that get ajet's default, in the order of `DEFAULTS`."""
    user_layers, composed = list_user_layers(experiment.layers), compose_sections(experiment)[0]
    replaced = []
    for key, verl_default in DEFAULTS.items():
        path, ajet_key = tuple(key.split(".")), find_counterpart(key, composed) or ""
        possible_places = [path, ("verl", *path), *([tuple(ajet_key.split("."))] if ajet_key else [])]
        is_set = any(layer.get_value(key_place) is not ABSENT for layer in user_layers for key_place in possible_places)
        if not is_set and (value := select_value(composed, key)) != verl_default:
            replaced.append(ReplacedDefault(key, verl_default, value, ajet_key))
    return replaced


def describe_replaced_defaults(experiment: Experiment) -> str:
    """Describe the replaced defaults in lines for the screen, or return "" if the YAML has no sections of verl."""
    user_layers = list_user_layers(experiment.layers)
    if not any(layer.get_value((root,)) is not ABSENT for layer in user_layers for root in VERL.roots):
        return ""
    replaced = list_replaced_defaults(experiment)
    if not replaced:
        return ""
    rows = [f"  {default.key}: {spell_value(default.ajet)} (verl: {spell_value(default.verl)})" for default in replaced]
    return "\n".join([f"Keys that are not set get ajet's defaults, not verl's ({VERL.defaults_page}):", *rows])


def spell_value(value: Any) -> str:
    """Return a value in YAML syntax. An unreachable bound is `off`."""
    if isinstance(value, list):
        return f"[{', '.join(map(spell_value, value))}]"
    if isinstance(value, float) and value >= _UNBOUNDED:
        return "off"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
