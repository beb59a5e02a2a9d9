"""Writes, prints and stores the rubrics (weighted criteria) of a run.

Invariant: a resumed run uses the rubrics of its start, stored as `auto_grader.json` in its folder, or fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config.record_file import read_record_file
from ajet.record.console import console, make_table, print_line, printable
from ajet.record.files import MOST_BYTES, write_atomically
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet_judges.rubrics.saved import Rubrics

JUDGE = "rubrics_auto_grader"


def require_rubrics(experiment: Experiment, run: RunDirectory | None = None) -> Rubrics | None:
    """Return the experiment's rubrics, and write them first if they are missing.

    Args:
        run: folder of the run, which gets a copy.

    Returns:
        None if the experiment's judge is not `rubrics_auto_grader`.

    Raises:
        UserError: writing failed, or a resumed run started with other rubrics.
    """
    if experiment.ajet.task_judge.judge_type != JUDGE:
        return None
    from ajet_judges.rubrics.judge import RubricsJudge
    from ajet_judges.rubrics.saved import NAME, read_rubrics

    judge = RubricsJudge(experiment)
    recorded = read_rubrics(run.path / NAME) if run is not None and run.goes_on else None
    if judge.rubrics is None and recorded is not None and recorded.version == judge.version:
        judge.copy_rubrics(read_record_file(run.path / NAME, MOST_BYTES).decode() if run is not None else "")
    if judge.rubrics is None:
        logger.info("{}", judge.said)
    rubrics = judge.ensure_rubrics()
    if recorded is not None and (recorded.version, recorded.criteria) != (rubrics.version, rubrics.criteria):
        assert run is not None
        raise UserError(
            f"This run started with rubrics of version {recorded.version}, but the current version is "
            f"{rubrics.version}.",
            where=f"{run.path / NAME}, and {judge.path}",
            expected="the same rubrics for the complete run",
            do="restore the rubrics' examples and settings, or set task_judge.rubrics_auto_grader.path to the "
            f"run's file; or {FRESH_ADVICE}",
        )
    for line in format_agreement(rubrics.content):
        logger.info("{}", line)
    if run is not None and recorded is None:
        write_atomically(run.path / NAME, judge.path.read_text(encoding="utf-8"), sync=True)
    return rubrics


def format_agreement(content: dict[str, Any]) -> list[str]:
    """Return lines that state the agreement with labels before and after revision."""
    lines = []
    for name in ("before", "after"):
        agreement = content.get(name)
        if not isinstance(agreement, dict):
            continue
        kappa = "–" if agreement["kappa"] is None else f"{agreement['kappa']:.3f}"
        interval_text = (
            ""
            if agreement["kappa_low"] is None
            else f" ({agreement['kappa_low']:.3f} to {agreement['kappa_high']:.3f}, 95 %)"
        )
        lines.append(
            f"rubrics {name} revision: agreement {agreement['share']:.3f}, kappa {kappa}{interval_text}, "
            f"{agreement['undecided']} of {agreement['total']} undecided; on {content.get('measured_on', '')}"
        )
    return lines


def print_rubrics(rubrics: Rubrics) -> None:
    """Print the criteria as a table, then their agreement with the labels, version and cost."""
    table = make_table("criterion", "weight", "category", texts=3)
    for criterion in rubrics.criteria:
        table.add_row(printable(criterion.text), f"{criterion.weight:g}", printable(criterion.category))
    console.print(table)
    content = rubrics.content
    lines = [*format_agreement(content), f"version {rubrics.version}"]
    if "examples" in content:
        cost = f", cost {content['cost']:.4g}" if content["cost"] else ""
        lines.append(
            f"written from {content['examples']} examples in {len(content['history'])} iterations "
            f"({content['stopped']}); {content['dropped']} more criteria were dropped; {content['calls']} calls{cost}"
        )
    for line in lines:
        print_line(line)
