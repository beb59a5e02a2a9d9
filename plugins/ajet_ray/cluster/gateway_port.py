"""The port of the gateways, which each process that plays has one of, as far as it can be known before Ray starts.

Invariant: what this machine would refuse is said before anything is loaded; of a cluster elsewhere nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.train.runner import LaunchOptions


def require_gateways(
    experiment: Experiment, options: LaunchOptions, processes: Callable[[], int], *, named: str
) -> None:
    """Raises UserError where they could not listen: the port is taken, the address is none of this machine's, or
    several are to share one port. `processes`: how many gateways there will be, which the key `named` says; asked only
    where the port is fixed. Nothing where samplers play."""
    from ajet.rollout.components import require_gateway
    from ajet_ray.on_ray import find_address

    settings = experiment.ajet
    if options.from_store is not None or find_address(options) is not None:
        return
    require_gateway(settings)
    if settings.gateway.port and (count := processes()) > 1:
        raise ConfigError(
            f"{count} processes play, each with a gateway of its own, and all are told to listen on port "
            f"{settings.gateway.port}.",
            where=experiment.layers.where(("ajet", "gateway", "port"), value=True),
            expected=f"0, with which the system chooses a free one for each, or one process ({named})",
        )
