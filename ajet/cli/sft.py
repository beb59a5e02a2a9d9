"""Parses the options of `ajet sft` and starts the training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import BackboneChoice, Conf, ExpDir, Overrides, print_reading

_DATA_PANEL = "Training data"


def sft(
    conf: Conf = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE.jsonl",
            help="File of rows with messages (sft.train_files).",
            show_default=False,
            rich_help_panel=_DATA_PANEL,
        ),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from-run",
            metavar="RUN",
            help="Learn from the best episodes of this run (sft.from_run).",
            show_default=False,
            rich_help_panel=_DATA_PANEL,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="sft|dpo",
            help="sft, or dpo: learn from pairs to prefer the chosen reply (sft.objective).",
            show_default=False,
            rich_help_panel=_DATA_PANEL,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Model to train (model.path).", show_default=False),
    ] = None,
    backbone: BackboneChoice = None,
    exp_dir: ExpDir = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run; the folder of the earlier run is kept.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="auto|never|PATH", help="Checkpoint to resume from.", show_default=False),
    ] = None,
    overrides: Overrides = None,
) -> int:
    """Learn from given replies: rows of messages, pairs of them, or a run's best episodes.

    Writes a record and checkpoints as a training run does: chat, export, eval and prove work on them, and a run of
    reinforcement learning can start from one (model.path)."""
    print_reading(conf)
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.config.experiment import load_defaults
    from ajet.config.overrides import quote_value
    from ajet.train.runner import LaunchOptions

    show_logs()
    settings = list(overrides or ())
    if data:
        settings.append(f"ajet.sft.train_files=[{','.join(quote_value(str(file.absolute())) for file in data)}]")
    settings += [f"ajet.sft.from_run={quote_value(str(from_run))}"] if from_run is not None else []
    settings += [f"ajet.model.path={quote_value(str(model))}"] if model is not None else []
    settings += [f"ajet.sft.objective={objective}"] if objective is not None else []

    def load(extra_settings: list[str], backbone_name: str | None):  # type: ignore[no-untyped-def]
        if conf is None:
            return load_defaults(
                backbone=backbone_name, overrides=[*settings, *extra_settings], name="sft", exp_dir=exp_dir
            )
        return load_experiment(conf, backbone=backbone_name, overrides=[*settings, *extra_settings], exp_dir=exp_dir)

    experiment = load([], backbone)
    # What the YAML leaves open: `ajet sft` sets the objective, and trains on the backbone `local`.
    extra_settings = [] if experiment.ajet.sft.objective is not None else ["ajet.sft.objective=sft"]
    backbone_name = backbone or (None if "trains" in experiment.backbone.can else "local")
    if extra_settings or backbone_name != backbone:
        experiment = load(extra_settings, backbone_name)

    from ajet.commands.launch import launch as run

    return run(experiment, LaunchOptions(fresh=fresh, resume=resume))
