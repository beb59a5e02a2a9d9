"""SwanLab: one experiment of theirs for each run of ours, also where ours goes on after it was stopped.

Invariant: nothing but numbers, the configuration and the sampled episodes leaves: no command line, no list of
packages, no output of the terminal. Theirs is the mode (`SWANLAB_MODE=offline` writes files only, `disabled` nothing);
files go into `swanlab/` in the run directory, or where `SWANLAB_LOG_DIR` says. A process has one experiment of theirs:
where the agent's own code has one open, this tracker cannot. They keep the first number of a name and step.
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
    """Numbers under the names of `metrics.jsonl`, and a table `episodes/SPLIT` a step."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        try:
            import swanlab
        except ImportError as error:
            raise MissingExtraError("swanlab", "swanlab", needed_for="The tracker swanlab") from error
        _silence_console()
        chosen: Any = swanlab.Settings
        given = chosen(interactive=False)
        if given.mode == "online" and not given.api_key:
            raise UserError("swanlab has no key: set SWANLAB_API_KEY, or SWANLAB_MODE=offline to write files only.")
        hook = sys.excepthook
        self._run = swanlab.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            log_dir=os.environ.get("SWANLAB_LOG_DIR") or str(run.folder / "swanlab"),
            config=dict(run.config),
            settings=chosen(
                interactive=False,
                terminal=chosen.Terminal(proxy_type="none"),
                probe=chosen.Probe(runtime=False, requirements=False, git=False),
            ),
        )
        sys.excepthook = hook  # ajet says how a run ended, and waits no longer than `closing_s` for it
        with suppress(AttributeError):
            atexit.unregister(self._run._handle_atexit)
        self._table = swanlab.echarts.Table

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Each at its step."""
        self._run.log(dict(numbers), step=step)

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """A table of some of them."""
        if data := sample_rows(episodes, outcomes, self.run.redact):
            table = self._table()
            table.add(list(COLUMNS), data)
            self._run.log({f"episodes/{split}": table}, step=step)

    def close(self) -> None:
        """Send the rest, and say how the run ended."""
        if self._run.alive:
            state: Any = _STATES[self.outcome]
            self._run.finish(state=state, error="the run failed" if state == "crashed" else None)


def _silence_console() -> None:
    """Send what SwanLab prints to its own log in its folder only; it has no setting for it."""
    with suppress(ImportError, AttributeError):
        import_module("swanlab.sdk.internal.pkg.console").c.quiet = True
