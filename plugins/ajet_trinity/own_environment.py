"""Trinity's own Python environment for GPUs, made by `make trinity-gpu`, and the continuation of a command there.

Invariant: the command continues unchanged, in the same process, before a run writes any file. In the new environment
Trinity lies next to the interpreter, and the command does not continue a second time. A script continues as a script,
and `-m` as `-m`, with imports from the working directory (possibly a clone of AgentJet with another `ajet`). Another
program gets an error with the command to start.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from loguru import logger

from ajet.schema.errors import UserError
from ajet_trinity.package import find_version

FOLDER = Path("share") / "trinity-gpu"
"""Folder name below ajet's environment."""
SCRIPT = "ajet"
MODULES = ("ajet.__main__", "ajet.launcher", "ajet.cli.launcher")
"""Modules run by `-m ajet` and variants. Another program's file may have the same name."""


def find_python(device: str) -> Path | None:
    """Return the environment's interpreter for a run on GPUs, unless Trinity is importable here."""
    python = Path(sys.prefix) / FOLDER / "bin" / "python"
    return python if device == "cuda" and python.exists() and find_version(None) is None else None


def continue_in(python: Path) -> None:
    """Continue the command with the interpreter; never returns. Raises UserError for another program."""
    spec, script = getattr(sys.modules["__main__"], "__spec__", None), Path(sys.argv[0]).name == SCRIPT
    if not script and (spec is None or spec.name not in MODULES):
        raise UserError(
            "Trinity is installed in a separate Python environment, but this program runs in another one.",
            where=sys.executable,
            expected=str(python),
            do=f"{python} {shlex.join(sys.argv)}",
        )
    logger.info("Trinity has a separate Python environment: the command continues with {}", python)
    sys.stdout.flush()
    sys.stderr.flush()
    there = [str(python.with_name(SCRIPT))] if script else ["-m", "ajet"]
    os.execv(python, [str(python), *there, *sys.argv[1:]])
