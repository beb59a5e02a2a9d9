"""Options shared by several commands, and the experiment named by the options."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.config.plugins import find_parts

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.store import Address


RECORD_ROOT = Path("launcher_record")


class EngineName(StrEnum):
    """The engines for sampling a checkpoint's replies."""

    transformers = "transformers"
    vllm = "vllm"


Conf = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        metavar="FILE.yaml",
        help="The YAML of the experiment.",
        show_default=False,
        rich_help_panel="Experiment",
    ),
]
BackboneChoice = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        help="Overrides ajet.backbone; also the name of a backbone that an installed package adds.",
        show_default=False,
        rich_help_panel="Experiment",
        metavar="|".join(find_parts("backbone")),
        autocompletion=lambda: [*find_parts("backbone")],
    ),
]
ExpDir = Annotated[
    Path | None,
    typer.Option(
        "--exp-dir", metavar="DIR", help="Folder that contains the runs (launcher_record).", show_default=False,
        rich_help_panel="Experiment",
    ),
]  # fmt: skip
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides of the YAML, e.g. rollout.num_repeat=8.", show_default=False),
]
ADDRESS_PANEL = "Where"
"""Title of the help panel with the options for addresses."""
Host = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).", show_default=False,
        rich_help_panel=ADDRESS_PANEL,
    ),
]  # fmt: skip
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="N",
        help="Port to listen on (default: a free one).",
        show_default=False,
        rich_help_panel=ADDRESS_PANEL,
        min=0,
        max=65535,
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run in --exp-dir, or its folder.")]
RunRoot = Annotated[Path, typer.Option("--exp-dir", metavar="DIR", help="Folder that contains the runs.")]


def print_reading(conf: Path | None, *, err: bool = False) -> None:
    """Print that the YAML is being read, before imports of several seconds; nothing without a YAML.

    Args:
        err: Print to standard error, because standard output is for JSON.
    """
    if conf is not None:
        typer.echo(f"Reading {conf} …", err=err)


def parse_store_address(text: str, experiment: Experiment) -> Address:
    """Return the store's address from the command line, where a path is relative to the working directory.

    Raises:
        ConfigError: The address is invalid.
    """
    from ajet.store import Address

    return Address.of(text, run=experiment.name)


def open_experiment(conf: Path | None, backbone: str | None, overrides: Sequence[str] | None) -> Experiment:
    """Return the experiment of the YAML `conf`, or of the defaults if it is None, with the overrides."""
    from ajet.config import load_experiment
    from ajet.config.experiment import load_defaults

    if conf is None:
        return load_defaults(backbone=backbone, overrides=overrides or ())
    return load_experiment(conf, backbone=backbone, overrides=overrides or ())
