"""Parses the options of `ajet eval RUN_OR_YAML` and prints the evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.exit import NEGATIVE, OK
from ajet.cli.options import Conf, ExpDir, Overrides, print_reading

_WHAT, _OUT = "Episodes", "Results"


def evaluate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_YAML", help="Name or folder of a run, or the YAML of an experiment.", show_default=False
        ),
    ] = None,
    overrides: Overrides = None,
    conf: Conf = None,
    exp_dir: ExpDir = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="MODEL", show_default=False, rich_help_panel=_WHAT,
            help="Model to evaluate: base, best, latest or step-N of the run; a run's name; a folder; a Hugging "
            "Face name; embedded:NAME; NAME@http://HOST/v1. Several are compared with the first. Default: "
            "the run's best checkpoint.",
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks", metavar="FILE.jsonl", help="Tasks to use instead of the validation tasks.", show_default=False,
            rich_help_panel=_WHAT,
        ),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Use the training tasks instead.", rich_help_panel=_WHAT)
    ] = False,
    at_most: Annotated[
        int | None,
        typer.Option(
            "--at-most", metavar="N", min=1, help="Use the first N tasks.", show_default=False, rich_help_panel=_WHAT
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", metavar="K", min=1, show_default=False, rich_help_panel=_WHAT,
            help="Attempts at each task. More than one give pass@K and the noise of a run.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", metavar="T", min=0.0, show_default=False, rich_help_panel=_WHAT,
            help="Sampling temperature; 0: greedy. Default: rollout.val_kwargs.",
        ),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            "--judge", metavar="FILE.py->NAME", show_default=False, rich_help_panel=_OUT,
            help="Score by this judge too (a judge, a scorer's name, or the judge of a YAML), and print how far "
            "the judges agree; may be repeated.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Score recorded attempts again.", rich_help_panel=_WHAT)
    ] = False,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", metavar="KEY", show_default=False, rich_help_panel=_OUT,
            help="Print scores for each value of this key of the tasks' metadata too (if the rows have them, also "
            "of tag and tags).",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write one row per attempt.", show_default=False, rich_help_panel=_OUT
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet", metavar="FILE", help="The same as a Parquet file.", show_default=False, rich_help_panel=_OUT
        ),
    ] = None,
    mark: Annotated[
        Path | None,
        typer.Option(
            "--mark", metavar="FILE.jsonl", show_default=False, rich_help_panel=_OUT,
            help="Write the tasks, each with a mark whether all attempts of the first model solved it, or none.",
        ),
    ] = None,
    drop_marked: Annotated[
        bool, typer.Option("--drop-marked", help="Leave marked tasks out of the file of --mark.", rich_help_panel=_OUT)
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE.svg|png", help="Plot the scores.", show_default=False, rich_help_panel=_OUT
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUT)
    ] = False,
    fetch: Annotated[
        bool,
        typer.Option(
            "--fetch", help="Download the recorded model without a confirmation.", rich_help_panel=_WHAT
        ),
    ] = False,
) -> int:  # fmt: skip
    """Evaluate one or several models on held-out tasks and compare them. The same command again runs only what is
    missing.

    Exit code 1 if no attempt of a model was scored."""
    if target is not None and target.endswith((".yaml", ".yml")) and conf is None:
        conf, target = Path(target), None
    print_reading(conf, err=as_json)
    from ajet.cli.screen import redirect_to_stderr, show_logs
    from ajet.commands.evaluation.models import open_target
    from ajet.commands.evaluation.play import EvaluationOptions, evaluate_models
    from ajet.commands.evaluation.report import draw_report, dump_json, print_report, write_csv, write_parquet
    from ajet.record.attempts import TAG_KEYS
    from ajet.record.files import require_place

    show_logs("ERROR" if as_json else "WARNING")
    settings = list(overrides or ())
    if target is not None and "=" in target:
        settings.insert(0, target)  # typer takes the first KEY=VALUE for the target
        target = None
    for option, file in (("--csv", csv), ("--parquet", parquet), ("--mark", mark), ("--picture", picture)):
        if file is not None:
            require_place(file, option, new=False)  # a repeated command overwrites the files
    keys = tuple(by) if by else TAG_KEYS
    evaluation_options = EvaluationOptions(
        tasks, at_most, repeat, temperature, tuple(dict.fromkeys(judge or ())), fresh, training, mark is not None
    )
    with redirect_to_stderr(as_json):
        experiment, models = open_target(target, conf, model or [], overrides=settings, exp_dir=exp_dir, fetch=fetch)
        result = evaluate_models(experiment, models, evaluation_options)
    if as_json:
        typer.echo(dump_json(result, keys))
    else:
        print_report(result, keys)
    if mark is not None:
        from ajet.commands.evaluation.marks import write_marked

        typer.echo(write_marked(result.played, result.evaluated[0], mark, drop=drop_marked), err=as_json)
    if csv is not None:
        write_csv(result, csv, keys)
    if parquet is not None:
        write_parquet(result, parquet, keys)
    if picture is not None:
        draw_report(result, picture)
    return NEGATIVE if result.list_unscored() else OK
