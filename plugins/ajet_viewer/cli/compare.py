"""Command-line options of `ajet compare RUN RUN …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunRoot


def compare(
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]RUN[,RUN]...",
            help="Groups of runs, such as grpo=a,b maxrl=c,d; a run is a name, a folder or a pattern such as 'grpo-*'. "
            "The others are compared with the first group.",
            show_default=False,
        ),
    ],
    target: Annotated[
        float | None,
        typer.Option(
            "--target", metavar="VALUE", show_default=False,
            help="Print the cost up to the first validation with this held-out success or reward.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write a row per training step and validation of each run.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", "--png", metavar="FILE.svg|png", help="Plot the curves.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> None:  # fmt: skip
    """Compare runs, or groups of runs that differ in their seed: curves, held-out results, steps, time."""
    from ajet.record.files import require_place
    from ajet.record.plain_json import dumps
    from ajet_viewer.comparison.groups import read_comparison
    from ajet_viewer.comparison.report import draw_picture, print_comparison, to_json, write_csv

    for option, file in (("--csv", csv), ("--picture", picture)):
        if file is not None:
            require_place(file, option, new=False)  # a repeated command overwrites the files
    comparison = read_comparison(groups, exp_dir.absolute())
    if as_json:
        typer.echo(dumps(to_json(comparison, target)))
    else:
        print_comparison(comparison, target)
    if csv is not None:
        write_csv(comparison, csv)
    if picture is not None:
        draw_picture(comparison, picture)
