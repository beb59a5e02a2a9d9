"""The port of the gateways, one per playing process, checked before Ray starts.

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

    `processes`: counts the gateways, as set by the key `named`; called only for a fixed port. Samplers' runs are not
    checked.
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
