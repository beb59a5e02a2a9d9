"""Command lines for ajet's own programs in separate Python processes.

Invariant: the process imports the running ajet from any working directory. `-m` would import the package `ajet` of an
AgentJet clone in the working directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ajet.config.locations import INSTALL_ROOT, PACKAGE

_START = (
    "import os, runpy, sys; root, module = sys.argv.pop(1), sys.argv.pop(1); "
    "first = [os.getcwd()] if sys.path[:1] == [''] else sys.path[:1]; "
    "sys.path[:1] = [root]; import ajet; sys.path[:1] = first; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
"""Works as `-m` with the running ajet. The working directory stays the first place for all other imports."""


def build_command(module: str, *arguments: str, unbuffered: bool = False) -> list[str]:
    """Return the command line that runs a module of ajet in a new process, as `python -m MODULE ARGUMENTS` would.

    `-m` would import the package `ajet` of an AgentJet clone in the working directory; this command imports the running
    one.

    Args:
        unbuffered: True to pass output on at once.
    """
    return [sys.executable, *(["-u"] if unbuffered else []), "-c", _START, str(INSTALL_ROOT), module, *arguments]


def holds_other_ajet(folder: str) -> bool:
    """Return True if the folder, an entry of `sys.path`, holds a package `ajet` other than the running one."""
    package = Path(folder or ".", "ajet")
    return (package / "__init__.py").is_file() and package.resolve() != PACKAGE
