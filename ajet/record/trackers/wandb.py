"""Weights & Biases tracker: one W&B run per run of ajet, continued after a resume.

Invariant: the W&B run is separate from any run of the agent's code. Only numbers, the configuration and sampled
episodes are sent; no command line, code, package list or terminal output. W&B's own mode applies (`WANDB_MODE=offline`
writes files only), as do `WANDB_DIR`, `WANDB_DATA_DIR` and `WANDB_CACHE_DIR`; the default is `wandb/` in the run
directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ajet.record.trackers.contract import TrackedRun, Tracker
from ajet.record.trackers.sample import COLUMNS, sample_rows
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import MissingExtraError, UserError

STEP = "step"
"""ajet's step as the x-axis: W&B's own step only rises, but a resumed run repeats its last steps."""


class WandbTracker(Tracker):
    """Sends metrics under the names of `metrics.jsonl`, and sampled episodes as a table `episodes/SPLIT`, to W&B."""

    def __init__(self, run: TrackedRun) -> None:
        """Open the W&B run with the run's id. Raises UserError if W&B would send data and has no API key."""
        super().__init__(run)
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb", needed_for="The tracker wandb") from error
        for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
            os.environ.setdefault(name, str(run.folder / "wandb" / name.split("_")[1].lower()))
        settings = wandb.setup(wandb.Settings(silent=True)).settings
        if settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("wandb has no API key: set WANDB_API_KEY, or WANDB_MODE=offline to write files only.")
        self._table = wandb.Table
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            reinit="create_new",
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_save_requirements=False,
                init_timeout=self.patience_s,
                finish_timeout=self.closing_s,
            ),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **numbers})

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """Send a table of sampled episodes."""
        if data := sample_rows(episodes, outcomes, self.run.redact):
            self._run.log({STEP: step, f"episodes/{split}": self._table(columns=list(COLUMNS), data=data)})

    def close(self) -> None:
        """Send what is left, and end the W&B run. W&B shows an interrupted run as failed."""
        self._run.finish(exit_code=0 if self.outcome == "finished" else 1)
