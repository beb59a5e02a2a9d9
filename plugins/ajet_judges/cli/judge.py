"""`ajet judge check`, `ajet judge compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from ajet.cli.exit import NEGATIVE, OK
from ajet.cli.options import RECORD_ROOT, Conf, ExpDir, Overrides, RunName, RunRoot

app = typer.Typer(help="Judges, before a run trusts them.", no_args_is_help=True)


@app.callback()
def judges() -> None:
    """Judges, before a run trusts them."""


@app.command("check")
def check(
    examples: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="FILE.jsonl", show_default=False,
            help="Labelled examples, {question, answer, reference, label} each; without it those that come with ajet.",
        ),
    ] = None,
    overrides: Overrides = None,
    conf: Conf = None,
    at_least: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--at-least", metavar="KAPPA", min=-1.0, max=1.0, show_default=False,
            help="Exit with 1 where the agreement may be less: the lower end of kappa's interval.",
        ),
    ] = None,
    exp_dir: ExpDir = None,
) -> int:  # fmt: skip
    """Have the experiment's judge score labelled examples: accuracy, Cohen's kappa, what it got wrong, and whether it
    obeys orders in what it judges. Exit code 1 where it decides none."""
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.record.console import console
    from ajet.schema.commands import format_command
    from ajet.schema.errors import UserError
    from ajet_judges.judging.check import SHIPPED, checked, read_examples, show

    if conf is None:
        raise UserError("There is no --conf.", expected=format_command("judge", "check", "--conf", "FILE.yaml"))
    settings = list(overrides or ())
    if examples is not None and "=" in examples and not Path(examples).exists():
        settings, examples = [examples, *settings], None
    show_logs("WARNING")
    experiment = load_experiment(conf, overrides=settings, exp_dir=exp_dir)
    found = checked(experiment, read_examples(Path(examples) if examples is not None else SHIPPED))
    show(found, console)
    if not found.decided:
        return NEGATIVE
    low = found.kappa_low
    return OK if at_least is None or (low is not None and low >= at_least) else NEGATIVE


@app.command("rubrics")
def rubrics(
    overrides: Overrides = None,
    conf: Conf = None,
    again: Annotated[bool, typer.Option("--again", help="Make them anew where there are some.")] = False,
    exp_dir: ExpDir = None,
) -> int:
    """Have the experiment's models write rubrics from its labelled examples, or show those that are there, and how far
    they agree with the labels."""
    from ajet.cli.screen import show_logs
    from ajet.commands.run_hooks import enter_run_hooks
    from ajet.config import load_experiment
    from ajet.record.console import console
    from ajet.schema.commands import format_command
    from ajet.schema.errors import UserError
    from ajet_judges.judging.rubrics import JUDGE, show
    from ajet_judges.rubrics.judge import RubricsJudge

    if conf is None:
        raise UserError("There is no --conf.", expected=format_command("judge", "rubrics", "--conf", "FILE.yaml"))
    show_logs("WARNING")
    experiment = load_experiment(conf, overrides=list(overrides or ()), exp_dir=exp_dir)
    if experiment.ajet.task_judge.judge_type != JUDGE:
        raise UserError(
            "This experiment judges by no rubrics.",
            where=str(experiment.yaml_path),
            expected=f"task_judge.judge_type: {JUDGE}",
        )
    judge = RubricsJudge(experiment)
    if judge.rubrics is None or again:
        console.print(judge.said, markup=False, highlight=False, soft_wrap=True)

        def say(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        with enter_run_hooks(experiment, experiment.root / experiment.name / "rubrics"):
            judge.made(say, again=again)
    assert judge.rubrics is not None
    show(judge.rubrics, console)
    console.print(f"kept in {judge.path}", markup=False, highlight=False, soft_wrap=True)
    return 0


@app.command("compare")
def compare(
    run: RunName,
    judge: Annotated[
        list[str],
        typer.Option(
            "--judge", metavar="FILE.py->NAME",
            help="A judge, the scorer of this name, or the judge of a FILE.yaml; may be given several times.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Compare judges on a run's recorded episodes, with each other and with the verdicts of the play: agreement,
    Cohen's kappa, correlation, where they differ most, what each takes. Nothing is played. Exit code 1 where one of
    them decides nothing."""
    import json
    from dataclasses import asdict

    from ajet.cli.screen import show_logs
    from ajet.commands.evaluation import judge_comparison
    from ajet_judges.judging.rejudge import judges_compared

    show_logs("ERROR" if as_json else "WARNING")
    found = judges_compared(run, exp_dir.absolute(), list(dict.fromkeys(judge)))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1, ensure_ascii=False))
    else:
        judge_comparison.print_comparison(found)
    return NEGATIVE if found.list_undecided() else OK
