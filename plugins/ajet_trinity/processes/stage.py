"""Stage: the actor in which Trinity's explorer and trainer are started, and waited for.

Invariant: it wires Trinity's public parts as Trinity's own program does for its modes `both` and `train`, and takes
nobody's word for success: what either side says went wrong is raised.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ajet_ray.mailbox import PhaseNotice, Sender

FAREWELL_S = 60.0
"""How long explorer and trainer may take to end."""


class TrinityStage:
    """Made a Ray actor by the launch."""

    def run(self, config: dict[str, Any]) -> None:
        """Until the last step, or until the mailbox says to stop. `config`: Trinity's. Raises RuntimeError for what
        went wrong on either side."""
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
            else:  # one after the other: who asks first is told of version 0, whatever a resumed trainer has loaded
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
    """What samplers play elsewhere: no weights are handed over here, each step's checkpoint is announced."""
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
    """The configuration as Trinity reads and completes it."""
    from omegaconf import OmegaConf
    from trinity.common.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trinity.yaml"
        OmegaConf.save(OmegaConf.create(config), file)
        loaded = load_config(str(file))
    loaded.check_and_update()
    return loaded
