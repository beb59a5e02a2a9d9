"""The commands that plug-ins bring, built one at a time.

Invariant: a command is imported and built only when it is named, because typer needs as long for its options as the
import takes. `ajet --help` prints the help lines of the plug-ins' descriptions; tests/unit/test_cli.py compares each
with its command's docstring.
"""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

from ajet.cli.exit import Boundary
from ajet.config.plugin import load_code
from ajet.config.plugins import find_all_commands, find_commands

LAUNCH, LAUNCH_CODE = "launch", "ajet.cli.launch:launch"
"""Listed nowhere: its options are the program's own."""


def built(name: str) -> Any:
    """The command as typer makes it."""
    found = load_code(LAUNCH_CODE if name == LAUNCH else find_all_commands()[name].code)
    holder = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    elif name == LAUNCH:
        from ajet.cli.launch import Launch

        holder.command(name, cls=Launch, hidden=True)(found)
    else:
        holder.command(name)(found)
    return _unwrapped(typer.main.get_group(holder).commands[name])


def _unwrapped(command: Any) -> Any:
    """The command with each paragraph of its help on one line, as long as it may be: the terminal breaks it, not the
    source."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help) if command.help else command.help
    for inner in getattr(command, "commands", {}).values():
        _unwrapped(inner)
    return command


class Commands(dict[str, Any]):
    """Name to command; each is built when it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys([LAUNCH, *find_commands()]))

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = built(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command by its name; an unknown name is searched for in other distributions' plug-ins."""
        if name not in self and name in find_all_commands():
            self[name] = None
        return self[name] if name in self else default  # noqa: SIM401 — a dict's own get builds nothing

    def items(self) -> Any:
        """The names and commands of all, built."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        """All commands, built."""
        return {name: self[name] for name in self}.values()


class Root(Boundary):
    """The root group, with `Commands`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()
        self._lists = False

    def list_commands(self, ctx: Any) -> list[str]:
        """The names in the order of their plug-ins; nothing is built."""
        return [*self.commands]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from their lines alone, those of other distributions included."""
        unbuilt: dict[str, Any] = {name: None for name in find_all_commands() if name not in self.commands}
        self.commands.update(unbuilt)
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Built, or, while help is written, its line only."""
        if self._lists:
            line = "" if cmd_name == LAUNCH else find_all_commands()[cmd_name].help
            return TyperCommand(cmd_name, help=line, hidden=cmd_name == LAUNCH)
        return super().get_command(ctx, cmd_name)
