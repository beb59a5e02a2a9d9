"""Programs of ajet's own, run by Python in a process of their own.

Invariant: they are this ajet's, whatever lies in the working directory: with `-m`, Python would look there first, and
in a clone of AgentJet there is another package of our name.
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
"""As `-m` does it, but for where ajet comes from. The working directory stays the first place for everything else."""


def build_command(module: str, *arguments: str, unbuffered: bool = False) -> list[str]:
    """The command line for `python -m MODULE ARGUMENTS`, where MODULE is one of ajet's."""
    return [sys.executable, *(["-u"] if unbuffered else []), "-c", _START, str(INSTALL_ROOT), module, *arguments]


def holds_other_ajet(folder: str) -> bool:
    """Whether a folder of `sys.path` holds a package of our name that is not this one."""
    own = Path(folder or ".", "ajet")
    return (own / "__init__.py").is_file() and own.resolve() != PACKAGE
