"""Letters: a monitor for Trinity that reports ended training steps to the run's own process.

Invariants: the trainer reports a step once, after weights and checkpoint are done. An explorer step without results is
an error here: Trinity's trainer would wait forever.
"""

from __future__ import annotations

import time
from typing import Any

from trinity.utils.monitor import Monitor

from ajet_ray.mailbox import Sender, StepNotice, read_numbers

OURS = {
    "actor/loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "time/train_step": "seconds/train",
}
"""Maps Trinity's metric names to the names that ajet uses on every backbone."""
PLAYED, HANDED_OVER = "rollout/finished_task_count", "experience_pipeline/experience_count"
"""Trinity's counters of an explorer step: ended tasks (failed ones included), and rows for the trainer."""


class Letters(Monitor):
    """Trinity's `monitor.monitor_type` that sends the trainer's metrics to the run's own process."""

    def __init__(self, project: str, group: str, name: str, role: str, config: Any = None) -> None:
        """Connect to the run's mailbox. `role` names the side that this monitor belongs to, explorer or trainer."""
        super().__init__(project, name, role, config)
        self.is_trainer = role == config.trainer.name
        self._sender = Sender()
        self._began = time.monotonic()

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        """Report the metrics of a training step.

        Raises:
            RuntimeError: an explorer step ended without any row.
        """
        if not self.is_trainer:
            if PLAYED in data and HANDED_OVER not in data:
                raise RuntimeError(f"step {step}: no group came back; read the logs of the runners for the reason")
            return
        now = time.monotonic()
        numbers = read_numbers(data)
        trained_tokens = numbers.pop("actor/ajet_tokens", 0.0) or 1.0
        # Trinity's trainer sends sums over the tokens; the metrics are means.
        means = {name: numbers.pop(f"actor/ajet_{name}", 0.0) / trained_tokens for name in ("kl", "clipped")}
        metrics = {
            ajet_name: numbers[trinity_name] for trinity_name, ajet_name in OURS.items() if trinity_name in numbers
        }
        metrics |= {"kl": means["kl"], "clip_fraction": means["clipped"], "version": float(step)}
        metrics |= {"seconds/step": now - self._began}
        metrics["seconds/update"] = metrics.get("seconds/train", 0.0)
        # Everything in a step besides the update is waiting for the explorer's rows.
        metrics["seconds/rollout"] = metrics["seconds/step"] - metrics["seconds/update"]
        self._began = now
        self._sender.post_and_wait(StepNotice(step, metrics | numbers))

    def close(self) -> None:
        """Do nothing, because no resource is open."""
