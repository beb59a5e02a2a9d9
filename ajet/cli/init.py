"""`ajet init DIR`: a project to begin with.

Invariant: the files train as they are, and no file that is there already is touched.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ajet.schema.commands import command
from ajet.schema.errors import UserError


class Template(str, Enum):
    """Folders below `templates/`."""

    math = "math"
    tool = "tool"


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")],
    template: Annotated[
        Template,
        typer.Option(
            "--template", metavar="math|tool", help="math: one question, one answer; tool: an agent with a tool."
        ),
    ] = Template.math,
) -> None:
    """Write a small project: a commented YAML and workflow.py."""
    source = Path(__file__).parent / "templates" / template.value
    files = [path for path in sorted(source.iterdir()) if path.suffix in (".py", ".yaml")]
    taken = [directory / path.name for path in files if (directory / path.name).exists()]
    if taken:
        raise UserError(f"{taken[0]} exists already.", where=str(directory.absolute()), do="name another folder")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{directory} is not a folder.", where=str(directory.absolute()), do="name another") from None
    for path in files:
        (directory / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        typer.echo(f"wrote {directory / path.name}")
    conf = directory / f"{template.value}.yaml"
    typer.echo(f"\nLook at it:  {command('--conf', conf, '--backbone', 'debug')}")
    typer.echo(f"Train it:    {command('--conf', conf, '--backbone', 'local')}")
