"""Parses the options of `ajet deploy RUN` and starts the server."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, EngineName, Host, Port, RunName, RunRoot


def deploy(
    run: RunName,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="latest|best|step-N", help="Checkpoint: latest, best or step-N.")
    ] = "latest",
    engine: Annotated[
        EngineName | None,
        typer.Option(
            "--engine", metavar="transformers|vllm", show_default=False,
            help="Engine that samples: transformers in this process, or vllm; default: the run's engine.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Model name for clients (the run's name).", show_default=False),
    ] = None,
    with_base: Annotated[
        bool, typer.Option("--with-base", help="Also serve a LoRA run's base model as `base`.")
    ] = False,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download the recorded model without a confirmation.")
    ] = False,
    host: Host = None,
    port: Port = None,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Serve the model that a run has trained, with OpenAI's and Anthropic's protocols."""
    from dataclasses import replace

    from ajet.cli.screen import show_logs
    from ajet_deploy.deploy import DeployOptions
    from ajet_deploy.deploy import deploy as served

    show_logs()
    options = DeployOptions(run, exp_dir.absolute(), checkpoint, engine and engine.value, host, port or 0, name)
    return served(replace(options, with_base=with_base, fetch=fetch))
