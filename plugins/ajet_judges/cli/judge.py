"""Command-line options of `ajet judge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.exit import NEGATIVE, OK
from ajet.cli.options import RECORD_ROOT, Conf, ExpDir, Overrides, RunName, RunRoot

app = typer.Typer(help="Check judges before a run trusts them.", no_args_is_help=True)


@app.callback()
def judges() -> None:
    """Check judges before a run trusts them."""


@app.command("check")
def check(
    examples: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.jsonl", show_default=False,
            help="Labelled examples, {question, answer, reference, label} each; default: ajet's own.",
        ),
    ] = None,
    overrides: Overrides = None,
    conf: Conf = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            "--at-least", metavar="KAPPA", min=-1.0, max=1.0, show_default=False,
            help="Exit with 1 if the lower end of kappa's interval is below this value.",
        ),
    ] = None,
    exp_dir: ExpDir = None,
) -> int:  # fmt: skip
    """Score labelled examples with the experiment's judge: accuracy, Cohen's kappa, wrong verdicts, and whether the
    judge obeys instructions in judged texts. Exit code 1 if it scores none."""
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.schema.commands import format_command
    from ajet.schema.errors import UserError
    from ajet_judges.judging.check import SHIPPED, check_judge, print_check, read_labelled_examples

    if conf is None:
        raise UserError(
            "The required option --conf is missing.", expected=format_command("judge", "check", "--conf", "FILE.yaml")
        )
    settings = list(overrides or ())
    if examples is not None and "=" in examples and not Path(examples).exists():
        settings, examples = [examples, *settings], None
    show_logs("WARNING")
    experiment = load_experiment(conf, overrides=settings, exp_dir=exp_dir)
    result = check_judge(experiment, read_labelled_examples(Path(examples) if examples is not None else SHIPPED))
    print_check(result)
    if not result.decided:
        return NEGATIVE
    kappa_low = result.kappa_low
    return OK if at_least is None or (kappa_low is not None and kappa_low >= at_least) else NEGATIVE


@app.command("rubrics")
def rubrics(
    overrides: Overrides = None,
    conf: Conf = None,
    remake: Annotated[bool, typer.Option("--again", help="Write new rubrics even if some exist.")] = False,
    exp_dir: ExpDir = None,
) -> int:
    """Write rubrics from the experiment's labelled examples, or show existing ones, with their agreement with the
    labels."""
    from ajet.cli.screen import show_logs
    from ajet.commands.services import enter_run_hooks
    from ajet.config import load_experiment
    from ajet.record.console import print_line
    from ajet.schema.commands import format_command
    from ajet.schema.errors import UserError
    from ajet_judges.judging.rubrics import JUDGE, print_rubrics
    from ajet_judges.rubrics.judge import RubricsJudge

    if conf is None:
        raise UserError(
            "The required option --conf is missing.", expected=format_command("judge", "rubrics", "--conf", "FILE.yaml")
        )
    show_logs("WARNING")
    experiment = load_experiment(conf, overrides=list(overrides or ()), exp_dir=exp_dir)
    if experiment.ajet.task_judge.judge_type != JUDGE:
        raise UserError(
            "This experiment does not use the rubrics judge.",
            where=str(experiment.yaml_path),
            expected=f"task_judge.judge_type: {JUDGE}",
        )
    judge = RubricsJudge(experiment)
    if judge.rubrics is None or remake:
        print_line(judge.said)
        with enter_run_hooks(experiment, experiment.root / experiment.name / "rubrics"):
            judge.ensure_rubrics(print_line, remake=remake)
    assert judge.rubrics is not None
    print_rubrics(judge.rubrics)
    print_line(f"stored in {judge.path}")
    return 0


@app.command("compare")
def compare(
    run: RunName,
    judge: Annotated[
        list[str],
        typer.Option(
            "--judge", metavar="FILE.py->NAME",
            help="A judge, a scorer's name, or the judge of a FILE.yaml; may be repeated.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Compare judges on a run's recorded episodes, with each other and with the recorded verdicts: agreement, Cohen's
    kappa, correlation, largest differences, cost. No episode is run again. Exit code 1 if a judge scores none."""
    import json
    from dataclasses import asdict

    from ajet.cli.screen import show_logs
    from ajet.commands.evaluation import judge_comparison
    from ajet_judges.judging.rejudge import compare_judges_on_run

    show_logs("ERROR" if as_json else "WARNING")
    comparison = compare_judges_on_run(run, exp_dir.absolute(), list(dict.fromkeys(judge)))
    if as_json:
        typer.echo(json.dumps(asdict(comparison), indent=1, ensure_ascii=False))
    else:
        judge_comparison.print_comparison(comparison)
    return NEGATIVE if comparison.list_undecided() else OK
