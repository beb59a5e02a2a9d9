"""Parses the options of `ajet sample` and starts the sampler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import Conf, Overrides
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

SAMPLER_BACKBONE = "local"
"""A sampler reads the keys of this backbone, whatever backbone the trainer uses."""
_PACE = "Pace"


def sample(
    conf: Conf = None,
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="ADDRESS", help="The store that ajet train --from-store uses.", show_default=False
        ),
    ] = "",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="URL",
            help="URL of a vLLM or SGLang server to sample from (rollout.vllm.base_url).",
            show_default=False,
        ),
    ] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of this sampler (host-process).")] = "",
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            min=1,
            help="Number of episodes at the same time (rollout.max_env_worker).",
            show_default=False,
            rich_help_panel=_PACE,
        ),
    ] = None,
    per_minute: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="N",
            min=0.001,
            help="Largest number of episodes begun per minute.",
            show_default=False,
            rich_help_panel=_PACE,
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Time for running episodes to end after Ctrl-C or SIGTERM; the others return to the store.",
            rich_help_panel=_PACE,
        ),
    ] = 60.0,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease",
            metavar="SECONDS",
            min=0.1,
            help="Seconds without a heartbeat after which other samplers take over (120).",
            show_default=False,
            rich_help_panel=_PACE,
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks", metavar="FILE", help="Local file of the training tasks (JSON Lines).", show_default=False
        ),
    ] = None,
    no_services: Annotated[
        bool, typer.Option("--no-services", help="Do not start the services of ajet.services.")
    ] = False,
    overrides: Overrides = None,
) -> int:
    """Run episodes for a trainer on another machine; any number of samplers may run."""
    from ajet.cli.options import parse_store_address, print_reading
    from ajet.cli.screen import show_logs
    from ajet.config import load_experiment
    from ajet.config.overrides import quote_value

    if conf is None or not store:
        missing = " and ".join(["--conf"] * (conf is None) + ["--store"] * (not store))
        raise UserError(
            f"The required option {missing} is missing.",
            expected=format_command("sample", "--conf", "FILE.yaml", "--store", "sqlite:PATH"),
        )
    print_reading(conf)
    show_logs()
    # Several processes work on one run only in asynchronous mode.
    settings = [*(overrides or ()), "ajet.trainer_common.mode=async"]
    settings += ["ajet.rollout.engine=vllm", f"ajet.rollout.vllm.base_url={quote_value(engine)}"] if engine else []
    settings += [f"ajet.rollout.max_env_worker={concurrency}"] if concurrency is not None else []
    experiment = load_experiment(conf, backbone=SAMPLER_BACKBONE, overrides=settings)
    if tasks is not None:
        settings.append(f"{_find_tasks_key(experiment)}={quote_value(str(tasks.absolute()))}")
        experiment = load_experiment(conf, backbone=SAMPLER_BACKBONE, overrides=settings)

    from ajet.commands.sampling.sample import SampleOptions
    from ajet.commands.sampling.sample import sample as run
    from ajet.store.shared import LEASE_SECONDS

    options = SampleOptions(
        parse_store_address(store, experiment),
        name=name,
        per_minute=per_minute,
        grace=grace,
        services=not no_services,
        lease_seconds=lease if lease is not None else LEASE_SECONDS,
    )
    return run(experiment, options)


def _find_tasks_key(experiment: Experiment) -> str:
    """Return the configuration key of the file with the training tasks.

    Raises:
        UserError: The YAML's task reader reads no such file.
    """
    from ajet.config.plugins import find_part
    from ajet.config.readiness import TRAINING_FILE

    kind = experiment.ajet.task_reader.type
    part = find_part("reader", kind)
    if part is None or part.first_key is None or not f".{part.first_key[0]}".endswith(TRAINING_FILE):
        raise UserError(f"The task reader {kind} reads no file of tasks.", where="--tasks", do="omit the option")
    return f"ajet.task_reader.{kind}.{part.first_key[0]}"
