"""`ajet env …`: environments started, served, tried, checked."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ajet.config.plugins import list_first_names
from ajet.schema.errors import UserError

app = typer.Typer(help="Start and check environments: tools and worlds in which agents act.", no_args_is_help=True)


class ManifestFormat(StrEnum):
    """Formats that `ajet env render` can write."""

    kubernetes = "kubernetes"


Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command("up")
def up(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="A YAML file that describes an environment, or one that comes with ajet: "
            f"{', '.join(list_first_names('environment_file'))}.",
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0: other machines can reach it.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port; 0: a free one.", show_default="8000 if it is free"),
    ] = None,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="--no-token: no token is required, for clients that cannot send one; only on the loopback address.",
        ),
    ] = True,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground", help="Stay in the foreground, as a container requires; the token is MCP_SERVER_TOKEN."
        ),
    ] = False,
    docker: Annotated[
        bool, typer.Option("--docker", help="Run everything in one container of podman or docker; needs --image.")
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(
            "--image", help="Image for --docker; it must contain ajet and what the servers need.", show_default=False
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            "--network",
            help="Network for --docker: one of the container engine's; host: this machine's.",
            show_default=False,
        ),
    ] = "",
    drain: Annotated[
        float,
        typer.Option(
            "--drain", metavar="SECONDS", help="With --foreground: time for open episodes to end after SIGTERM."
        ),
    ] = 0.0,
    one_of_several: Annotated[
        bool,
        typer.Option(
            "--one-of-several",
            help="With --foreground: this is one of several processes behind one address, so each episode gets "
            "the address of its own process.",
        ),
    ] = False,
) -> int:
    """Start an environment in the background: one MCP address for all its servers."""
    from ajet_environments.hosting import lifetime

    if docker and (foreground or image is None):
        raise UserError(
            "--docker needs --image, an image that contains ajet, and cannot be combined with --foreground.",
            expected="--docker --image IMAGE, without --foreground",
            do="see docs/env_up.md",
        )
    if not docker and (image is not None or network):
        raise UserError(
            "--image and --network have an effect only with --docker.", expected="--docker together with them"
        )
    if foreground:
        return lifetime.run_in_foreground(
            environment, host=host, port=port, token=token, drain=drain, one_of_several=one_of_several
        )
    if drain or one_of_several:
        raise UserError(
            f"{'--drain' if drain else '--one-of-several'} has an effect only with --foreground.",
            expected="--foreground together with it",
        )
    lifetime.print_address(
        lifetime.start_environment(environment, host=host, port=port, token=token, image=image, network=network)
    )
    return 0


@app.command("list")
def list_() -> int:
    """List the environments that run on this machine."""
    from ajet.record.console import console
    from ajet_environments.hosting.lifetime import build_table

    console.print(build_table())
    return 0


@app.command("logs")
def logs(name: Name) -> int:
    """Print the log of an environment's processes since its start."""
    from ajet_environments.hosting.lifetime import read_log_lines

    for line in read_log_lines(name):
        typer.echo(line, nl=False)
    return 0


@app.command("down")
def down(name: Name) -> int:
    """Stop an environment after its running calls have ended."""
    from ajet_environments.hosting.lifetime import stop_environment

    stop_environment(name)
    return 0


@app.command("try")
def try_(
    environment: Annotated[str, typer.Argument(metavar="NAME|FILE")],
    tool: Annotated[
        str | None,
        typer.Argument(metavar="TOOL", help="Name of the tool; without it, all tools are listed."),
    ] = None,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Arguments of the tool, as JSON.")] = "{}",
) -> int:
    """List an environment's tools, or call one and print the cost of the call."""
    from ajet_environments.hosting.trial import call_by_hand

    call_by_hand(environment, tool, arguments)
    return 0


@app.command("plan")
def plan(
    environment: Annotated[str, typer.Argument(metavar="NAME|FILE")],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Number of episodes at the same time.")] = 16,
) -> int:
    """Measure what this number of episodes at the same time needs: processes, memory, CPU time."""
    from ajet.record.console import console
    from ajet_environments.hosting.trial import plan_episodes

    console.print(plan_episodes(environment, episodes))
    return 0


@app.command("render")
def render(
    kind: Annotated[ManifestFormat, typer.Argument(metavar="kubernetes")],
    environment: Annotated[str, typer.Argument(metavar="NAME|FILE")],
    image: Annotated[str, typer.Option("--image", help="Image that contains ajet and what the servers need.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Number of pods behind one Service.")] = 1,
) -> int:
    """Print the environment as Kubernetes manifests."""
    from ajet_environments.deployment import find_environment_file, read_description
    from ajet_environments.hosting.kubernetes import render_kubernetes

    typer.echo(
        render_kubernetes(read_description(find_environment_file(environment)), image=image, count=count), nl=False
    )
    return 0


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
