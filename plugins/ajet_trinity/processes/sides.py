"""Trinity's explorer and trainer, with reports to the run and a requested stop.

Invariants: an error in either loop is returned to its caller. A checkpoint is reported once complete. A trainer
requested to stop ends after its present step, with a checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from trinity.explorer.explorer import Explorer
from trinity.trainer.trainer import Trainer

from ajet_ray.mailbox import CheckpointNotice, PhaseNotice, Sender

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
        """Store the message of an error. logging calls this."""
        self.message = record.getMessage()


class ReportingExplorer(Explorer):
    """Trinity's explorer, which also reports each step to the run's own process."""

    def __init__(self, config: Any) -> None:
        """Create Trinity's explorer, and report this process to the run."""
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
        """Create Trinity's trainer, and report this process to the run. No checkpoint counts as saved yet."""
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
        if any(bool(exp.returns.any()) for exp in exps):
            engine.config.actor.ppo_mini_batch_size = len(exps)  # one optimizer step, however many rows there are
            metrics: dict[str, Any] = await super().train_step(exps)
        else:
            metrics = {}
            engine.global_steps = step
        # Trinity ends the training after `total_steps`.
        if self._ajet_sender.should_stop():
            self.total_steps = step
        return metrics

    async def save_checkpoint(self, block_until_saved: bool = False, save_as_hf: bool = False) -> dict[str, Any]:
        """Save the checkpoint of a step, wait until it is complete, and report it. Repeated calls do nothing."""
        step, folder = self.train_step_num, Path(self.config.checkpoint_job_dir)
        if step <= self._saved or self._error_log.message:
            return {}
        metrics: dict[str, Any] = await super().save_checkpoint(block_until_saved=True)
        deadline = time.monotonic() + PATIENCE_S
        while _read_step(folder / STEP_FILE) != step:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the checkpoint of step {step} was not complete after {PATIENCE_S:.0f} s")
            await asyncio.sleep(0.1)
        self._saved = step
        self._ajet_sender.post_and_wait(CheckpointNotice(step, os.fspath(folder / f"global_step_{step}")))
        return metrics


def _read_step(file: Path) -> int:
    """Return the number in a file, or -1 while the file is missing or incomplete."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):  # not there yet, or half written
        return -1
