"""Parses the options of `ajet plan` and prints the plan."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import BackboneChoice, Conf, ExpDir, Overrides, print_reading
from ajet.commands.gpu_estimate import GpuName


def plan(
    conf: Conf = None,
    backbone: BackboneChoice = None,
    gpu: Annotated[GpuName, typer.Option(help="GPU for which memory and time on verl are estimated.")] = "H100",
    exp_dir: ExpDir = None,
    overrides: Overrides = None,
) -> int:
    """Print a run's plan and costs without starting the run.

    Shows tasks, a first prompt, memory, disk, seconds per step, and settings that cannot work. If the YAML's backbone
    trains nothing, the plan is for the backbone local. A model's config.json, or a size in its name, is enough.
    """
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.schema.commands import format_command
    from ajet.schema.errors import UserError

    if conf is None:
        raise UserError(
            "The required option --conf is missing.", expected=format_command("plan", "--conf", "FILE.yaml")
        )
    print_reading(conf)
    show_logs()
    experiment = load_experiment(conf, backbone=backbone, overrides=overrides or (), exp_dir=exp_dir)
    if backbone is None and "trains" not in experiment.backbone.can:
        experiment = load_experiment(conf, backbone="local", overrides=overrides or (), exp_dir=exp_dir)

    from ajet.commands.plan import show_plan
    from ajet.commands.runner import format_start_command
    from ajet.record.console import print_line

    outcome_text = show_plan(experiment, gpu=gpu)
    start = format_start_command(experiment, experiment.ajet.backbone)
    print_line(f"{outcome_text}. To start the run: {start}")
    return 0
