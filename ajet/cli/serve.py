"""Parses the options of `ajet serve` and starts the server."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import BackboneChoice, Conf, ExpDir, Host, Overrides, Port, print_reading


def serve(
    conf: Conf = None,
    backbone: BackboneChoice = None,
    exp_dir: ExpDir = None,
    host: Host = None,
    port: Port = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run; the folder of the earlier run is kept.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="auto|never|PATH", help="Checkpoint to resume from."),
    ] = None,
    no_rehearsal: Annotated[bool, typer.Option("--no-rehearsal", help="Start without a trial update.")] = False,
    overrides: Overrides = None,
) -> int:
    """Run a server on which external agents open episodes over HTTP; with --backbone local, train on them."""
    print_reading(conf)
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.config.experiment import load_defaults

    show_logs()
    settings = [*(overrides or ())]
    settings += [f"ajet.gateway.host={host}"] if host is not None else []
    settings += [f"ajet.gateway.port={port}"] if port is not None else []
    if conf is None:
        experiment = load_defaults(backbone=backbone, overrides=settings, name="serve", exp_dir=exp_dir)
    else:
        experiment = load_experiment(conf, backbone=backbone, overrides=settings, exp_dir=exp_dir)

    from ajet.commands.serve import serve as run

    return run(experiment, resume=resume, fresh=fresh, rehearsal=not no_rehearsal)
