"""Parses the options of `ajet doctor [MODEL]` and prints the findings."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, BackboneChoice, Conf, RunRoot


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Model to check, as in model.path: a folder, hub name or embedded:NAME.",
            show_default=False,
        ),
    ] = None,
    conf: Conf = None,
    backbone: BackboneChoice = None,
    exp_dir: RunRoot = RECORD_ROOT,
    store: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Check only this store: sqlite:PATH or mongodb://HOST/DATABASE."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Check machine, packages, network and a model's template, or a store. Exit code 1 only for a problem."""
    import json

    from ajet.commands.doctor import examine, examine_store, table
    from ajet.record.console import console

    experiment = None
    if conf is not None:
        from ajet.cli.options import open_experiment

        experiment = open_experiment(conf, backbone, ())
    checkup = examine_store(store) if store is not None else examine(model, experiment, exp_dir=exp_dir.absolute())
    if as_json:
        typer.echo(json.dumps(checkup.plain(), indent=2, ensure_ascii=False))
    else:
        console.print(table(checkup))
    return 0 if checkup.healthy else 1
