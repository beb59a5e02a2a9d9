"""Parses the options of `ajet stop RUN` and ends the run."""

from __future__ import annotations

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def stop(run: RunName, exp_dir: RunRoot = RECORD_ROOT) -> int:
    """Stop a run as Ctrl-C would: it saves a checkpoint."""
    from ajet.commands.stop import stop as stop_run

    return stop_run(run, exp_dir.absolute())
