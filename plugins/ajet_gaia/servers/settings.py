"""Settings: what a server is told when it is started.

Invariant: values, made once from the program's arguments; a server reads keys of services from the environment and
nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What all servers understand."""

    root: Path = Path(".")
    """The working folder: nothing outside it is written."""
    readable: Sequence[Path] = ()
    """Further folders that may be read: a data set, for instance."""
    corpus: Path | None = None
    """A folder or JSON Lines file that is searched instead of the network."""
    cache: Path = Path(".")
    """Where an index of the corpus is kept."""
    network: bool = False
    """Whether addresses outside may be asked."""
    private: bool = False
    """Whether addresses of this machine and its own network may be asked, too."""
    max_bytes: int = 200_000
    """Of one answer."""
    max_download: int = 100_000_000
    """Bytes of one download."""
    names: Sequence[str] = ()
    """Of the tools that `others` lists."""
    timeout: float = 60.0
    """Seconds that one command or request may take, whatever a call asks for."""


def parse(arguments: Sequence[str]) -> tuple[str, str, Settings]:
    """The server's name, why it is off ("": it is on), and its settings."""
    known = argparse.ArgumentParser(prog="serve.py", description="One tool server, over stdin and stdout.")
    known.add_argument("name")
    known.add_argument("--root", type=Path, default=Settings.root)
    known.add_argument("--read", type=Path, action="append", default=[], dest="readable")
    known.add_argument("--corpus", type=Path)
    known.add_argument("--cache", type=Path, default=Settings.cache)
    known.add_argument("--network", action="store_true")
    known.add_argument("--private", action="store_true", help="loopback and private addresses, too")
    known.add_argument("--tool", action="append", default=[], dest="names", help="for `others`: a tool that it lists")
    known.add_argument("--off", default="", metavar="REASON", help="list the tools, and answer each call with this")
    given = vars(known.parse_args(arguments))
    name, off = given.pop("name"), given.pop("off")
    return name, off, Settings(**given)
