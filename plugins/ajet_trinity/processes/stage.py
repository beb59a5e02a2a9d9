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

        checked = _load_config(config)
        os.environ.update(checked.get_envs())
        if checked.mode == "train":
            _train_alone(ReportingTrainer.get_actor(checked))
            return
        explorer, trainer = ReportingExplorer.get_actor(checked), ReportingTrainer.get_actor(checked)
        open_sides = [explorer, trainer]
        nccl = checked.synchronizer.sync_method == SyncMethod.NCCL
        try:
            ray.get([explorer.__ray_ready__.remote(), trainer.__ray_ready__.remote()])
            ray.get([explorer.prepare.remote(), trainer.prepare.remote()])
            if nccl:
                synchronizer = Synchronizer.get_actor(namespace=checked.ray_namespace)
                ray.get(synchronizer.coordinate_weight_sync_setup.remote())
                ray.get([explorer.sync_weight.remote(), trainer.sync_weight.remote()])
            else:
                # The first caller receives version 0, whatever version a resumed trainer has loaded.
                ray.get(trainer.sync_weight.remote())
                ray.get(explorer.sync_weight.remote())
            playing, training = explorer.explore.remote(), trainer.train.remote()
            waiting = [playing, training]
            while training in waiting:
                (finished, *_), waiting = ray.wait(waiting, num_returns=1)
                problem = ray.get(finished)
                if problem:
                    raise RuntimeError(f"{'explorer' if finished == playing else 'trainer'}: {problem}")
                if finished == playing:
                    open_sides.remove(explorer)  # after its last step it has ended its engines by itself
        finally:
            ends = [side.shutdown.remote() for side in open_sides]
            ray.wait(ends, num_returns=len(ends), timeout=FAREWELL_S)


def _train_alone(trainer: Any) -> None:
    """Run Trinity's trainer without an explorer, on groups of remote samplers.

    No weights are sent: samplers load the checkpoint of each step.
    """
    import ray

    try:
        ray.get(trainer.__ray_ready__.remote())
        ray.get(trainer.prepare.remote())
        problem = ray.get(trainer.train.remote())
        if problem:
            raise RuntimeError(f"trainer: {problem}")
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
