"""TrinityStage: the Ray actor that starts Trinity's explorer and trainer and waits for their end.

Invariant: it connects Trinity's public parts as Trinity's program does for the modes `both` and `train`, and raises
every error reported by either side.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ajet_ray.mailbox import PhaseNotice, Sender

FAREWELL_S = 60.0
"""Seconds to wait until explorer and trainer have shut down."""


class TrinityStage:
    """Ray actor that runs Trinity's explorer and trainer, created by the run's own process."""

    def run(self, config: dict[str, Any]) -> None:
        """Run until the last step, or until the run's own process requests a stop.

        Args:
            config: Trinity's config.

        Raises:
            RuntimeError: explorer or trainer reported an error.
        """
        sender = Sender()
        sender.introduce("stage")
        sender.post(PhaseNotice("loading"))
        import ray
        from trinity.common.constants import SyncMethod
        from trinity.manager.synchronizer import Synchronizer

        from ajet_trinity.processes.sides import ReportingExplorer, ReportingTrainer

        trinity_config = _load_config(config)
        os.environ.update(trinity_config.get_envs())
        if trinity_config.mode == "train":
            _train_alone(ReportingTrainer.get_actor(trinity_config))
            return
        explorer, trainer = ReportingExplorer.get_actor(trinity_config), ReportingTrainer.get_actor(trinity_config)
        open_sides = [explorer, trainer]
        uses_nccl = trinity_config.synchronizer.sync_method == SyncMethod.NCCL
        try:
            ray.get([explorer.__ray_ready__.remote(), trainer.__ray_ready__.remote()])
            ray.get([explorer.prepare.remote(), trainer.prepare.remote()])
            if uses_nccl:
                synchronizer = Synchronizer.get_actor(namespace=trinity_config.ray_namespace)
                ray.get(synchronizer.coordinate_weight_sync_setup.remote())
                ray.get([explorer.sync_weight.remote(), trainer.sync_weight.remote()])
            else:
                # The first caller receives version 0, whatever version a resumed trainer has loaded.
                ray.get(trainer.sync_weight.remote())
                ray.get(explorer.sync_weight.remote())
            exploring, training = explorer.explore.remote(), trainer.train.remote()
            running = [exploring, training]
            while training in running:
                (finished, *_), running = ray.wait(running, num_returns=1)
                error = ray.get(finished)
                if error:
                    raise RuntimeError(f"{'explorer' if finished == exploring else 'trainer'}: {error}")
                if finished == exploring:
                    open_sides.remove(explorer)  # after its last step it has ended its engines by itself
        finally:
            shutdowns = [side.shutdown.remote() for side in open_sides]
            ray.wait(shutdowns, num_returns=len(shutdowns), timeout=FAREWELL_S)


def _train_alone(trainer: Any) -> None:
    """Run Trinity's trainer without an explorer, on groups of remote samplers.

    No weights are sent: samplers load the checkpoint of each step.
    """
    import ray

    try:
        ray.get(trainer.__ray_ready__.remote())
        ray.get(trainer.prepare.remote())
        error = ray.get(trainer.train.remote())
        if error:
            raise RuntimeError(f"trainer: {error}")
    finally:
        ray.wait([trainer.shutdown.remote()], timeout=FAREWELL_S)


def _load_config(config: dict[str, Any]) -> Any:
    """Return Trinity's own config object, which Trinity reads from a YAML file and completes with defaults."""
    from omegaconf import OmegaConf
    from trinity.common.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trinity.yaml"
        OmegaConf.save(OmegaConf.create(config), file)
        loaded = load_config(str(file))
    loaded.check_and_update()
    return loaded
