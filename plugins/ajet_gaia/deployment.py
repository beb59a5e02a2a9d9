"""The section `gaia` of an environment: tool servers by name, started at the first call of a tool.

    gaia:
      servers: [calculator-server, documents-pdf-server]   # all, if left out
      corpus: corpus.jsonl        # source of the wiki and search servers
      dataset: gaia_dataset       # a readable folder
      network: true               # allow public addresses
      private: false              # allow addresses of this machine and its network
      confined: true              # false: files, commands and code of the model run as this user

Invariants: all servers of an episode share one working folder, separate from other episodes (`Workdirs`). A server that
cannot be confined as required answers with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ajet.config.locations import find_cache_root
from ajet.schema.errors import UserError
from ajet_environments.deployment.description import EnvironmentFamily, EnvironmentPart
from ajet_gaia.catalogue import SERVERS
from ajet_gaia.environments import interpreter_of, npm_folder, prepare
from ajet_gaia.needs import ENV_TEMPLATE, find_program, why_off, with_older_names
from ajet_gaia.server import GaiaServer
from ajet_mcp.servers import Server as McpServer
from ajet_sandbox.bubblewrap import FOLDER
from ajet_sandbox.program import SERVER_LIMITS, Walls

NETWORKED = (
    "the server needs the network and a sandbox, but the sandbox has no network; `confined: false` runs it as "
    "the current user"
)


class GaiaSection(BaseModel):
    """Settings of the section `gaia`, as in the module's example."""

    model_config = ConfigDict(extra="forbid")

    servers: list[str] | None = None
    corpus: str | None = None
    dataset: str | None = None
    network: bool = True
    private: bool = False
    confined: bool = True


@dataclass(frozen=True, slots=True)
class SelectedServer:
    """One of the GAIA servers together with the settings of the section `gaia`."""

    server: GaiaServer
    section: GaiaSection
    base: Path
    """The folder of the description, base of its relative paths."""

    def off(self) -> str:
        """Return why the server is off: a missing variable, program, corpus or network; "" if it is on."""
        corpus = self.section.corpus is not None
        reason = why_off(self.server, with_older_names(os.environ), network=self.section.network, corpus=corpus)
        return reason or (NETWORKED if self.confined and self.server.network else "")

    @property
    def confined(self) -> bool:
        """True if the server runs in a sandbox; a server that runs no code or files of the model needs none."""
        return self.section.confined and self.server.sandboxed

    def listed(self) -> tuple[Mapping[str, Any], ...]:
        """Return the server's tools in the format of MCP's `tools/list`."""
        return tuple(
            {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.schema)}
            for tool in self.server.tools()
        )

    def at(self, workdir: Path, uid: int | None) -> McpServer:
        """Return the start settings of the server for one episode.

        Args:
            workdir: working folder of the episode.
            uid: user id of the episode's servers; None for the current user.
        """
        server_place = ServerPlace(
            workdir=Path(FOLDER) if self.confined else workdir,
            environments=packages_folder(),
            variables=with_older_names(os.environ),
            network=self.section.network,
            private=self.section.private,
            corpus=self._resolve_path(self.section.corpus),
            cache=packages_folder() / "corpora",
            readable=tuple(path for path in (self._resolve_path(self.section.dataset),) if path is not None),
        )
        started = start(self.server, server_place)
        readable = (packages_folder(), PROGRAM.parent, *server_place.readable)
        return McpServer(
            self.server.name,
            "stdio",
            command=started.command,
            env=dict(started.environment),
            cwd=workdir,
            walls=Walls(workdir, readable, uid, SERVER_LIMITS) if self.confined else None,
        )

    def _resolve_path(self, named: str | None) -> Path | None:
        """Return a path of the section as absolute path; None stays None."""
        return None if named is None else (self.base / Path(named).expanduser()).absolute()


def list_parts(section: GaiaSection, base: Path, where: str) -> list[EnvironmentPart]:
    """Return the tool servers that a `gaia` section selects.

    Args:
        base: folder for relative paths.
        where: place of the section, for errors.

    Raises:
        UserError: a name is not in the catalogue.
    """
    return [
        _make_part(SelectedServer(server, section, base))
        for server in selected(section.servers, where=f"{where}.servers")
    ]


def _make_part(tools: SelectedServer) -> EnvironmentPart:
    """Return the environment's entry of a selected server.

    A server without a sandbox is shared by all episodes. Its tools are listed in advance unless only a start shows
    them.
    """
    server, reason_off = tools.server, tools.off()
    return EnvironmentPart(
        server.name,
        start=tools.at,
        per="episode" if server.sandboxed else "shared",
        spare=0,
        off=reason_off,
        aliases=server.aliases,
        requires=server.variables,
        tools=tools.listed() if reason_off or server.program else (),
    )


