"""`ajet export RUN`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from ajet.cli.options import RECORD, RunName, RunRoot


class Dtype(str, Enum):
    """Number formats of weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def export(
    run: RunName,
    step: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--step", metavar="N", help="Of this step; otherwise of the last checkpoint.", show_default=False),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", metavar="DIR", help="A new folder (exports/step-N in the run's).", show_default=False
        ),
    ] = None,
    dtype: Annotated[
        Optional[Dtype],  # noqa: UP045
        typer.Option(
            "--dtype", metavar="float32|bfloat16", show_default=False,
            help="Number format, of verl's checkpoints; otherwise the one that was trained in.",
        ),
    ] = None,
    exp_dir: RunRoot = RECORD,
) -> None:  # fmt: skip
    """Make a checkpoint a model folder in Hugging Face layout; shards of verl are merged."""
    from ajet.run.export import export as made

    folder = made(run, exp_dir.absolute(), step=step, out=out, dtype=dtype.value if dtype else None)
    typer.echo(f"{folder}\nUse it:  model.path={folder}")
