"""Every Python process of one side imports this first: it keeps modules of ours from any other checkout out.

`checkout.py` copies it into a folder at the head of PYTHONPATH. Invariant: a module of ours (`ajet`, `ajet_*`, `train`,
`env`), or any file of another checkout, ends the process that runs it. An audit hook sees each module however it was
imported, also by its path, by a plug-in or in a forked child, and no `except ImportError` swallows what it raises.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIDE = json.loads((HERE / "side.json").read_text())
CODE = os.path.join(os.path.realpath(SIDE["code"]), "")  # a sandbox moves what lies in /tmp, and links to it
DRIVERS = os.path.join(os.path.realpath(SIDE["drivers"]), "")
NAMES = {"ajet", "train", "env"}


class WrongCheckoutError(BaseException):
    """A module of ours comes from a checkout that is not compared."""


def drop_other_checkouts() -> list[str]:
    """Take other checkouts, such as the installed one, off `sys.path` and return their folders."""
    dropped = []
    for entry in list(sys.path):
        folder = os.path.join(os.path.realpath(entry or "."), "")
        if not folder.startswith(CODE) and os.path.exists(os.path.join(folder, "ajet", "__init__.py")):
            dropped.append(folder)
    others = tuple(dropped)
    sys.path[:] = [each for each in sys.path if not others or not _is_of(os.path.realpath(each or "."), others)]
    return [*dropped, *(os.path.join(each, "") for each in SIDE["others"])]


def _is_of(file: str, others: tuple[str, ...]) -> bool:
    """True if the file or folder lies in one of these checkouts and not in its virtual environment."""
    below = os.path.join(file, "")
    return not below.startswith((CODE, DRIVERS)) and any(
        below.startswith(other) and not below[len(other) :].startswith(".venv") for other in others
    )


def find_package(folder: str) -> str:
    """Return the name of the outermost package that the folder belongs to, "" for none."""
    name = ""
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
    return name


OTHERS = tuple(drop_other_checkouts())
PACKAGES: dict[str, str] = {}
SEEN: set[str] = set()


def check_module(event: str, args: tuple[object, ...]) -> None:
    """Raise WrongCheckoutError for the code of a module that belongs to another checkout."""
    if event != "exec":
        return
    file = getattr(args[0], "co_filename", "")
    if not file.endswith(".py") or file in SEEN:
        return
    SEEN.add(file)
    real = os.path.realpath(file)
    folder = os.path.dirname(real)
    package = PACKAGES.setdefault(folder, find_package(folder))
    ours = package in NAMES or package.startswith("ajet_")
    if ours and real.startswith(CODE):
        record("right.txt", package)
    elif ours or _is_of(real, OTHERS):
        record("wrong.txt", real)
        SEEN.discard(file)
        raise WrongCheckoutError(f"{real} is not of the compared checkout {CODE}")


def record(name: str, line: str) -> None:
    """Append a line once per process; a sandbox may refuse to write, and the exception alone then reports it."""
    if (name, line) in RECORDED:
        return
    RECORDED.add((name, line))
    try:
        with (HERE / name).open("a") as file:
            file.write(f"{os.getpid()} {line}\n")
    except OSError:
        pass


RECORDED: set[tuple[str, str]] = set()
sys.addaudithook(check_module)
