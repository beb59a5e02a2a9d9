"""`ajet init DIR`: write a starter project.

Invariant: the files train unchanged, and no existing file is touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ajet.schema.commands import find_program, format_command
from ajet.schema.errors import UserError

TEMPLATES = Path(__file__).parent / "templates"
OWN_TASKS = ("app", "math", "tool")
"""Templates with their own tasks, in code or as a table. The other templates share `train.jsonl` and `test.jsonl`."""


class Template(StrEnum):
    """Names of the folders below `templates/`."""

    math = "math"
    tool = "tool"
    jsonl = "jsonl"
    function = "function"
    command = "command"
    langchain = "langchain"
    app = "app"
    serve = "serve"


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    template: Annotated[
        Template,
        typer.Option(
            "--template",
            metavar="NAME",
            help="math: one question, one answer; tool: an agent with a tool; jsonl: tasks in a file, a workflow "
            "and a judge; function: agent and reward as functions; command: an agent that is a program; "
            "langchain: LangChain's create_agent; app: an app with its own client and a CSV of questions and "
            "answers; serve: agents that ajet does not start.",
        ),
    ] = Template.math,
) -> None:
    """Create a small project: a commented YAML, the agent, and settings for VS Code and coding agents."""
    files = dict(_list_files(template.value, directory))
    existing = [directory / name for name in files if (directory / name).exists()]
    if existing:
        raise UserError(
            f"The file {existing[0]} exists already.", where=str(directory.absolute()), do="choose another folder"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(
            f"{directory} is not a folder.", where=str(directory.absolute()), do="choose another path"
        ) from None
    except OSError as error:
        raise _make_write_error(directory, error) from None
    for name, text in files.items():
        try:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(text.encode())
        except OSError as error:
            raise _make_write_error(directory / name, error) from None
        typer.echo(f"wrote {directory / name}")
    conf = directory / f"{template.value}.yaml"
    if template is Template.serve:
        typer.echo(f"\nRecord agents:   {format_command('serve', '--conf', conf)}")
        typer.echo(f"Train agents:    {format_command('serve', '--conf', conf, '--backbone', 'local')}")
        typer.echo(f"Start a client:  see {directory / 'client.py'}")
        return
    typer.echo(f"\nTry the agent:      {format_command('--conf', conf, '--backbone', 'debug')}")
    if template is Template.app:
        typer.echo(f"Write answers:      python {directory / 'make_demonstrations.py'}")
        typer.echo(f"Train on answers:   {format_command('sft', '--conf', directory / 'sft.yaml')}")
        typer.echo(f"Compare models:     {format_command('eval', conf, '--model', 'base', '--model', 'sft')}")
        typer.echo(f"Use the model:      {format_command('deploy', 'sft')}")
        return
    typer.echo(f"Train the agent:    {format_command('--conf', conf, '--backbone', 'local')}")


def _make_write_error(path: Path, error: OSError) -> UserError:
    """Return the error for a file or folder that cannot be written, with the system's reason."""
    return UserError(
        f"{path} cannot be written: {error.strerror}.",
        where=str(path.absolute()),
        do="choose a folder that this user may write to, on a disk with free space",
    )


def _list_files(template: str, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, content) of each file of a starter project, in the order in which they are written and printed."""
    template_files = [
        path for path in sorted((TEMPLATES / template).iterdir()) if path.suffix in (".py", ".yaml", ".csv")
    ]
    for path in template_files:
        yield path.name, path.read_bytes().decode()
    shared = TEMPLATES / "shared"
    if template not in OWN_TASKS:
        for name in ("train.jsonl", "test.jsonl"):
            yield name, (shared / name).read_text(encoding="utf-8")
    yaml = f"{template}.yaml"
    launch_settings = "launch-serve.json" if template == "serve" else "launch.json"
    yield ".vscode/launch.json", (shared / launch_settings).read_text(encoding="utf-8").replace("@YAML@", yaml)
    # Without the quotes, which the settings file has.
    python = json.dumps(_find_interpreter(directory))[1:-1]
    yield ".vscode/settings.json", (shared / "settings.json").read_text(encoding="utf-8").replace("@PYTHON@", python)
    agents_text = (shared / "AGENTS.md").read_text(encoding="utf-8")
    yield (
        "AGENTS.md",
        agents_text.replace("@YAML@", yaml).replace("@AJET@", _call_from_project(find_program(), directory)),
    )


def _find_interpreter(directory: Path) -> str:
    """Return the path of ajet's interpreter for the editor's settings, relative to a project that contains it."""
    import sys

    interpreter, folder = Path(sys.executable), directory.absolute()
    is_inside = interpreter.is_relative_to(folder)
    # VS Code's variable.
    return f"${{workspaceFolder}}/{interpreter.relative_to(folder)}" if is_inside else str(interpreter)


def _call_from_project(called: str, directory: Path) -> str:
    """Return a shell command that works from the project's folder: a relative path of the program becomes absolute."""
    program = Path(called.split()[0])
    if program.is_absolute() or "/" not in called:
        return called
    return called.replace(str(program), str(program.absolute()), 1)
