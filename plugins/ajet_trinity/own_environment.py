"""The environment of Trinity's own, with the versions that Trinity names, which `make trinity-gpu` makes for GPUs; and
how a command goes on in it.

Invariant: the command goes on as it was typed, in the same process, before anything of a run is written; there it finds
Trinity beside itself, and hands over no more: the script to the script, `-m` to `-m`, which imports what lies in the
working directory, where a clone of AgentJet has an `ajet`, too. A program that is no command of ours is told what to
start.
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
"""Below the environment of ajet."""
SCRIPT = "ajet"
MODULES = ("ajet.__main__", "ajet.launcher", "ajet.cli.launcher")
"""What runs where `-m ajet` and its like were typed: another program's file may bear the name of ours."""


def find_python(device: str) -> Path | None:
    """Its interpreter, where a run on this device is for it: on GPUs, once it is made, unless Trinity lies beside the
    interpreter that runs."""
    python = Path(sys.prefix) / FOLDER / "bin" / "python"
    return python if device == "cuda" and python.exists() and find_version(None) is None else None


def continue_in(python: Path) -> None:
    """Have the command that was typed run there; does not return. Raises UserError where it is no command of ours."""
    spec, script = getattr(sys.modules["__main__"], "__spec__", None), Path(sys.argv[0]).name == SCRIPT
    if not script and (spec is None or spec.name not in MODULES):
        raise UserError(
            "Trinity lies in an environment of its own, and this program runs in another.",
            where=sys.executable,
            expected=str(python),
            do=f"{python} {shlex.join(sys.argv)}",
        )
    logger.info("Trinity has an environment of its own: the command goes on with {}", python)
    sys.stdout.flush()
    sys.stderr.flush()
    there = [str(python.with_name(SCRIPT))] if script else ["-m", "ajet"]
    os.execv(python, [str(python), *there, *sys.argv[1:]])
