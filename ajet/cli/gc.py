"""Parses the options of `ajet gc RUN` and prints the files."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def gc(
    run: RunName,
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes", metavar="N", min=0, help="Keep the episodes of the last N steps.", show_default=False
        ),
    ] = None,
    arrays: Annotated[
        int | None,
        typer.Option(
            "--arrays", metavar="N", min=0, help="Keep the token arrays of the last N steps.", show_default=False
        ),
    ] = None,
    checkpoints: Annotated[
        int | None,
        typer.Option("--checkpoints", metavar="N", min=1, help="Keep the N newest files.", show_default=False),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete the files; without this option they are only listed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:
    """List a run's removable files by kind and size; --yes deletes them.

    Default limits are those in the run's settings. Files that a remaining checkpoint needs are never deleted.
    """
    from ajet.commands.gc import collect_removable_files
    from ajet.record.console import console, format_bytes, make_table

    removable = collect_removable_files(
        run, exp_dir.absolute(), episodes=episodes, arrays=arrays, checkpoints=checkpoints, yes=yes
    )
    if as_json:
        typer.echo(json.dumps(removable.to_json(), indent=1))
        return 0
    limits = {
        "episodes": removable.bounds.episodes,
        "arrays": removable.bounds.arrays,
        "checkpoints": removable.checkpoints,
    }
    table = make_table("kind", "kept", "goes", "bytes")
    for kind, (count, size) in removable.sizes.items():
        limit = limits.get(kind)
        limit_text = "none" if kind in ("leftovers", "store") else "all" if limit is None else f"{limit} newest"
        table.add_row(kind, limit_text, str(count), f"{size:,}")
    console.print(table)
    total = sum(size for _, size in removable.sizes.values())
    if removable.store_problem:
        console.print(f"The store was not checked: {removable.store_problem}", markup=False)
    if not removable.is_nonempty:
        console.print("There is nothing to remove.")
    else:
        bytes_shown = format_bytes(total)
        console.print(
            f"{bytes_shown} freed." if removable.done else f"{bytes_shown} would be freed; --yes deletes the files."
        )
    return 0
