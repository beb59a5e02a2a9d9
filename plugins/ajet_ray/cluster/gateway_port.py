"""Checks the port of the gateways, one for each process that runs episodes, before Ray starts.

Invariant: a port refused by this machine is reported before anything is loaded; remote clusters are not checked.
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
    """Raise UserError if the gateways could not listen: a taken port, a foreign address, or one port for several.

    Runs with remote samplers and runs on a joined cluster are not checked.

    Args:
        processes: returns the number of processes that run episodes, each with a gateway; called only for a fixed port.
        named: the setting, with a value, that reduces this number to one; printed in the error.
    """
    from ajet.rollout.components import require_gateway
    from ajet_ray.on_ray import find_address

    settings = experiment.ajet
    if options.from_store is not None or find_address(options) is not None:
        return
    require_gateway(settings)
    if settings.gateway.port and (count := processes()) > 1:
        raise ConfigError(
            f"{count} processes run episodes, each with its own gateway, but all would listen on port "
            f"{settings.gateway.port}.",
            where=experiment.layers.locate(("ajet", "gateway", "port"), value=True),
            expected=f"0: then the system chooses a free port for each; or one process ({named})",
        )
