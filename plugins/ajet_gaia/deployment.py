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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ajet.config.locations import find_cache_root
from ajet_environments.deployment.description import EnvironmentFamily, EnvironmentPart
from ajet_gaia.command import PROGRAM, ServerPlace, start
from ajet_gaia.environments import prepare
from ajet_gaia.needs import ENV_TEMPLATE, why_off, with_older_names
from ajet_gaia.selection import selected
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
    """One of GAIA's servers with the section's settings."""

    server: GaiaServer
    section: GaiaSection
    base: Path
    """The folder of the description, base of its relative paths."""

    def off(self) -> str:
        """The reason why the server is off, or ""."""
        corpus = self.section.corpus is not None
        why = why_off(self.server, with_older_names(os.environ), network=self.section.network, corpus=corpus)
        return why or (NETWORKED if self.confined and self.server.network else "")

    @property
    def confined(self) -> bool:
        """True if the server runs in a sandbox."""
        return self.section.confined and self.server.sandboxed

    def listed(self) -> tuple[Mapping[str, Any], ...]:
        """The server's tools in MCP's list format."""
        return tuple(
            {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.schema)}
            for tool in self.server.tools()
        )

    def at(self, workdir: Path, uid: int | None) -> McpServer:
        """Return the server for an episode with working folder `workdir` and user `uid`."""
        place = ServerPlace(
            workdir=Path(FOLDER) if self.confined else workdir,
            environments=packages_folder(),
            variables=with_older_names(os.environ),
            network=self.section.network,
            private=self.section.private,
            corpus=self._resolve_path(self.section.corpus),
            cache=packages_folder() / "corpora",
            readable=tuple(path for path in (self._resolve_path(self.section.dataset),) if path is not None),
        )
        started = start(self.server, place)
        shown = (packages_folder(), PROGRAM.parent, *place.readable)
        return McpServer(
            self.server.name,
            "stdio",
            command=started.command,
            env=dict(started.environment),
            cwd=workdir,
            walls=Walls(workdir, shown, uid, SERVER_LIMITS) if self.confined else None,
        )

    def _resolve_path(self, named: str | None) -> Path | None:
        return None if named is None else (self.base / Path(named).expanduser()).absolute()


def list_parts(section: GaiaSection, base: Path, where: str) -> list[EnvironmentPart]:
    """Return the servers of a section.

    Raises:
        UserError: a name is not in the catalogue.
    """
    return [
        _make_part(SelectedServer(server, section, base))
        for server in selected(section.servers, where=f"{where}.servers")
    ]


def _make_part(tools: SelectedServer) -> EnvironmentPart:
    server, off = tools.server, tools.off()
    return EnvironmentPart(
        server.name,
        start=tools.at,
        per="episode" if server.sandboxed else "shared",
        spare=0,
        off=off,
        aliases=server.aliases,
        requires=server.variables,
        tools=tools.listed() if off or server.program else (),
    )


def prepare_packages(names: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Install the packages of these servers; returns a sentence for each failure."""
    return prepare(selected(names), packages_folder(), say=say)


def packages_folder() -> Path:
    """Return the folder of the servers' packages."""
    return find_cache_root() / "tools"


FAMILY = EnvironmentFamily(GaiaSection, list_parts, prepare_packages, ENV_TEMPLATE)
GAIA_LOCAL = Path(__file__).with_name("shipped") / "gaia-local.yaml"
"""Description of all servers on this machine.

Its folder holds no code, since an environment's process starts in it.
"""
