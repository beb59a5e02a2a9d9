"""Parses the options of `ajet export RUN` and writes the folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, EngineName, RunName, RunRoot

_CHECK = "Checking it"


class DtypeName(StrEnum):
    """Number formats available for exported weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def export(
    run: RunName,
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", help="Step of the checkpoint (default: the last).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="New folder (exports/step-N in the run folder).", show_default=False
        ),
    ] = None,
    dtype: Annotated[
        DtypeName | None,
        typer.Option(
            "--dtype", metavar="float32|bfloat16", show_default=False,
            help="Number format for verl checkpoints; default: the training format.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Repeat held-out tasks with the exported folder, loaded by transformers (the folder may exist "
            "already). Exit code 1 if it does not behave as the run's model.",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    engine: Annotated[
        EngineName,
        typer.Option(
            "--engine", metavar="transformers|vllm", help="vllm: check with vLLM too.", rich_help_panel=_CHECK
        ),
    ] = EngineName.transformers,
    at_most: Annotated[
        int, typer.Option("--at-most", metavar="N", min=1, help="Number of tasks to repeat.", rich_help_panel=_CHECK)
    ] = 16,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", metavar="NATS", min=0.0, show_default=False, rich_help_panel=_CHECK,
            help="Largest allowed difference in a token's log-probability (0.01 in float32, 1.5 in bfloat16).",
        ),
    ] = None,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Write a checkpoint as a model folder in Hugging Face layout; verl's shards are merged."""
    from ajet.commands.export import export as made
    from ajet.commands.export import find_training_run, select_checkpoint
    from ajet.config.overrides import format_override
    from ajet.record.checkpoints import checkpoints_of

    root = exp_dir.absolute()
    folder = made(run, root, step=step, out=out, dtype=dtype.value if dtype else None, reuse=check)
    typer.echo(f"{folder}\nUse it:  {format_override('model.path', str(folder))}")
    if not check:
        return 0
    from ajet.cli.screen import show_logs
    from ajet.commands.export_check import check_export, print_check

    show_logs("WARNING")
    training_run = find_training_run(run, root)
    exported_step = select_checkpoint(checkpoints_of(training_run), step).step
    check_result = check_export(
        folder, training_run, exported_step, at_most=at_most, tolerance=tolerance, engine=engine.value
    )
    print_check(check_result)
    return 1 if check_result.problems else 0
