"""Parses the options of `ajet config show|why|validate` and prints the results."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ajet.cli.options import BackboneChoice, Conf, Overrides

app = typer.Typer(help="Inspect a configuration.", no_args_is_help=True)


@app.command("show")
def show(conf: Conf = None, backbone: BackboneChoice = None, overrides: Overrides = None) -> None:
    """Print the complete resolved configuration; without --conf the defaults. With verl, a second document shows what
    verl gets."""
    from ajet.cli.options import open_experiment
    from ajet.commands.runner import load_runner

    experiment = open_experiment(conf, backbone, overrides)
    text = experiment.dump_resolved()
    text += load_runner(experiment.backbone).shown(experiment)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        sys.stdout.write(text)


@app.command("why")
def why(
    key: Annotated[str, typer.Argument(help="A key, e.g. rollout.temperature, or a section.")],
    conf: Conf = None,
    backbone: BackboneChoice = None,
    overrides: Overrides = None,
) -> None:
    """Print each layer's value of a key, and the one that wins."""
    from ajet.cli.options import open_experiment
    from ajet.config.why import explain_key
    from ajet.record.console import console

    for row in explain_key(open_experiment(conf, backbone, overrides), key):
        console.print(row, soft_wrap=True)


@app.command("validate")
def validate(conf: Conf = None, backbone: BackboneChoice = None, overrides: Overrides = None) -> None:
    """Check a YAML: keys, types, and whether the files and code that it names exist. Print the keys without effect,
    and settings with which a training cannot learn."""
    from ajet.cli.options import open_experiment
    from ajet.commands.launch_checks import refuse_untrainable
    from ajet.commands.plan import require_present
    from ajet.commands.runner import apply_sections, load_algorithm, load_runner
    from ajet.config.idle import format_idle_keys
    from ajet.record.console import print_line
    from ajet.schema.commands import format_command
    from ajet.schema.errors import UserError
    from ajet.train.remarks import format_remarks, review_settings, review_tasks

    if conf is None:
        raise UserError(
            "The required option --conf is missing.",
            expected=format_command("config", "validate", "--conf", "FILE.yaml"),
        )
    experiment, overridden_text = apply_sections(open_experiment(conf, backbone, overrides))
    # No run starts now; a later start may name a store that samplers fill.
    experiment.require_ready(previewing=True)
    refuse_untrainable(experiment)
    if "trains" in experiment.backbone.can:
        load_runner(experiment.backbone).check(experiment, looking=True)
    algorithm = load_algorithm(experiment)
    idle_keys_text = format_idle_keys(experiment.list_idle_keys(), f"on the backbone {experiment.ajet.backbone}")
    defaults_text = load_runner(experiment.backbone).describe_replaced_defaults(experiment)
    unchecked, tasks = require_present(experiment)
    remarks = [*review_settings(experiment.ajet, algorithm)]
    if tasks is not None and "train" in tasks and experiment.ajet.sft.objective is None:
        remarks += review_tasks(experiment, train=tasks["train"], validates=bool(tasks.get("validation")))
    *all_but_last, last_unchecked = unchecked
    unchecked_list = f"{', '.join(all_but_last)} and {last_unchecked}" if all_but_last else last_unchecked
    valid_text = f"{conf} is valid. Not checked: {unchecked_list}; --dry-run checks them."
    for text in (valid_text, overridden_text, defaults_text, idle_keys_text, format_remarks(remarks, experiment)):
        if text:
            print_line(text)
