"""TrinityRunner: Trinity's part of a launch.

Invariant: nothing of Trinity, ray or torch is imported before `train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.schema.errors import UserError
from ajet.train.runner import Runner

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.runner import LaunchOptions
    from ajet.train.sink import RunSink


class TrinityRunner(Runner):
    """Runs Ray's processes around Trinity's explorer and trainer."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """Return the experiment's settings: a `trinity:` section cannot change them."""
        from ajet_trinity.config import choose_device, compose_trinity_config
        from ajet_trinity.own_environment import find_python
        from ajet_trinity.package import require_trinity

        compose_trinity_config(experiment)
        if find_python(choose_device(experiment)) is None:
            require_trinity()
        return experiment.ajet

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Raise ConfigError if remote samplers play the episodes and no store is named."""
        from ajet.schema.errors import ConfigError
        from ajet_trinity.config import TRAIN, choose_mode

        if not looking and choose_mode(experiment) == TRAIN and from_store is None:
            raise ConfigError(
                "On Trinity, `mode: async` trains on episodes that samplers put into a store, and no store is set.",
                where="ajet.trainer_common.mode: async",
                expected="--from-store ADDRESS, and `ajet sample` running",
            )

    def require(self, experiment: Experiment, options: LaunchOptions) -> None:
        """Raise UserError if several gateways would share one port, or a gateway cannot listen.

        On a GPU machine, restart this command in Trinity's own environment, if that is installed and Trinity cannot be
        imported here.
        """
        from ajet_ray.cluster.gateway_port import require_gateways
        from ajet_trinity.config import choose_device, compose_trinity_config
        from ajet_trinity.own_environment import continue_in, find_python

        config = compose_trinity_config(experiment)
        explorer = config["explorer"]

        def playing() -> int:
            return int(explorer["runner_per_model"]) * int(explorer["rollout_model"]["engine_num"])

        require_gateways(experiment, options, playing, named="trinity.explorer.runner_per_model: 1, with one engine")
        if (python := find_python(choose_device(experiment))) is not None:
            continue_in(python)

    def shown(self, experiment: Experiment) -> str:
        """Return Trinity's config without its defaults and without secrets."""
        from ajet.config.document import dump_yaml
        from ajet_ray.printable import make_printable
        from ajet_trinity.config import compose_trinity_config
        from ajet_trinity.package import VERSION

        head = f"---\n# What trinity-rft {VERSION} gets from it.\n"
        users = experiment.backbone_overrides.get("trinity", {})
        return head + dump_yaml(make_printable(compose_trinity_config(experiment), users))

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """Return the findings; none unless Trinity is needed."""
        from ajet.schema.errors import Finding
        from ajet_trinity.package import DISTRIBUTION, VERSION, require_trinity

        if not needed:
            return []
        try:
            folder = require_trinity()
        except UserError as problem:
            return [Finding(DISTRIBUTION, "problem", problem.what, problem.do)]
        return [Finding(DISTRIBUTION, "ok", VERSION + (f", in {folder}" if folder is not None else ""))]

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        from ajet_trinity.train import train_on_trinity

        train_on_trinity(experiment, run, options, interrupts, sink)

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Merge the shards, in verl's format."""
        from ajet_ray.merge import merge_checkpoint

        merge_checkpoint(checkpoint.path / checkpoint.state["trinity"] / "actor", target, dtype=dtype)
