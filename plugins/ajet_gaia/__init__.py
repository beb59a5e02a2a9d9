"""Tool servers by the names that agents of the GAIA benchmark know, AWorld's environment first of all.

What enters: names, and what there is (variables, a network, a corpus). What leaves: for each server its tools, whether
it is on or why not, and the command that starts it; `prepare` makes the environments of their packages. The programs
themselves are in `servers`, and know nothing of ajet. Invariants: a server that is off stays listed and answers why;
only a name in no table is an error; nothing here starts a process but `prepare`.
"""

from ajet.environment.gaia.catalogue import SEED_NAMES, SERVERS
from ajet.environment.gaia.command import Place, Start, start
from ajet.environment.gaia.environments import prepare
from ajet.environment.gaia.needs import ENV_TEMPLATE, read_variables, why_off, with_older_names
from ajet.environment.gaia.selection import selected
from ajet.environment.gaia.server import Server, Tool

__all__ = [
    "ENV_TEMPLATE",
    "SEED_NAMES",
    "SERVERS",
    "Place",
    "Server",
    "Start",
    "Tool",
    "prepare",
    "read_variables",
    "selected",
    "start",
    "why_off",
    "with_older_names",
]
