"""The layer of the verl backbone: a typed experiment in, the whole config of verl's trainer out.

What enters: an `Experiment`, and what is known of its model (`ModelLimits`). What leaves: plain values under verl's own
root names, every interpolation resolved. Invariants: each `ajet.*` key that has a meaning in verl reaches it by
`layers/` and nothing else; the user's `verl:` section and `actor_rollout_ref`, `critic`, `trainer`,
`algorithm` win; what verl would refuse minutes later is refused here, in the user's names and with the place, before
verl or ray is imported (verl's YAML files are read where they lie; its package is not run).
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
