"""The commands, by name: what `ajet --help` lists without them, and how each is built when it is named.

Invariant: making a command's options takes typer as long as importing its module, so neither is done for a command
that nobody named; the list of `--help` stands here, and tests/unit/test_cli.py holds each line to the command's own.
Who asks for all (completion, the generated pages) gets all, in this order.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from ajet.cli.exit import Boundary


class Entry(NamedTuple):
    """The place of a command, and its line in the list."""

    place: str
    """Module below ajet.cli, and the function or the group's app in it."""
    help: str
    """Its docstring's first paragraph."""


LAUNCH = "launch"
"""Listed nowhere: its options are the program's own."""
LISTED = {
    LAUNCH: Entry("launch.launch", ""),
    "init": Entry(
        "init.init",
        "Write a small project: a commented YAML, the agent, and what VS Code and coding agents need to know.",
    ),
    "plan": Entry("plan.plan", "Print what a run would do and take, without one."),
    "serve": Entry(
        "serve.serve", "Give agents outside episodes over HTTP; with --backbone local, train on them."
    ),
    "observe": Entry("observe.observe", "Record what a deployed agent and its model say, and what people think of it."),
    "traces": Entry("traces.traces", "Make tasks, rows to learn and pairs of what a deployed agent said."),
    "sample": Entry("sample.sample", "Play episodes for a trainer elsewhere; start as many as there is room for."),
    "sft": Entry(
        "sft.sft", "Learn from given replies: rows of messages, pairs of them, or a run's best episodes."
    ),
    "status": Entry(
        "status.status", "What a run does now: phase, depths, rates, which side waits, how stale."
    ),
    "stop": Entry("stop.stop", "End a run as Ctrl-C would: its checkpoint is saved."),
    "chat": Entry("chat.chat", "Talk to the model that a run has tuned."),
    "eval": Entry(
        "eval.evaluate",
        "Play held-out tasks with one model or several, and compare them. Given again, it plays what is missing.",
    ),
    "view": Entry("view.view", "Look at runs in a browser: curves, episodes, tokens."),
    "runs": Entry("runs.runs", "List the runs: state, step, reward, age."),
    "episodes": Entry("runs.episodes", "Print the conversations of a run's worst episodes."),
    "prove": Entry(
        "prove.prove",
        "Derive recorded episodes a second time, token by token. Exit code 1 on one wrong token or distribution.",
    ),
    "audit": Entry(
        "audit.audit", "Hold a run to what it committed; follow an update back, an episode forward."
    ),
    "rejudge": Entry(
        "rejudge.rejudge",
        "Judge recorded episodes again, without model or environment. Writes tables; the record stays as it is.",
    ),
    "export": Entry(
        "export.export", "Make a checkpoint a model folder in Hugging Face layout; shards of verl are merged."
    ),
    "deploy": Entry("deploy.deploy", "Serve the model that a run has tuned: OpenAI's and Anthropic's protocols."),
    "gc": Entry("gc.gc", "Say what of a run's record could go, by kind and bytes; --yes removes it."),
    "report": Entry(
        "report.report",
        "Bundle what an issue needs of a run, without secrets: versions, settings, the log's end, two episodes.",
    ),
    "doctor": Entry(
        "doctor.doctor",
        "Check machine, packages, network and a model's template, or a store. Exits 1 only for a problem.",
    ),
    "config": Entry("config.app", "Look at a composed config."),
    "cluster": Entry("cluster.app", "Runs on a cluster (verl)."),
    "env": Entry("env.app", "Tools and worlds that agents act in."),
    "judge": Entry("judge.app", "Judges, before a run trusts them."),
}  # fmt: skip


def built(name: str) -> Any:
    """The command as typer makes it."""
    module, _, attribute = LISTED[name].place.partition(".")
    found = getattr(import_module(f"ajet.cli.{module}"), attribute)
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
        super().__init__(dict.fromkeys(LISTED))

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = built(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """A command by its name, as a dict's `get`."""
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
        """The names in the order of `LISTED`; nothing is built."""
        return [*self.commands]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands is made of their lines alone."""
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Built, or, while help is written, its line only."""
        if self._lists and cmd_name in LISTED:
            return TyperCommand(cmd_name, help=LISTED[cmd_name].help, hidden=cmd_name == LAUNCH)
        return super().get_command(ctx, cmd_name)
