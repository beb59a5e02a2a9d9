"""Command-line options of `ajet report RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def report(
    run: RunName,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.zip", help="A new file (ajet-report-RUN.zip).", show_default=False),
    ] = None,
    exp_dir: RunRoot = RECORD_ROOT,
) -> None:
    """Collect what an issue needs of a run, without secrets: versions, settings, the log's end, two episodes."""
    from ajet_viewer.report import list_contents, write_report

    bundle = write_report(run, exp_dir.absolute(), out=out)
    for name, size in list_contents(bundle):
        typer.echo(f"  {size:>9,} bytes  {name}")
    typer.echo(f"{bundle}: secrets are removed. Read the content before you attach it to an issue.")
