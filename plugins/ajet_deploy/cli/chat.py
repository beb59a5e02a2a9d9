"""Parses the options of `ajet chat RUN` and starts the chat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def chat(
    run: RunName,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Send this prompt and exit.", show_default=False),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="System prompt.", show_default=False),
    ] = None,
    agent: Annotated[bool, typer.Option("--agent", help="Use the run's own workflow and tools.")] = False,
    conf: Annotated[
        Path | None,
        typer.Option(
            "--conf",
            metavar="FILE.yaml",
            help="Take agent and settings from this YAML instead of the record.",
            show_default=False,
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter", metavar="NAME", help="Name of the adapter, if the run has several.", show_default=False
        ),
    ] = None,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:
    """Chat with the model that a run has trained."""
    from ajet_deploy.chat import chat as talk

    return talk(run, exp_dir.absolute(), prompt, system=system, through_agent=agent, conf=conf, adapter=adapter)
