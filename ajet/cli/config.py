"""`ajet config show|why|validate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import BackboneChoice, Conf, Overrides

if TYPE_CHECKING:
    from ajet.config import Experiment

app = typer.Typer(help="Look at a composed config.", no_args_is_help=True)


@app.command("show")
def show(conf: Conf = None, backbone: BackboneChoice = None, overrides: Overrides = None) -> None:
    """Print the whole config, resolved; without --conf the defaults. With verl also what verl gets, as a second one."""
    from ajet.cli.opened import opened

    experiment = opened(conf, backbone, overrides)
    text = experiment.resolved_yaml()
    if experiment.ajet.backbone == "verl":
        text += _for_verl(experiment)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        sys.stdout.write(text)


@app.command("why")
def why(
    key: Annotated[str, typer.Argument(help="e.g. rollout.temperature, or a section.")],
    conf: Conf = None,
    backbone: BackboneChoice = None,
    overrides: Overrides = None,
) -> None:
    """Print each layer's value of a key, and the one that wins."""
    from ajet.cli.opened import opened
    from ajet.config.why import explain
    from ajet.record.console import console

    for row in explain(opened(conf, backbone, overrides), key):
        console.print(row, soft_wrap=True)


@app.command("validate")
def validate(conf: Conf = None, backbone: BackboneChoice = None, overrides: Overrides = None) -> None:
    """Check a YAML: keys, types, and whether what it names is there. Keys that were set in vain are named, and
    settings that cannot do what a training is for."""
    from ajet.cli.opened import opened
    from ajet.config.idle import idle_lines
    from ajet.run.assembly import algorithm_of
    from ajet.run.presence import not_looked_at, require_present
    from ajet.run.review import review_lines, review_settings
    from ajet.schema.commands import command
    from ajet.schema.errors import UserError

    if conf is None:
        raise UserError("There is no --conf.", expected=command("config", "validate", "--conf", "FILE.yaml"))
    experiment = opened(conf, backbone, overrides)
    experiment.require_ready()
    algorithm = algorithm_of(experiment)
    typer.echo(not_looked_at(require_present(experiment), conf))
    if idle := idle_lines(experiment.idle(), f"on the backbone {experiment.ajet.backbone}"):
        typer.echo(idle)
    if review := review_lines(review_settings(experiment.ajet, algorithm), experiment):
        typer.echo(review)


def _for_verl(experiment: Experiment) -> str:
    from ajet.backbone.verl import verl_settings
    from ajet.config.document import dump_yaml
    from ajet.config.verl import VERL_VERSION, shown

    return f"---\n# What verl {VERL_VERSION} gets from it.\n" + dump_yaml(shown(experiment, verl_settings(experiment)))
