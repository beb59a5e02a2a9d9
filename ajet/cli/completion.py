"""`ajet completion SHELL`: shell completion."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Shell(str, Enum):
    """Shells that can be completed in."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")],
    install: Annotated[bool, typer.Option("--install", help="Write it into the shell's start-up files.")] = False,
) -> None:
    """Print (or install) the shell's completion script."""
    from typer.completion import get_completion_script
    from typer.completion import install as install_script

    if install:
        _, path = install_script(shell=shell.value, prog_name="ajet", complete_var="_AJET_COMPLETE")
        typer.echo(f"Completion is in {path}; it works in new terminals.")
        return
    typer.echo(get_completion_script(prog_name="ajet", complete_var="_AJET_COMPLETE", shell=shell.value))
