"""Command-line options of `ajet audit RUN`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def audit(
    run: RunName,
    episode: Annotated[
        str,
        typer.Option(
            "--episode", metavar="UUID", show_default=False, help="Show the steps and checkpoints of this episode."
        ),
    ] = "",
    task: Annotated[
        str, typer.Option("--task", metavar="ID", help="Show the same for all attempts at a task.", show_default=False)
    ] = "",
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", help="Show the episodes of this step's update.", show_default=False),
    ] = None,
    head: Annotated[
        str,
        typer.Option("--head", metavar="DIGEST", help="Require that the chain contains this link.", show_default=False),
    ] = "",
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Check the weights of the checkpoints too.")
    ] = True,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE.jsonl|.parquet", show_default=False,
            help="Write one row per episode with its updates, without checking the chain.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Check that a run's files are unchanged; trace an update back to episodes, and an episode to updates.

    Exit code 1 if something changed. --step, --episode and --task show the records connected with one of them.
    """
    from ajet.record.console import console, counted
    from ajet.schema.errors import UserError
    from ajet_proof.auditing import audit as auditing
    from ajet_proof.auditing.report import encode_audit, print_audit

    options = [
        name for name, is_set in (("--episode", episode), ("--task", task), ("--step", step is not None)) if is_set
    ]
    if len(options) + (export is not None) > 1:
        together = " and ".join([*options, *(["--export"] if export is not None else [])])
        raise UserError(f"{together} cannot be combined.", expected="only one of the options")
    if head and re.fullmatch(r"[0-9a-f]{6,64}", head) is None:
        raise UserError(f"{head} is not the digest of a link.", where="--head", expected="6 to 64 hexadecimal digits")
    folder = auditing.find_run_folder(run, exp_dir.absolute())
    if export is not None:
        from ajet_proof.auditing.export import export_episodes

        typer.echo(f"{export}: {counted(export_episodes(folder, export), 'episode')}")
        return 0
    result: auditing.RunAudit | auditing.Trail
    if episode:
        result = auditing.trace_episode(folder, episode)
    elif task:
        result = auditing.trace_task(folder, task)
    elif step is not None:
        result = auditing.trace_step(folder, step)
    else:
        result = auditing.audit_run(folder, weights=weights, head=head)
    if as_json:
        typer.echo(encode_audit(result))
    else:
        print_audit(result, console)
    return 0 if result.ok else 1
