"""`ajet aworld path`."""

from __future__ import annotations

import typer

app = typer.Typer(help="Manage the module names `train` and `env` that AWorld's pages import.", no_args_is_help=True)


@app.callback()
def aworld() -> None:
    """Names that AWorld's pages import."""


@app.command("path")
def path() -> None:
    """Print the folder of `train` and `env`, for PYTHONPATH of programs that ajet does not start."""
    from ajet_aworld.packages import find_folder

    typer.echo(find_folder())
