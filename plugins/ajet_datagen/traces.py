"""Command-line options of `ajet traces`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Conf, Overrides


def traces(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder.", show_default=False)],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="PATH", show_default=False,
            help="Spans, or a folder of `ajet observe` (task_reader.tracing.sources); may be repeated.",
        ),
    ] = None,
    conf: Conf = None,
    overrides: Overrides = None,
) -> int:  # fmt: skip
    """Make tasks, training rows and preference pairs from traces of a deployed agent."""
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.config.experiment import load_defaults
    from ajet_datagen.config import ReaderKeys
    from ajet_datagen.tracing import TracingReader

    show_logs()
    settings = ["ajet.task_reader.type=tracing", *(overrides or ())]
    experiment = load_experiment(conf, overrides=settings) if conf else load_defaults(overrides=settings, name="traces")
    if source:
        ReaderKeys.of(experiment.ajet).tracing.sources = [str(Path(path).absolute()) for path in source]
    counts = TracingReader(experiment).write(out)
    for name, count in counts.items():
        typer.echo(f"{count:6}  {out / name}")
    return 0
