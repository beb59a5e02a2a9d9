"""Parses the options of `ajet --conf FILE.yaml` and launches a run."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from typer.core import TyperCommand

from ajet.cli.options import RECORD_ROOT, BackboneChoice, Conf, ExpDir, Overrides, print_reading
from ajet.config.plugins import find_launch_flags
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError


class _LaunchContext(typer.Context):
    @property
    def command_path(self) -> str:
        """The program's name without `launch`, because users call the command without this word."""
        return self.parent.command_path if self.parent is not None else super().command_path


class LaunchCommand(TyperCommand):
    """The command `launch`, which usage errors call `ajet`, because users need not write the word `launch`."""

    context_class = _LaunchContext


_START, _CLUSTER, _OTHERS = "Start", "Ray and services", "Earlier runs"


def launch(
    conf: Conf = None,
    backbone: BackboneChoice = None,
    exp_dir: ExpDir = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check everything and print the plan, without starting a run.", rich_help_panel=_START
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start a new run; the folder of the earlier run is kept.", rich_help_panel=_START),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="auto|never|PATH", help="Checkpoint to resume from.", rich_help_panel=_START),
    ] = None,
    no_rehearsal: Annotated[
        bool,
        typer.Option("--no-rehearsal", help="Start without a trial update (local backbone).", rich_help_panel=_START),
    ] = False,
    debug: Annotated[
        str,
        typer.Option("--debug", metavar="TAG1|TAG2", help='Stop at the breakpoint bp("TAG1").', rich_help_panel=_START),
    ] = "",
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the traceback of every error.", rich_help_panel=_START)
    ] = False,
    from_store: Annotated[
        str,
        typer.Option(
            "--from-store",
            metavar="ADDRESS",
            help="Train on episodes of samplers (ajet sample) from this store: sqlite:PATH or mongodb://HOST/DATABASE.",
            show_default=False,
            rich_help_panel=_START,
        ),
    ] = "",
    skip_check_avail_gpu: Annotated[
        bool,
        typer.Option(
            "--skip-check-avail-gpu",
            help="Start although other processes use the GPUs (verl, trinity).",
            rich_help_panel=_CLUSTER,
        ),
    ] = False,
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix",
            metavar="TEXT",
            help="Prefix for the names of the services' log files.",
            hidden=True,
            rich_help_panel=_CLUSTER,
        ),
    ] = "",
    with_service: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME",
            help="Start this service of `ajet.services` too; short form: --with-NAME.",
            show_default=False,
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    kill: Annotated[
        str,
        typer.Option("--kill", metavar="NAMES", help='Stop the runs with these names, "a|b".', rich_help_panel=_OTHERS),
    ] = "",
    autokill: Annotated[
        bool, typer.Option("--autokill", help="Stop all recorded runs.", rich_help_panel=_OTHERS)
    ] = False,
    overrides: Overrides = None,
    **flags: bool,
) -> int:
    """Launch a run. `ajet --conf FILE` does the same as `ajet launch --conf FILE`."""
    if kill or autokill:
        from ajet.commands.stop import kill as end_runs

        code = end_runs(None if autokill else kill, (exp_dir or RECORD_ROOT).absolute())
        if conf is None:
            return code
    if conf is None:
        raise UserError(
            "The required option --conf is missing.",
            expected=format_command("--conf", "FILE.yaml"),
            do=f"to create a project with a YAML: `{format_command('init', 'DIR')}`",
        )

    print_reading(conf)
    from ajet.cli.options import parse_store_address
    from ajet.cli.screen import show_logs, warn
    from ajet.config import load_experiment
    from ajet.train.runner import LaunchOptions

    show_logs()
    settings = [*(overrides or ()), *(["ajet.trainer_common.mode=async"] if from_store else [])]
    experiment = load_experiment(conf, backbone=backbone, overrides=settings, exp_dir=exp_dir)
    if from_store and "trains" not in experiment.backbone.can:
        raise UserError(
            f"The backbone {experiment.backbone.name} trains nothing, so it cannot use the episodes of a store.",
            where="--from-store",
            do="add --backbone local, or another backbone that trains",
        )
    experiment.require_ready()
    launch_flags = find_launch_flags()
    set_flags = [name for name in launch_flags if flags.get(_spell_parameter(name))]
    for name in set_flags:
        if launch_flags[name].needs and launch_flags[name].needs not in experiment.backbone.can:
            warn(f"--with-{name} has no effect: the backbone {experiment.backbone.name} runs in this process")
    options = LaunchOptions(
        fresh=fresh,
        resume=resume,
        flags=tuple(set_flags),
        debug_tags=debug,
        services=tuple(with_service or ()),
        prefix=prefix,
        dry_run=dry_run,
        skip_check_avail_gpu=skip_check_avail_gpu,
        rehearsal=not no_rehearsal,
        from_store=parse_store_address(from_store, experiment) if from_store else None,
    )

    from ajet.commands.launch import launch as run

    return run(experiment, options)


_OWN = inspect.signature(launch, eval_str=True).parameters


def add_flags(*, shipped: bool) -> None:
    """Give the command `launch` a boolean option `--with-NAME` for each flag of a plug-in.

    Args:
        shipped: True for the plug-ins of ajet only, without a search for other distributions.
    """
    parameters = [parameter for parameter in _OWN.values() if parameter.kind is not parameter.VAR_KEYWORD]
    insert_index = next(index for index, parameter in enumerate(parameters) if parameter.name == "skip_check_avail_gpu")
    flag_parameters = [
        inspect.Parameter(
            _spell_parameter(name),
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=False,
            annotation=Annotated[bool, typer.Option(f"--with-{name}", help=flag.help, rich_help_panel=_CLUSTER)],
        )
        for name, flag in find_launch_flags(shipped=shipped).items()
    ]
    # typer reads the options of a command from its signature.
    launch.__signature__ = inspect.Signature([*parameters[:insert_index], *flag_parameters, *parameters[insert_index:]])  # type: ignore[attr-defined]


def _spell_parameter(flag: str) -> str:
    """Return the parameter name of `launch` for a plug-in's flag: `with_ray_flag` for `ray`."""
    return f"with_{flag.replace('-', '_')}_flag"
