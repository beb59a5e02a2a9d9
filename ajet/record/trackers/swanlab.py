"""SwanLab tracker: one SwanLab experiment per run of ajet, continued after a resume.

Invariant: only numbers, the configuration and sampled episodes are sent; no command line, package list or terminal
output. SwanLab's own mode applies (`SWANLAB_MODE=offline` writes files only, `disabled` nothing). Files go to
`swanlab/` in the run directory, or to `SWANLAB_LOG_DIR`. A process has one experiment; if the agent's code has one
open, the tracker fails. SwanLab keeps the first number of a name and step.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from ajet.record.trackers.contract import TrackedRun, Tracker
from ajet.record.trackers.sample import COLUMNS, sample_rows
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import MissingExtraError, UserError

_STATES = {"finished": "success", "interrupted": "aborted", "failed": "crashed"}


class SwanlabTracker(Tracker):
    """Sends metrics under the names of `metrics.jsonl` and sampled episodes as a table `episodes/SPLIT` to SwanLab."""

    def __init__(self, run: TrackedRun) -> None:
        """Open SwanLab's experiment with the run's id. Raises UserError if it would send data and has no API key."""
        super().__init__(run)
        try:
            import swanlab
        except ImportError as error:
            raise MissingExtraError("swanlab", "swanlab", needed_for="The tracker swanlab") from error
        _silence_console()
        settings_class: Any = swanlab.Settings
        defaults = settings_class(interactive=False)
        if defaults.mode == "online" and not defaults.api_key:
            raise UserError("swanlab has no API key: set SWANLAB_API_KEY, or SWANLAB_MODE=offline to write files only.")
        hook = sys.excepthook
        self._run = swanlab.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            log_dir=os.environ.get("SWANLAB_LOG_DIR") or str(run.folder / "swanlab"),
            config=dict(run.config),
            settings=settings_class(
                interactive=False,
                terminal=settings_class.Terminal(proxy_type="none"),
                probe=settings_class.Probe(runtime=False, requirements=False, git=False),
            ),
        )
        sys.excepthook = hook  # ajet reports the run's end itself, and waits at most `closing_s`
        with suppress(AttributeError):
            atexit.unregister(self._run._handle_atexit)
        self._table = swanlab.echarts.Table

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send all numbers of the step."""
        self._run.log(dict(numbers), step=step)

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """Send a table of sampled episodes."""
        if data := sample_rows(episodes, outcomes, self.run.redact):
            table = self._table()
            table.add(list(COLUMNS), data)
            self._run.log({f"episodes/{split}": table}, step=step)

    def close(self) -> None:
        """Send what is left, and end the experiment with the run's outcome."""
        if self._run.alive:
            state: Any = _STATES[self.outcome]
            self._run.finish(state=state, error="the run failed" if state == "crashed" else None)


def _silence_console() -> None:
    """Prevent SwanLab from printing its own messages. SwanLab has no public setting for it."""
    with suppress(ImportError, AttributeError):
        import_module("swanlab.sdk.internal.pkg.console").c.quiet = True
