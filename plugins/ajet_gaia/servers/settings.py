"""Settings of a server, parsed from the program's arguments.

Invariants: plain values, created once. From the environment a server reads only keys of services.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Settings common to all servers."""

    root: Path = Path(".")
    """The working folder, the only writable folder."""
    readable: Sequence[Path] = ()
    """Further readable folders, such as a data set."""
    corpus: Path | None = None
    """A folder or JSON Lines file searched instead of the network."""
    cache: Path = Path(".")
    """Folder for the index of the corpus."""
    network: bool = False
    """True if public addresses are allowed."""
    private: bool = False
    """True if addresses of this machine and its network are allowed."""
    max_bytes: int = 200_000
    """Maximum bytes of one answer."""
    max_download: int = 100_000_000
    """Maximum bytes of one download."""
    names: Sequence[str] = ()
    """Tool names listed by the server `others`."""
    timeout: float = 60.0
    """Maximum seconds of one command or request, for any argument of the call."""


def parse(arguments: Sequence[str]) -> tuple[str, str, Settings]:
    """Return the server's name, the reason if off (else ""), and its settings."""
    parser = argparse.ArgumentParser(prog="serve.py", description="One tool server, over stdin and stdout.")
    parser.add_argument("name")
    parser.add_argument("--root", type=Path, default=Settings.root)
    parser.add_argument("--read", type=Path, action="append", default=[], dest="readable")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--cache", type=Path, default=Settings.cache)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--private", action="store_true", help="loopback and private addresses, too")
    parser.add_argument("--tool", action="append", default=[], dest="names", help="for `others`: a tool that it lists")
    parser.add_argument("--off", default="", metavar="REASON", help="list the tools, and answer each call with this")
    values = vars(parser.parse_args(arguments))
    name, off = values.pop("name"), values.pop("off")
    return name, off, Settings(**values)