def prepare_packages(names: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Install the packages of the named servers, if missing. Return one sentence per failure."""
    return prepare(selected(names), packages_folder(), say=say)


def packages_folder() -> Path:
    """Return the folder of the servers' packages."""
    return find_cache_root() / "tools"


FAMILY = EnvironmentFamily(GaiaSection, list_parts, prepare_packages, ENV_TEMPLATE)
GAIA_LOCAL = Path(__file__).with_name("shipped") / "gaia-local.yaml"
"""Description of all servers on this machine.

Its folder holds no code, since an environment's process starts in it.
"""


BY_NAME = {name: server for server in SERVERS for name in (server.name, *server.aliases)}


def selected(names: str | Iterable[str] | None, *, where: str = "") -> tuple[GaiaServer, ...]:
    """Return the servers of these names in order, without repeats; None selects all.

    A text is split at commas, as in the MCP_SERVERS header.

    Args:
        where: place of the names, for errors.

    Raises:
        UserError: a name is unknown.
    """
    if names is None:
        return SERVERS
    server_names = names.split(",") if isinstance(names, str) else names
    servers = [_find_server(name.strip(), where) for name in server_names if name.strip()]
    return tuple(dict.fromkeys(servers))


def _find_server(name: str, where: str) -> GaiaServer:
    """Return the server with this name or alias. Raises UserError with similar names."""
    if name in BY_NAME:
        return BY_NAME[name]
    similar = get_close_matches(name, BY_NAME, n=3)
    raise UserError(
        f"There is no tool server {name}.",
        where=where,
        expected=f"one of {', '.join(similar)}"
        if similar
        else f"one of {', '.join(server.name for server in SERVERS)}",
        do="correct the name; docs/gaia.md lists them",
    )


# Builds the start command and the environment variables of a server.
# Invariants: a server gets its declared variables and the variables needed by any program, never the complete
# environment. A disabled server is started too, lists its tools, and answers with the reason.
PROGRAM = Path(__file__).with_name("servers") / "serve.py"
ALWAYS = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class ServerPlace:
    """The folders and environment variables that a server may use."""

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
    """Return the start command of a server, also for one that is off: it lists its tools and answers with the reason.

    Raises:
        FileNotFoundError: even the basic virtual environment is missing, with which servers that are off answer.
    """
    off = why_off(server, place.variables, network=place.network, corpus=place.corpus is not None)
    python = interpreter_of(server, place.environments)
    if not off and server.pins and python is None:
        off = f"the server {server.name} is off: its packages are not installed"
    if not off and server.npm and npm_folder(server, place.environments) is None:
        off = f"the server {server.name} is off: its package {server.npm} is not installed"
    variable_names = (
        *ALWAYS,
        *server.variables,
        *server.some_tools,
        *server.passed,
        *(PROXIES if server.network else ()),
    )
    environment = {name: place.variables[name] for name in variable_names if place.variables.get(name)}
    if server.command and not off:
        placeholders = {
            "workdir": str(place.workdir),
            "packages": str(npm_folder(server, place.environments)),
            "chromium": find_program("chromium", place.variables) or "",
        }
        return ServerStart(
            server, tuple(argument.format(**placeholders) for argument in server.command), environment, off
        )
    if python is None:  # the basic packages suffice for a server that is off
        python = interpreter_of(None, place.environments)
    if python is None:
        raise FileNotFoundError(f"no environment for tool servers in {place.environments}")
    return ServerStart(
        server, (str(python), "-I", str(PROGRAM), *_build_arguments(server, place, off)), environment, off
    )


def _build_arguments(server: GaiaServer, place: ServerPlace, off: str) -> list[str]:
    """Return the arguments of `serve.py` for a server.

    A server that is off gets only the reason. If it is a third-party program, the module `others` lists its tools.
    """
    if off:
        tool_arguments = [argument for name in server.tool_names for argument in ("--tool", name)]
        program = [server.program] if server.program else ["others", *tool_arguments]
        return [*program, "--off", off]
    arguments = [server.program, "--root", str(place.workdir)]
    for folder in place.readable:
        arguments += ["--read", str(folder)]
    if server.corpus and place.corpus is not None:
        arguments += ["--corpus", str(place.corpus), "--cache", str(place.cache)]
    arguments += ["--network"] if place.network and server.network else []
    return [*arguments, *(["--private"] if place.private else [])]
