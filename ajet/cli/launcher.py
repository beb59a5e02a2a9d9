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
    """Import a command's code and return it as a command of click, with the options built by typer.

    Args:
        name: `launch`, or the name of a command of a plug-in.
    """
    entry = None if name == LAUNCH else find_all_commands()[name]
    command_code = load_code(LAUNCH_CODE if entry is None else entry.code)
    typer_app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    if isinstance(command_code, typer.Typer):
        typer_app.add_typer(command_code, name=name)
    elif entry is None:
        from ajet.cli.launch import LaunchCommand

        typer_app.command(name, cls=LaunchCommand, hidden=True)(command_code)
    else:
        typer_app.command(name)(command_code)
    command = _unwrap_help(typer.main.get_group(typer_app).commands[name])
    if entry is not None:
        command.rich_help_panel = entry.panel
    return command


def _unwrap_help(command: Any) -> Any:
    """Join the lines of each paragraph of a command's help, so that the terminal wraps them, and return the command."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help) if command.help else command.help
    for subcommand in getattr(command, "commands", {}).values():
        _unwrap_help(subcommand)
    return command


class CommandTable(dict[str, Any]):
    """The commands by name, each imported and built when it is first read."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys([LAUNCH, *find_commands()]))

    def __getitem__(self, name: str) -> Any:
        """Return a command, built at the first access."""
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = build_typer_command(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command by name, or `default`. Searches the plug-ins of other distributions for an unknown name."""
        if name not in self and name in find_all_commands():
            self[name] = None
        return self[name] if name in self else default  # noqa: SIM401 — a dict's own `get` would not build the command

    def items(self) -> Any:
        """Build all commands, and return them with their names."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()


class RootGroup(ExitGroup):
    """The root group of the command line, which builds a command only when it runs and lists commands by help lines."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = CommandTable()
        self._lists_commands = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names in the order of their plug-ins, without building the commands."""
        return [*self.commands]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the program's help, with the commands of all installed distributions, without building any command."""
        unbuilt: dict[str, Any] = {name: None for name in find_all_commands() if name not in self.commands}
        self.commands.update(unbuilt)
        self._lists_commands = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists_commands = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, built, or a stand-in with only its help line while `format_help` writes the list."""
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
    """Print ajet's version and exit, if the option --version was given."""
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
    """Give the root command the options of `launch`, so that help and shell completion show them.

    `main` inserts the word `launch`, so that the options are parsed by that command.

    Args:
        shipped: True for flags of ajet's own plug-ins only, without a search for other distributions.
    """
    add_flags(shipped=shipped)
    parameters = inspect.signature(launch, eval_str=True).parameters
    options = [parameter for name, parameter in parameters.items() if name != "overrides"]
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
    """Translate the launch flags of AgentJet and AgentRL into ajet's.

    Returns:
        The arguments for `launch`, and a sentence for each flag that is not needed.

    Raises:
        UserError: A flag has no equivalent option; the message says what to write instead.
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
        if name.startswith("--") and name not in FLAG_ALIASES and (replacement := advice(name[2:])):
            raise UserError(
                f"There is no option {name}: write settings as key=value, or in the YAML.",
                where="command line",
                do=replacement,
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
    """Run the command line and exit with the code of its result.

    The word `launch` is inserted if the arguments begin with an option or a YAML, `config` before its subcommands, and
    `--conf` before a YAML without an option.
    """
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
        # `config` has a subcommand before the YAML.
        position = 1 + (words[0] == "config")
        if len(words) > position and words[position].endswith((".yaml", ".yml")):
            words.insert(position, "--conf")
    if words[0] == "launch":
        words = _translate_arguments(words)
    if words[0] in ("launch", "--help", "-h"):
        # A launch and the help also know the flags of other distributions' plug-ins.
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
    """Make output and network of this process usable, or exit if its working directory no longer exists.

    Characters that the terminal cannot print become "?", and requests to this machine bypass proxies.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")
    for size_variable in ("COLUMNS", "LINES"):
        if os.environ.get(size_variable) == "0":  # leaves no columns to print in
            del os.environ[size_variable]
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
    """Return the launch arguments in ajet's spelling, and print a note for each flag that is not needed.

    Exits with the error's screen for a flag without an equivalent.
    """
    try:
        arguments, notes = translate_flags(given)
    except UserError as error:
        show_user_error(error)
        sys.exit(USER)
    for sentence in notes:
        typer.echo(sentence, err=True)
    return arguments


def _make_python_file_error(file: str) -> UserError:
    """Return the error for `ajet FILE.py`: runs start from a YAML that names the Python file."""
    return UserError(
        f"{file} is a Python file, but ajet starts a run from a YAML that refers to it.",
        where="command line",
        expected=format_command("--conf", "FILE.yaml"),
        do=f"write `rollout: {{user_workflow: {file}->NAME}}` into a YAML, or create one with "
        f"`{format_command('init', 'DIR')}`",
    )


def _find_record(arguments: Sequence[str]) -> Path | None:
    """Return the folder in the arguments' `--exp-dir DIR` or `--exp-dir=DIR`, or None without the option.

    Read before parsing, because a crash at any later point is logged there.
    """
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, inline_value = argument.partition("=")
        if name == "--exp-dir" and (folder := inline_value if equals else value):
            return Path(folder).expanduser()
    return None


if __name__ == "__main__":
    main()
