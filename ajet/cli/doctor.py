"""`ajet doctor [MODEL]`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from ajet.cli.options import RECORD, BackboneChoice, Conf, RunRoot


def doctor(
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="MODEL", help="As in model.path: a folder, hub name or embedded:NAME.", show_default=False
        ),
    ] = None,
    conf: Conf = None,
    backbone: BackboneChoice = None,
    exp_dir: RunRoot = RECORD,
    store: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="URI", help="Look at this store, and nothing else: sqlite:PATH or mongodb://HOST/DATABASE."
        ),
    ] = None,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure this machine, and nothing else: what a model may expect of it.")
    ] = False,
    world_size: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="With --bench: an all-reduce among N processes, too.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check machine, packages, network and a model's template, or a store, or measure. Exits 1 only for a problem."""
    import json

    from ajet.record.console import console
    from ajet.run.doctor import examine, examine_speed, examine_store, table
    from ajet.schema.errors import UserError

    if world_size > 1 and not bench:
        raise UserError("--world-size is a setting of --bench.", where="command line", do="add --bench")
    if bench and store is not None:
        raise UserError("--bench and --store look at different things.", where="command line", do="give one of them")

    experiment = None
    if conf is not None:
        from ajet.cli.opened import opened

        experiment = opened(conf, backbone, ())
    if store is not None:
        checkup = examine_store(store)
    elif bench:
        checkup = examine_speed(model, experiment, processes=world_size)
    else:
        checkup = examine(model, experiment, exp_dir=exp_dir.absolute())
    if as_json:
        typer.echo(json.dumps(checkup.plain(), indent=2, ensure_ascii=False))
    else:
        console.print(table(checkup))
    return 0 if checkup.healthy else 1
