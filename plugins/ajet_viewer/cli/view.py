"""Command-line options of `ajet view [RUN or FOLDER]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunRoot


def view(
    place: Annotated[
        str | None,
        typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder of runs; default: all runs."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the run into one file and exit.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port; 0: any free port.")] = 0,
    host: Annotated[
        str, typer.Option("--host", help="Listen address; requests need the printed token in any case.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser on a desktop.")] = True,
    is_attached: Annotated[bool, typer.Option("--beside-run", hidden=True)] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:
    """Show runs in a browser: curves, episodes, tokens."""
    from ajet_viewer.view import choose_place, open_viewer

    record = exp_dir if place is None else choose_place(place, exp_dir)
    return open_viewer(record.absolute(), host=host, port=port, browser=browser, file=html, is_attached=is_attached)
