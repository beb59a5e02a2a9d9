"""Builds the start command and the environment variables of a server.

Invariants: a server gets its declared variables and the variables needed by any program, never the complete
environment. A disabled server is started too, lists its tools, and answers with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ajet_gaia.environments import interpreter_of, npm_folder
from ajet_gaia.needs import find_program, why_off
from ajet_gaia.server import GaiaServer

PROGRAM = Path(__file__).with_name("servers") / "serve.py"
ALWAYS = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class ServerPlace:
    """The folders and environment variables available to servers."""

    workdir: Path
    """The working folder, as seen by the server."""
    environments: Path
    """The folder filled by `prepare`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    private: bool = False
    """True if addresses of this machine and its network are allowed."""
    corpus: Path | None = None
    cache: Path = Path(".")
    """Folder for the indexes of a corpus."""
    readable: tuple[Path, ...] = ()
    """Further readable folders, such as a data set."""


@dataclass(frozen=True)
class ServerStart:
    """The start command of one server."""

    server: GaiaServer
    command: tuple[str, ...]
    environment: Mapping[str, str]
    off: str
    """The reason why the server is off, or ""."""


def start(server: GaiaServer, place: ServerPlace) -> ServerStart:
    """Return the start command of a server at a place.

    Raises:
        FileNotFoundError: even the basic environment of `prepare` is missing, used by disabled servers to answer.
    """
    off = why_off(server, place.variables, network=place.network, corpus=place.corpus is not None)
    python = interpreter_of(server, place.environments)
    if not off and server.pins and python is None:
        off = f"the server {server.name} is off: its packages are not installed"
    if not off and server.npm and npm_folder(server, place.environments) is None:
        off = f"the server {server.name} is off: its package {server.npm} is not installed"
    names = (*ALWAYS, *server.variables, *server.some_tools, *server.passed, *(PROXIES if server.network else ()))
    environment = {name: place.variables[name] for name in names if place.variables.get(name)}
    if server.command and not off:
        words = {
            "workdir": str(place.workdir),
            "packages": str(npm_folder(server, place.environments)),
            "chromium": find_program("chromium", place.variables) or "",
        }
        return ServerStart(server, tuple(word.format(**words) for word in server.command), environment, off)
    if python is None:
        python = interpreter_of(None, place.environments)
    if python is None:
        raise FileNotFoundError(f"no environment for tool servers in {place.environments}")
    return ServerStart(
        server, (str(python), "-I", str(PROGRAM), *_build_arguments(server, place, off)), environment, off
    )


def _build_arguments(server: GaiaServer, place: ServerPlace, off: str) -> list[str]:
    if off:
        others = [word for name in server.tool_names for word in ("--tool", name)]
        named = [server.program] if server.program else ["others", *others]
        return [*named, "--off", off]
    given = [server.program, "--root", str(place.workdir)]
    for folder in place.readable:
        given += ["--read", str(folder)]
    if server.corpus and place.corpus is not None:
        given += ["--corpus", str(place.corpus), "--cache", str(place.cache)]
    given += ["--network"] if place.network and server.network else []
    return [*given, *(["--private"] if place.private else [])]
