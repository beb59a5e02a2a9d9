"""Flags of AgentJet's command and of AgentRL's scripts that ours has by another name, or has no use for.

Invariant: each is understood, or answered with one sentence that says what does its work here; none is a usage error.
"""

from __future__ import annotations

from collections.abc import Sequence

from ajet.config.plugins import find_launch_flags
from ajet.schema.errors import UserError

SAME = {"--db": "--debug", "--bp": "--debug", "--breakpoint": "--debug"}
NEEDLESS = {
    "--reboot": "is not needed: the same command goes on with a run that ended",
}
INSTEAD = {
    "--swarm-server": "`ajet serve --conf FILE.yaml` serves agents elsewhere while it trains",
    "--swarm-overwatch": "`ajet view` shows a run, one that serves, too",
}


def understood(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of a launch in our words, and a sentence for each that has no effect. Raises UserError."""
    kept: list[str] = []
    said: list[str] = []
    for argument, following in zip(given, [*given[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if argument == "=" and kept:
            setting = f"{kept[-1]}={following or 'VALUE'}"
            raise UserError("There are blanks around a `=`.", where="command line", do=f"write {setting}")
        if name in INSTEAD:
            raise UserError(f"There is no {name} here.", where="command line", do=INSTEAD[name])
        if name.startswith("--") and name not in SAME and (brought := _advice(name[2:])):
            raise UserError(
                f"There is no option {name}: settings are key=value, or stand in the YAML.",
                where="command line",
                do=brought,
            )
        if name.startswith("--") and "." in name:
            shown = following if following and "=" not in following and not following.startswith("-") else "VALUE"
            setting = f"{name[2:]}={value if equals else shown}"
            raise UserError(
                f"There is no option {name}: settings have no dashes.", where="command line", do=f"write {setting}"
            )
        if name in NEEDLESS:
            said.append(f"{name} {NEEDLESS[name]}")
        elif name.startswith("--with-") and name.removeprefix("--with-") not in find_launch_flags():
            kept.append(f"--with={name.removeprefix('--with-')}")
        else:
            kept.append(f"{SAME[name]}{equals}{value}" if name in SAME else argument)
    return kept, said


def _advice(name: str) -> str:
    from ajet.config.schema.agentrl import advice  # 30 ms, which `ajet --help` has no use for

    return advice(name)
