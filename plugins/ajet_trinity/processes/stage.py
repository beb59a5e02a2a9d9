"""TrinityStage: the Ray actor that starts Trinity's explorer and trainer and waits for their end.

Invariant: it connects Trinity's public parts as Trinity's program does for the modes `both` and `train`, and raises
every error reported by either side.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from trinity.explorer.explorer import Explorer
from trinity.trainer.trainer import Trainer

from ajet_ray.mailbox import CheckpointNotice, PhaseNotice, Sender

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


# Trinity's explorer and trainer, with reports to the run and a requested stop.
# Invariants: an error in either loop is returned to its caller. A checkpoint is reported once complete. A trainer
# requested to stop ends after its present step, with a checkpoint.
STEP_FILE = "latest_checkpointed_iteration.txt"
"""File with the number of the last complete checkpoint's step, written by Trinity."""
PATIENCE_S = 600.0
"""Seconds to wait until this file has the number of a new checkpoint."""


class _ErrorLog(logging.Handler):
    """Stores the last error logged by Trinity."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


class ReportingExplorer(Explorer):
    """Trinity's explorer, which also reports each step to the run's own process."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._error_log = _ErrorLog()
        self.logger.addHandler(self._error_log)
        self._ajet_sender = Sender()
        self._ajet_sender.introduce("explorer")

    async def explore_step(self) -> bool:
        """Begin an explorer step and report it. Returns False after the last step."""
        went_on: bool = await super().explore_step()
        if went_on:
            self._ajet_sender.post(PhaseNotice("rollout", self.explore_step_num))
        return went_on

    async def explore(self) -> str:
        """Run episodes until the last step, and return the last logged error, or ""."""
        await super().explore()
        return self._error_log.message


class ReportingTrainer(Trainer):
    """Trinity's trainer, which also reports steps and checkpoints to the run's own process, and stops on request."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._error_log = _ErrorLog()
        self.logger.addHandler(self._error_log)
        self._ajet_sender = Sender()
        self._ajet_sender.introduce("trainer")
        self._saved = -1

    async def prepare(self) -> None:
        """Load the weights, from a checkpoint if there is one."""
        await super().prepare()
        self._saved = self.train_step_num

    async def train(self) -> str:
        """Train until the last step, and return the last logged error, or ""."""
        await super().train()
        return self._error_log.message

    async def train_step(self, exps: list[Any]) -> dict[str, Any]:
        """Train one step and return its metrics.

        If all loss weights are 0 there is no optimizer step, as on every backbone.

        Args:
            exps: the step's rows, with the loss weights in `returns`.
        """
        step = self.train_step_num + 1
        engine: Any = self.engine
        self._ajet_sender.post(PhaseNotice("update", step))
        if any(bool(each.returns.any()) for each in exps):
            engine.config.actor.ppo_mini_batch_size = len(exps)  # one optimizer step, however many rows there are
            metrics: dict[str, Any] = await super().train_step(exps)
        else:
            metrics = {}
            engine.global_steps = step
        if self._ajet_sender.should_stop():
            self.total_steps = step
        return metrics

    async def save_checkpoint(self, block_until_saved: bool = False, save_as_hf: bool = False) -> dict[str, Any]:
        """Save the checkpoint of a step, wait until it is complete, and report it. Repeated calls do nothing."""
        step, folder = self.train_step_num, Path(self.config.checkpoint_job_dir)
        if step <= self._saved or self._error_log.message:
            return {}
        metrics: dict[str, Any] = await super().save_checkpoint(block_until_saved=True)
        end = time.monotonic() + PATIENCE_S
        while _read_step(folder / STEP_FILE) != step:
            if time.monotonic() > end:
                raise RuntimeError(f"the checkpoint of step {step} was not complete after {PATIENCE_S:.0f} s")
            await asyncio.sleep(0.1)
        self._saved = step
        self._ajet_sender.post_and_wait(CheckpointNotice(step, os.fspath(folder / f"global_step_{step}")))
        return metrics


def _read_step(file: Path) -> int:
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):  # not there yet, or half written
        return -1
