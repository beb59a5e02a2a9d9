"""Entry point: `ajet …`, `python -m ajet …` and `python -m ajet.launcher …`.

Invariant: a launch needs no subcommand. A first argument with `-` (except help, version and shell completion) means
`launch`, a YAML file means `launch --conf`, no argument means help. A command is imported and built only when named,
because typer needs as long for the options as for the import. `ajet --help` prints the help lines from the plug-ins'
descriptions. tests/cli/test_launcher.py compares each line with the command's docstring.
"""

from __future__ import annotations

import atexit
import codecs
import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

import ajet
from ajet.cli.exit import USER, ExitGroup, show_user_error
from ajet.cli.launch import add_flags, launch
from ajet.config.plugin import load_code
from ajet.config.plugins import find_all_commands, find_commands, find_launch_flags
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError

LAUNCH, LAUNCH_CODE = "launch", "ajet.cli.launch:launch"
"""Not in the list of commands, because its options are the program's own."""


def build_typer_command(name: str) -> Any:
    """Return a command as built by typer."""
    entry = None if name == LAUNCH else find_all_commands()[name]
    command_code = load_code(LAUNCH_CODE if entry is None else entry.code)
    holder = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    if isinstance(command_code, typer.Typer):
        holder.add_typer(command_code, name=name)
    elif entry is None:
        from ajet.cli.launch import LaunchCommand

        holder.command(name, cls=LaunchCommand, hidden=True)(command_code)
    else:
        holder.command(name)(command_code)
    command = _unwrap_help(typer.main.get_group(holder).commands[name])
    if entry is not None:
        command.rich_help_panel = entry.panel
    return command


