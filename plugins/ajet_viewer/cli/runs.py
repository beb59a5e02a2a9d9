"""Command-line options of `ajet runs` and `ajet episodes RUN`."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def runs(
    debug: Annotated[bool, typer.Option("--debug/--no-debug", help="Include debug runs.")] = True,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:
    """List the runs: state, step, reward, age."""
    from ajet_viewer.tables import show_runs

    return show_runs(exp_dir.absolute(), debug=debug)


def episodes(
    run: RunName,
    worst: Annotated[int, typer.Option("--worst", metavar="N", help="Number of episodes with the lowest rewards.")] = 5,
    best: Annotated[
        int | None,
        typer.Option(
            "--best", metavar="N", help="Number of episodes with the highest rewards instead.", show_default=False
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="N|A..B", help="Only these steps.", show_default=False),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="train, validation or debug.", show_default=False)] = "",
    episode: Annotated[
        str, typer.Option("--episode", metavar="UUID", help="Only the episode with this id.", show_default=False)
    ] = "",
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:
    """Print the conversations of a run's worst episodes."""
    from ajet_viewer.tables import show_episodes

    return show_episodes(
        run,
        exp_dir.absolute(),
        count=worst if best is None else best,
        best=best is not None,
        step=step,
        split=split,
        uuid=episode,
    )
