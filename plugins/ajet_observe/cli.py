"""Parses the options of `ajet observe` and starts the proxy."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import ExpDir, Host, Port


def observe(
    endpoint: Annotated[
        str,
        typer.Option("--endpoint", metavar="URL", help="URL of the recorded endpoint, up to /v1.", show_default=False),
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the record.")] = "observed",
    idle: Annotated[
        float,
        typer.Option("--idle", metavar="SECONDS", min=0, help="End a session without requests after this time."),
    ] = 1800.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1,
            help="Time without data from the endpoint after which a call fails (504).",
        ),
    ] = 600.0,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Ask the endpoint for token ids (vLLM gives them).")
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
