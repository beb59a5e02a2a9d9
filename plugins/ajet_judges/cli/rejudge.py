"""Command-line options of `ajet rejudge RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.exit import NEGATIVE, OK
from ajet.cli.options import RECORD_ROOT, RunName, RunRoot


def rejudge(
    run: RunName,
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge", metavar="FILE.py->NAME",
            help="A judge or a scorer's name. Default: the run's own judge with its current code.",
            show_default=False,
        ),
    ] = None,
    conf: Annotated[
        Path | None,
        typer.Option("--conf", metavar="FILE.yaml", help="The judge or scorers of this YAML.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.csv", show_default=False,
            help="A new .csv (ajet-rejudge-RUN.csv) or .jsonl file; steps go next to it."),
    ] = None,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Judge recorded episodes again, without model or environment. Writes tables; the record stays unchanged.

    Shows changed rewards, and the run's curve, groups with a learning signal and advantages under the new verdicts.
    Exit code 1 if no episode got a score.
    """
    from ajet.cli.screen import show_logs
    from ajet_judges.judging.rejudge import find_recorded_run, open_run_judge, rejudge_run
    from ajet_judges.judging.rejudge_report import choose_tables, print_rejudge, write_tables

    show_logs("WARNING")
    folder = find_recorded_run(run, exp_dir.absolute())
    with open_run_judge(folder, reference=judge, conf=conf) as run_judge:
        tables = choose_tables(folder, out)
        result = rejudge_run(folder, run_judge)
    write_tables(result, tables)
    print_rejudge(result, tables)
    return NEGATIVE if result.why_undecided else OK
