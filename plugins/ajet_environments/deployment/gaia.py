"""The section `gaia` of an environment: its tool servers by name, started when one of their tools is first called.

    gaia:
      servers: [calculator-server, documents-pdf-server]   # all, if left out
      corpus: corpus.jsonl        # what the wiki and search servers answer from
      dataset: gaia_dataset       # a folder that may be read
      network: true               # whether addresses outside may be asked
      private: false              # those of this machine and its network, too
      confined: true              # false: files, commands and code of a model run as this user

Invariant: all servers of an episode share one working folder of its own, which is removed with it; one that must be
confined and cannot be answers why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ajet.config.cache import cache_root
from ajet.environment.gaia import Place, Server, prepare, selected, start, why_off, with_older_names
from ajet.environment.gaia.command import PROGRAM
from ajet.environment.mcp.confined import workdir_in
from ajet.environment.mcp.servers import Server as McpServer
from ajet.environment.sandbox.bubblewrap import FOLDER
from ajet.environment.sandbox.identity import fresh_uid
from ajet.environment.sandbox.program import FOR_SERVERS, Walls
from ajet.record.held_folder import HeldFolder
from ajet.record.remove_folder import remove_folder

NETWORKED = "it needs a network and a sandbox, and a sandbox here has none; `confined: false` runs it as this user"


class Gaia(BaseModel):
    """See the module."""

    model_config = ConfigDict(extra="forbid")

    servers: list[str] | None = None
    corpus: str | None = None
    dataset: str | None = None
    network: bool = True
    private: bool = False
    confined: bool = True


@dataclass(frozen=True, slots=True)
class Tools:
    """One of GAIA's servers, and its place."""

    server: Server
    section: Gaia
    base: Path
    """The folder of the description, from which its paths begin."""

    def off(self) -> str:
        """Why it is off; "": it is on."""
        corpus = self.section.corpus is not None
        why = why_off(self.server, with_older_names(os.environ), network=self.section.network, corpus=corpus)
        return why or (NETWORKED if self.confined and self.server.network else "")

    @property
    def confined(self) -> bool:
        """Whether it runs in a sandbox."""
        return self.section.confined and self.server.sandboxed

    def listed(self) -> tuple[Mapping[str, Any], ...]:
        """The server's tools as MCP lists them."""
        return tuple(
            {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.schema)}
            for tool in self.server.tools()
        )

    def at(self, workdir: Path, uid: int | None) -> McpServer:
        """The server as it is started for an episode whose user is `uid`."""
        place = Place(
            workdir=Path(FOLDER) if self.confined else workdir,
            environments=packages_folder(),
            variables=with_older_names(os.environ),
            network=self.section.network,
            private=self.section.private,
            corpus=self._path(self.section.corpus),
            cache=packages_folder() / "corpora",
            readable=tuple(path for path in (self._path(self.section.dataset),) if path is not None),
        )
        started = start(self.server, place)
        shown = (packages_folder(), PROGRAM.parent, *place.readable)
        return McpServer(
            self.server.name,
            "stdio",
            command=started.command,
            env=dict(started.environment),
            cwd=workdir,
            walls=Walls(workdir, shown, uid, FOR_SERVERS) if self.confined else None,
        )

    def _path(self, named: str | None) -> Path | None:
        return None if named is None else (self.base / Path(named).expanduser()).absolute()


class Workdirs:
    """A working folder for each episode. `of` on the front's loop; `remove` in any thread."""

    def __init__(self) -> None:
        self._root: HeldFolder | None = None
        self._users: dict[Path, int | None] = {}

    def of(self, episode: str) -> tuple[Path, int | None]:
        """Made when it is asked for first; and the user whose it is, where it can be one's own."""
        if self._root is None:
            self._root = HeldFolder("ajet-env-", mode=0o711)
        folder = self._root.path / (episode or "ahead")
        if folder not in self._users:
            uid = self._users[folder] = fresh_uid()
            workdir_in(self._root.path, folder.name, uid)
        return folder, self._users[folder]

    def remove(self, episode: str) -> None:
        """Remove an episode's folder with what is in it."""
        if self._root is not None:
            self._users.pop(self._root.path / episode, None)
            remove_folder(self._root.path / episode)

    def close(self) -> None:
        """Remove all folders."""
        if self._root is not None:
            self._root.remove()


def tools_of(section: Gaia, base: Path, where: str) -> list[Tools]:
    """Raises UserError for a name that is in no table."""
    return [Tools(server, section, base) for server in selected(section.servers, where=where)]


def prepared(tools: Iterable[Tools], say: Callable[[str], None]) -> list[str]:
    """Make what those that are on need; a sentence for each thing that could not be made."""
    return prepare([each.server for each in tools if not each.off()], packages_folder(), say=say)


def packages_folder() -> Path:
    """The folder of the servers' packages."""
    return cache_root() / "tools"
