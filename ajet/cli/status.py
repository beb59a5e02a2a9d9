"""Parses the options of `ajet status RUN` and prints the status."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def status(
    run: RunName,
    once: Annotated[bool, typer.Option("--once", help="Print once, also on a terminal.")] = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print once in Prometheus format.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print once as JSON.")] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:
    """Show the state of a run: phase, queues, rates, waiting side, staleness."""
    from ajet.commands.status import show_status
    from ajet.record import live_status as now
    from ajet.record.console import console
    from ajet.record.find_run import require_run

    folder = require_run(run, exp_dir.absolute(), holding="status.json", expected="the folder of a run")
    if prometheus:
        typer.echo(now.format_prometheus(now.read_live_status(folder)), nl=False)
    elif as_json:
        typer.echo(json.dumps(now.read_live_status(folder).as_json(), indent=1, ensure_ascii=False))
    else:
        show_status(folder, console, once=once)
    return 0