def _unwrap_help(command: Any) -> Any:
    """Return the command with each help paragraph on one line. The terminal then wraps the text."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help) if command.help else command.help
    for inner in getattr(command, "commands", {}).values():
        _unwrap_help(inner)
    return command


class CommandTable(dict[str, Any]):
    """Commands by name, built on first access."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys([LAUNCH, *find_commands()]))

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = build_typer_command(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command by name. An unknown name is searched for in other distributions' plug-ins."""
        if name not in self and name in find_all_commands():
            self[name] = None
        return self[name] if name in self else default  # noqa: SIM401 — a dict's own `get` would not build the command

    def items(self) -> Any:
        """Return the names and commands of all, built."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()


class RootGroup(ExitGroup):
    """The root group, with a `CommandTable`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = CommandTable()
        self._lists_commands = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of their plug-ins, without building."""
        return [*self.commands]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from their help lines, other distributions included."""
        unbuilt: dict[str, Any] = {name: None for name in find_all_commands() if name not in self.commands}
        self.commands.update(unbuilt)
        self._lists_commands = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists_commands = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a built command, or only the help line while help is written."""
        if self._lists_commands:
            if cmd_name == LAUNCH:
                return TyperCommand(cmd_name, hidden=True)
            entry = find_all_commands()[cmd_name]
            return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel)
        return super().get_command(ctx, cmd_name)


CONFIG_COMMANDS = ("validate", "show", "why")
"""Commands of `config` that also work without the word `config`."""
YAML_COMMANDS = ("config", "plan", "sft", "serve")
"""Commands that accept a YAML alone for `--conf`, as a launch does."""
TRAIN = "train"
_NOT_A_LAUNCH = ("--help", "-h", "--version", "--install-completion", "--show-completion")

app = typer.Typer(
    name="ajet",
    cls=RootGroup,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    subcommand_metavar="[KEY=VALUE]...  |  COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"ajet {ajet.__version__}")
        raise typer.Exit


def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    **_: Any,
) -> None:
    """Train the model inside a working LLM agent by reinforcement learning.

    [bold]ajet --conf FILE.yaml[/] runs the agent without training (debug); [bold]--backbone local[/] trains.
    """


def _take_options(*, shipped: bool) -> None:
    """Give the root the options of a launch for help and completion. `main` passes parsing to the command."""
    add_flags(shipped=shipped)
    parameters = inspect.signature(launch, eval_str=True).parameters
    options = [each for name, each in parameters.items() if name != "overrides"]
    options.append(_VERSION)
    root.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    root.__annotations__ = {option.name: option.annotation for option in options}


_VERSION = inspect.signature(root, eval_str=True).parameters["version"]
_take_options(shipped=True)
app.callback()(root)


FLAG_ALIASES = {"--db": "--debug", "--bp": "--debug", "--breakpoint": "--debug"}
UNNEEDED_FLAGS = {
    "--reboot": "is not needed: the same command resumes a run that ended",
}
MISSING_FLAGS = {
    "--swarm-server": "`ajet serve --conf FILE.yaml` serves external agents while it trains",
    "--swarm-overwatch": "`ajet view` shows a run, also one that serves",
}


def translate_flags(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a launch's arguments in ajet's words, and a sentence for each argument without effect.

    Flags of AgentJet and AgentRL with another name in ajet, or without need in ajet, are accepted or answered with the
    equivalent. Raises UserError.
    """
    from ajet.config.schema.agentrl import advice  # takes 30 ms, without use for `ajet --help`

    arguments: list[str] = []
    notes: list[str] = []
    for argument, following in zip(given, [*given[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if argument == "=" and arguments:
            setting = f"{arguments[-1]}={following or 'VALUE'}"
            raise UserError("An override has blanks around its `=`.", where="command line", do=f"write {setting}")
        if name in MISSING_FLAGS:
            raise UserError(f"There is no command {name}.", where="command line", do=MISSING_FLAGS[name])
        if name.startswith("--") and name not in FLAG_ALIASES and (brought := advice(name[2:])):
            raise UserError(
                f"There is no option {name}: write settings as key=value, or in the YAML.",
                where="command line",
                do=brought,
            )
        if name.startswith("--") and "." in name:
            example = following if following and "=" not in following and not following.startswith("-") else "VALUE"
            setting = f"{name[2:]}={value if equals else example}"
            raise UserError(
                f"There is no option {name}: write settings without dashes.",
                where="command line",
                do=f"write {setting}",
            )
        if name in UNNEEDED_FLAGS:
            notes.append(f"{name} {UNNEEDED_FLAGS[name]}")
        elif name.startswith("--with-") and name.removeprefix("--with-") not in find_launch_flags():
            arguments.append(f"--with={name.removeprefix('--with-')}")
        else:
            arguments.append(f"{FLAG_ALIASES[name]}{equals}{value}" if name in FLAG_ALIASES else argument)
    return arguments, notes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    _prepare_environment()
    words = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = "--traceback" in words
    words = [argument for argument in words if argument != "--traceback"]
    if not words:
        words = ["--help"]
    elif words[0].startswith("-") and not any(argument in _NOT_A_LAUNCH for argument in words):
        words = ["launch", *words]
    elif words[0].endswith((".yaml", ".yml")):
        words = ["launch", "--conf", *words]
    elif words[0] in CONFIG_COMMANDS:
        words = ["config", *words]
    elif words[0] == TRAIN:
        words = ["launch", *(["--conf"] if len(words) > 1 and words[1].endswith((".yaml", ".yml")) else []), *words[1:]]
    if words[0].endswith(".py"):
        show_user_error(_make_python_file_error(words[0]))
        sys.exit(USER)
    if words[0] in YAML_COMMANDS:
        position = 1 + (words[0] == "config")
        if len(words) > position and words[position].endswith((".yaml", ".yml")):
            words.insert(position, "--conf")
    if words[0] == "launch":
        words = _translate_arguments(words)
    if words[0] in ("launch", "--help", "-h"):
        _take_options(shipped=False)
    try:
        app(args=words, prog_name="ajet", obj={"traceback": show_traceback, "record": _find_record(words)})
    finally:
        atexit.unregister(_ignore_interrupts)
        atexit.register(_ignore_interrupts)  # registered last and therefore called first


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C after the last output: library and child shutdown takes seconds, and an interrupt would print a
    traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _prepare_environment() -> None:
    """Replace unprintable characters by "?", drop terminal sizes of 0, and bypass proxies for this machine.

    Exits if the working directory is gone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")
    for size in ("COLUMNS", "LINES"):
        if os.environ.get(size) == "0":
            del os.environ[size]
    if any(name.lower().endswith("_proxy") for name in os.environ):
        from ajet.client.proxies import build_bypass  # imports httpx, which other commands do not need

        os.environ.update(build_bypass(os.environ))
    try:
        os.getcwd()
    except FileNotFoundError:
        problem = "The working directory does not exist any more: it was moved or deleted."
        show_user_error(UserError(problem, where=os.environ.get("PWD", ""), do="change to an existing folder (cd)"))
        sys.exit(USER)


def _translate_arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments in ajet's words, and print a note for each argument without effect."""
    try:
        arguments, notes = translate_flags(given)
    except UserError as error:
        show_user_error(error)
        sys.exit(USER)
    for sentence in notes:
        typer.echo(sentence, err=True)
    return arguments


def _make_python_file_error(file: str) -> UserError:
    return UserError(
        f"{file} is a Python file, but ajet starts a run from a YAML that refers to it.",
        where="command line",
        expected=format_command("--conf", "FILE.yaml"),
        do=f"write `rollout: {{user_workflow: {file}->NAME}}` into a YAML, or create one with "
        f"`{format_command('init', 'DIR')}`",
    )


def _find_record(arguments: Sequence[str]) -> Path | None:
    """Return the folder of --exp-dir, or None without the option."""
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, inline_value = argument.partition("=")
        if name == "--exp-dir" and (folder := inline_value if equals else value):
            return Path(folder).expanduser()
    return None


if __name__ == "__main__":
    main()
