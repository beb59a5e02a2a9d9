"""`ajet env …`: environments started, served, tried, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet_environments.cli import environments

app = typer.Typer(help="Start and check environments: tools and worlds in which agents act.", no_args_is_help=True)
app.command("up")(environments.up)
app.command("list")(environments.list_)
app.command("logs")(environments.logs)
app.command("down")(environments.down)
app.command("try")(environments.try_)
app.command("plan")(environments.plan)
app.command("render")(environments.render)


@app.command("serve")
def serve(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            help="file.py->MyEnv (a class with create and step), gymnasium:ID, textarena:ID, skyrl:ID, "
            "openenv:ws://HOST:PORT or nemo_gym:http://HOST:PORT.",
        ),
    ],
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0: a free one.")] = 0,
    instances: Annotated[
        int, typer.Option("--instances", metavar="N", help="Largest number of instances at the same time.", min=1)
    ] = 256,
    idle: Annotated[
        float,
        typer.Option(
            "--idle", metavar="SECONDS", help="Seconds without a request after which an instance is closed.", min=1
        ),
    ] = 900,
    tasks: Annotated[
        int,
        typer.Option("--tasks", metavar="N", help="Number of training tasks, if the environment lists none.", min=1),
    ] = 1000,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="JSON Lines file of tasks (skyrl, nemo_gym).", show_default=False),
    ] = None,
) -> int:
    """Serve an environment to rollouts (task_reader.type: env_service). Requests need the token ENV_SERVICE_TOKEN."""
    from ajet_environments.services.serving import serve_world as run

    return run(environment, host=host, port=port, instances=instances, idle_s=idle, tasks=tasks, data=data)


@app.command("check")
def check(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI",
            help="http://HOST:PORT of a service, openenv:ws://HOST:PORT, nemo_gym:http://HOST:PORT, or a source "
            "that `ajet env serve` accepts.",
        ),
    ],
    env_type: Annotated[
        str, typer.Option("--env-type", metavar="NAME", help="Kind of environment to request from the service.")
    ] = "",
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="Split whose first task is run.")] = "train",
    action: Annotated[
        list[str] | None,
        typer.Option("--action", metavar="TEXT", help="Action of each step; without this option, actions are made up."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Largest number of steps.", min=1)] = 10,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="JSON Lines file of tasks (skyrl, nemo_gym).", show_default=False),
    ] = None,
) -> int:
    """Run one episode and print what works and what is missing. Exit code 1 if the episode could not be run."""
    from ajet_environments.services.check import run_check as run

    return run(uri, env_type=env_type, split=split, actions=action or [], steps=steps, data=data)
