"""`ajet env …`: environments started, served, tried, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet_environments.cli import environments

app = typer.Typer(help="Tools and worlds that agents act in.", no_args_is_help=True)
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
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0 is a free one.")] = 0,
    instances: Annotated[int, typer.Option("--instances", metavar="N", help="At most so many at once.", min=1)] = 256,
    idle: Annotated[
        float, typer.Option("--idle", metavar="SECONDS", help="Release instances that nobody used for so long.", min=1)
    ] = 900,
    tasks: Annotated[
        int, typer.Option("--tasks", metavar="N", help="Training tasks, where the environment names none.", min=1)
    ] = 1000,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Tasks as JSON lines (skyrl, nemo_gym).", show_default=False),
    ] = None,
) -> int:
    """Serve an environment to rollouts (task_reader.type: env_service). A token in ENV_SERVICE_TOKEN is asked for."""
    from ajet_environments.services.serving import serve_world as run

    return run(environment, host=host, port=port, instances=instances, idle_s=idle, tasks=tasks, data=data)


@app.command("check")
def check(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI",
            help="http://HOST:PORT of a service, openenv:ws://HOST:PORT, nemo_gym:http://HOST:PORT, or what "
            "`ajet env serve` takes.",
        ),
    ],
    env_type: Annotated[str, typer.Option("--env-type", metavar="NAME", help="The kind that it is asked for.")] = "",
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="Split whose first task is played.")] = "train",
    action: Annotated[
        list[str] | None,
        typer.Option("--action", metavar="TEXT", help="What to do, once a step; without any, something is made up."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="At most so many steps.", min=1)] = 10,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Tasks as JSON lines (skyrl, nemo_gym).", show_default=False),
    ] = None,
) -> int:
    """Play one episode and say what works and what is missing. Exit code 1 where an episode could not be played."""
    from ajet_environments.services.check import run_check as run

    return run(uri, env_type=env_type, split=split, actions=action or [], steps=steps, data=data)
