"""`ajet observe`."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import ExpDir, Host, Port


def observe(
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="URL", help="What it stands before, up to /v1.", show_default=False)
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of what is recorded.")] = "observed",
    idle: Annotated[
        float,
        typer.Option("--idle", metavar="SECONDS", min=0, help="A session that is not used for so long is over."),
    ] = 1800.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1,
            help="For so long the endpoint may send nothing; then it hangs, and its client is told (504).",
        ),
    ] = 600.0,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Ask the endpoint for token ids (vLLM gives them).")
    ] = False,
    host: Host = None,
    port: Port = None,
    exp_dir: ExpDir = None,
) -> int:  # fmt: skip
    """Record what a deployed agent and its model say, and what people think of it."""
    from ajet.cli.screen import show_logs
    from ajet.config.experiment import load_defaults

    show_logs()
    experiment = load_defaults(backbone="debug", name=name, exp_dir=exp_dir)

    from ajet.commands.observe import ObserveOptions
    from ajet.commands.observe import observe as run

    return run(experiment, ObserveOptions(endpoint, host or "127.0.0.1", port or 0, idle, token_ids, timeout))
