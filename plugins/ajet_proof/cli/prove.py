"""Command-line options of `ajet prove RUN_OR_EPISODE`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ajet.cli.options import RECORD_ROOT, RunRoot


def prove(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_EPISODE", show_default=False,
            help="A run's name or folder, an episodes/step-N.jsonl, or the first letters of an episode's id.",
        ),
    ] = "",
    step: Annotated[
        list[int] | None,
        typer.Option("--step", metavar="N", help="Check only this step; may be repeated.", show_default=False),
    ] = None,
    at_most: Annotated[
        int | None,
        typer.Option(
            "--at-most", metavar="N", min=1, show_default=False,
            help="Recompute the log-probabilities of at most N episodes per step. Token ids are always checked "
            "completely.",
        ),
    ] = None,
    ids_only: Annotated[bool, typer.Option("--ids-only", help="Check token ids only; load no weights.")] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", metavar="NATS", min=0.0, show_default=False,
            help="Allowed difference of the log-probability of a single improbable token (0.01 in float32, 1.5 in "
            "bfloat16).",
        ),
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download a missing model without a confirmation.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="URI", show_default=False,
            help="Prove the episodes in this store, without the run folder: sqlite:PATH or mongodb://HOST/DATABASE.",
        ),
    ] = "",
    run: Annotated[
        str,
        typer.Option("--run", metavar="NAME", help="With --store: require a store of this run.", show_default=False),
    ] = "",
    exp_dir: RunRoot = RECORD_ROOT,
) -> int:  # fmt: skip
    """Derive recorded episodes again, token by token. Exit code 1 if a token or log-probability is wrong."""
    from ajet.cli.screen import show_logs
    from ajet.record.console import print_line
    from ajet.schema.errors import UserError

    if run and not store:
        raise UserError("--run needs --store.", where="command line")
    if not target and not store:
        expected = "RUN_OR_EPISODE, or --store URI"
        raise UserError("The run or episode to prove is missing.", where="command line", expected=expected)
    show_logs("ERROR" if as_json else "WARNING")
    options: dict[str, Any] = {"steps": step or (), "at_most": at_most, "ids_only": ids_only}
    options |= {"tolerance": tolerance, "fetch": fetch}
    if store:
        from ajet_proof.recorded.report import encode_store_report, print_store_report
        from ajet_proof.recorded.store import prove_store

        store_report = prove_store(store, run=run, episode=target, **options)
        if as_json:
            typer.echo(encode_store_report(store_report))
        else:
            print_store_report(store_report)
        return 0 if store_report.ok else 1

    from ajet_proof.recorded.prove import prove_record
    from ajet_proof.recorded.report import encode_report, print_report, save_report

    report = prove_record(target, exp_dir.absolute(), **options)
    if as_json:
        typer.echo(encode_report(report))
    else:
        print_report(report)
    saved_file = save_report(report)
    if not as_json:
        print_line(f"The result is saved for the viewer: {saved_file}.")
    return 0 if report.ok else 1
