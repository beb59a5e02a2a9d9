"""Commands with their arguments, options and defaults, and exit codes, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from ajet.cli.exit import EXIT_CODES
from ajet.cli.launcher import FLAG_ALIASES, MISSING_FLAGS, UNNEEDED_FLAGS
from ajet.config.schema.base import describe_type


def list_commands(root: Path) -> Iterator[str]:
    """Yield a line for each command and each of its parameters, hidden ones included."""
    from ajet.cli.launcher import CONFIG_COMMANDS, TRAIN, YAML_COMMANDS, app

    yield f"ajet {TRAIN}: another name of ajet launch"
    yield from (f"ajet {name}: another name of ajet config {name}" for name in CONFIG_COMMANDS)
    yield from (
        f"ajet {path}FILE.yaml: the same as --conf FILE.yaml" for path in ("", *(f"{name} " for name in YAML_COMMANDS))
    )
    yield from (f"python -m {module}" for module in ("ajet", "ajet.launcher", "ajet.cli.launcher"))
    group: Any = typer.main.get_command(app)
    for parameter in group.params:
        yield f"ajet {_describe_parameter(parameter)}"
    for name, command in group.commands.items():
        yield from _list_command(f"ajet {name}", command)
    for other, ours in FLAG_ALIASES.items():
        yield f"ajet launch {other}: another name of {ours}"
    for other in UNNEEDED_FLAGS:
        yield f"ajet launch {other}: accepted without effect"
    for other in MISSING_FLAGS:
        yield f"ajet launch {other}: refused with advice"


def _list_command(path: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    yield path if inner is None else f"{path}: group"
    for parameter in command.params:
        if "--help" not in parameter.opts:
            yield f"{path} {_describe_parameter(parameter)}"
    for name, each in (inner or {}).items():
        yield from _list_command(f"{path} {name}", each)


def _describe_parameter(parameter: Any) -> str:
    """Return, as `--port N: integer, min 0, max 65535 = null`, how a parameter is written and what it defaults to."""
    is_flag = getattr(parameter, "is_flag", False)
    names = [] if parameter.param_type_name == "argument" else [*parameter.opts, *parameter.secondary_opts]
    written = [" / ".join(names)] if names else []
    if not is_flag:
        written.append(str(parameter.metavar or parameter.name.upper()))
    notes = ["flag" if is_flag else _name_type(parameter.type_descriptor.annotation)]
    notes += [f"{bound} {value}" for bound in ("min", "max") if (value := getattr(parameter, bound)) is not None]
    notes += [note for note in ("required", "multiple", "hidden") if getattr(parameter, note, False)]
    notes += ["any number"] * (parameter.nargs == -1) + [f"from {parameter.envvar}"] * bool(parameter.envvar)
    default = "" if parameter.required else f" = {_show_default(parameter.default)}"
    return f"{' '.join(written)}: {', '.join(notes)}{default}"


def _name_type(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(str(member.value) for member in annotation)
    return describe_type(annotation).replace("Path", "path")


def _show_default(default: Any) -> str:
    """Return a default as YAML has it. `computed`: a function makes it when the command runs."""
    if callable(default):
        return "computed"
    value = default.value if isinstance(default, Enum) else default
    return str(value) if isinstance(value, Path) else json.dumps(value)


def list_exit_codes(root: Path) -> Iterator[str]:
    """Yield each exit code with what it means."""
    yield from (f"{code}: {meaning}" for code, meaning in EXIT_CODES)
