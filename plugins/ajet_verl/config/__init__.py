"""Config layer of the verl backbone: a typed experiment in, verl's complete config out.

It takes an `Experiment` and the facts known about its model (`ModelLimits`), and returns plain values under verl's root
names, with all interpolations resolved. Invariants: each `ajet.*` key with a meaning in verl reaches verl through
`layers/` only. The user's sections `verl:`, `actor_rollout_ref`, `critic`, `trainer` and `algorithm` take precedence.
Settings refused by verl minutes later are refused here, with the user's names and places, before verl or ray is
imported. verl's YAML files are read from its folder, without running the package.
"""

from __future__ import annotations

from ajet.engine.model_limits import ModelLimits, read_limits
from ajet_verl.config.layer import VERL_VERSION, compose_verl_config, find_extra, make_printable_config

__all__ = [
    "VERL_VERSION",
    "ModelLimits",
    "find_extra",
    "read_limits",
    "make_printable_config",
    "compose_verl_config",
]
