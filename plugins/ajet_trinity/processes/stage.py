"""The actor that starts Trinity's explorer and trainer and waits for their end.

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
"""Seconds for explorer and trainer to end."""


class TrinityStage:
    """Made a Ray actor by the launch."""

    def run(self, config: dict[str, Any]) -> None:
        """Run until the last step, or until the mailbox requests a stop. Raises RuntimeError for an error of either
        side.

        `config`: Trinity's.
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
                (ended, *_), waiting = ray.wait(waiting, num_returns=1)
                problem = ray.get(ended)
                if problem:
                    raise RuntimeError(f"{'explorer' if ended == playing else 'trainer'}: {problem}")
                if ended == playing:
                    open_sides.remove(explorer)  # after its last step it has ended its engines by itself
        finally:
            ends = [each.shutdown.remote() for each in open_sides]
            ray.wait(ends, num_returns=len(ends), timeout=FAREWELL_S)


def _train_alone(trainer: Any) -> None:
    """Train on samplers' groups: no weights are synchronized, each step's checkpoint is announced."""
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
    """Return the configuration as read and completed by Trinity."""
    from omegaconf import OmegaConf
    from trinity.common.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trinity.yaml"
        OmegaConf.save(OmegaConf.create(config), file)
        loaded = load_config(str(file))
    loaded.check_and_update()
    return loaded
