"""`ajet prove RUN_OR_EPISODE`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from ajet.cli.options import RECORD, RunRoot


def prove(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_EPISODE",
            help="A run's name or folder, an episodes/step-N.jsonl, or the first letters of an episode's uuid.",
        ),
    ],
    step: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option("--step", metavar="N", help="Only this step; may be given several times.", show_default=False),
    ] = None,
    at_most: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--at-most", metavar="N", min=1, show_default=False,
            help="Recompute the log-probabilities of at most N episodes a step. Ids are always checked in full.",
        ),
    ] = None,
    ids_only: Annotated[bool, typer.Option("--ids-only", help="Load no weights.")] = False,
    tolerance: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--tolerance", metavar="NATS", min=0.0, show_default=False,
            help="How far a single improbable token may lie apart (0.01 in float32, 1.5 in bfloat16).",
        ),
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Get the model that the record names; without it ajet asks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exp_dir: RunRoot = RECORD,
) -> int:  # fmt: skip
    """Derive recorded episodes a second time, token by token. Exit code 1 on one wrong token or distribution."""
    from ajet.cli.screen import show_logs
    from ajet.record.console import console
    from ajet.run.proof_report import as_json as spelled
    from ajet.run.proof_report import keep, show
    from ajet.run.prove import prove_recorded

    show_logs("ERROR" if as_json else "WARNING")
    report = prove_recorded(
        target,
        exp_dir.absolute(),
        steps=step or (),
        at_most=at_most,
        ids_only=ids_only,
        tolerance=tolerance,
        fetch=fetch,
    )
    if as_json:
        typer.echo(spelled(report))
    else:
        show(report, console)
    keep(report)
    return 0 if report.ok else 1
