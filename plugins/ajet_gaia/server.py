"""GaiaServer: what is known about a tool server before it starts.

Invariant: plain values. The tools of ajet's own servers are listed from their functions, so the list equals the running
server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class ToolDescription:
    """A tool as described to a model."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the tool's arguments."""


@dataclass(frozen=True)
class GaiaServer:
    """The catalogue entry of one tool server: names, packages, needs and tools."""

    name: str
    program: str = ""
    """The server's module in `servers`; "" for a third-party program (`command`)."""
    command: tuple[str, ...] = ()
    """Words of a third-party program's command.

    {workdir}, {packages} (the folder of its npm package) and {chromium} are replaced at the start.
    """
    aliases: tuple[str, ...] = ()
    tool_names: tuple[str, ...] = ()
    """Tools of a third-party server, with schemas known only at run time."""
    variables: tuple[str, ...] = ()
    """Environment variables required by the server."""
    some_tools: tuple[str, ...] = ()
    """Environment variables required by some tools; without them these tools answer with the reason."""
    passed: tuple[str, ...] = ()
    """Further environment variables read if present."""
    pins: str = "base"
    """The file in `pins` with its pinned packages; "" for a server without Python."""
    npm: str = ""
    """The server's npm package, with the version."""
    executables: tuple[str, ...] = ()
    """Programs of the machine required by the server."""
    network: bool = False
    """True if the server connects to public addresses."""
    corpus: bool = False
    """True if the server can answer from a local corpus; with a corpus it needs neither network nor variables."""
    only_corpus: bool = False
    """True if the server has no source except a corpus."""
    sandboxed: bool = True
    """True if each episode needs a sandboxed process, for code of the model or files of the episode.

    Otherwise all episodes share one process.
    """

    def tools(self) -> tuple[ToolDescription, ...]:
        """Return the server's tools; third-party tools by name only."""
        if not self.program:
            return tuple(ToolDescription(name, "", {"type": "object"}) for name in self.tool_names)
        return _list_tools(self.program)


@cache
def _list_tools(program: str) -> tuple[ToolDescription, ...]:
    """Import a server's module and list its tools, with default settings; nothing is started."""
    from ajet_gaia.servers.settings import Settings
    from ajet_gaia.servers.tool import FunctionTool

    functions = import_module(f"ajet_gaia.servers.{program}").tools(Settings())
    tools = [FunctionTool(function) for function in functions]
    return tuple(ToolDescription(tool.name, tool.description, tool.schema) for tool in tools)
