"""Parses the options of `ajet observe` and starts the proxy."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import ExpDir, Host, Port


def observe(
    endpoint: Annotated[
        str,
        typer.Option("--endpoint", metavar="URL", help="URL of the endpoint to record, up to /v1.", show_default=False),
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the recording.")] = "observed",
    idle: Annotated[
        float,
        typer.Option("--idle", metavar="SECONDS", min=0, help="End a session after this time without requests."),
    ] = 1800.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1,
            help="Time without data from the endpoint after which a call fails with status 504.",
        ),
    ] = 600.0,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Request token ids from the endpoint (vLLM returns them).")
    ] = False,
    host: Host = None,
    port: Port = None,
    exp_dir: ExpDir = None,
) -> int:  # fmt: skip
    """Record a deployed agent's model calls and the feedback of its users."""
    from ajet.cli.screen import show_logs
    from ajet.config.experiment import load_defaults

    show_logs()
    experiment = load_defaults(backbone="debug", name=name, exp_dir=exp_dir)

    from ajet_observe.command import ObserveOptions
    from ajet_observe.command import observe as run

    return run(experiment, ObserveOptions(endpoint, host or "127.0.0.1", port or 0, idle, token_ids, timeout))
