"""Server: what is known of a tool server before it is started.

Invariant: values; a server of ours lists its tools by its own functions, so that what stands here is what it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class ToolDescription:
    """A tool, as a model is told of it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True)
class GaiaServer:
    """One of GAIA's servers."""

    name: str
    program: str = ""
    """The module of `servers` that it is; "": a program of somebody else's, `command`."""
    command: tuple[str, ...] = ()
    """Of somebody else's: its words, in which {workdir}, {packages} (the folder of its npm package) and {chromium}
    stand for what is known at the start."""
    aliases: tuple[str, ...] = ()
    tool_names: tuple[str, ...] = ()
    """Of somebody else's: its schemas are known when it runs."""
    variables: tuple[str, ...] = ()
    """Environment variables without which it is off."""
    some_tools: tuple[str, ...] = ()
    """Environment variables without which some of its tools are off, and say so."""
    passed: tuple[str, ...] = ()
    """Further environment variables that it reads if they are there."""
    pins: str = "base"
    """The file of `pins` that names its packages and their versions; "": it needs no Python."""
    npm: str = ""
    """Its package of npm, with the version."""
    executables: tuple[str, ...] = ()
    """Programs of the machine without which it is off."""
    network: bool = False
    """Whether it asks addresses outside."""
    corpus: bool = False
    """Whether it answers from a corpus on this machine: then it needs neither network nor variables, unless none is
    given."""
    only_corpus: bool = False
    """Whether it has nothing but a corpus."""
    sandboxed: bool = True
    """Whether it must run in the episode's sandbox, as a process of the episode's own: it runs what a model wrote, or
    handles files of the episode. Else one process is shared by all."""

    def tools(self) -> tuple[ToolDescription, ...]:
        """The server's tools; of somebody else's server by name alone."""
        if not self.program:
            return tuple(ToolDescription(name, "", {"type": "object"}) for name in self.tool_names)
        return _list_tools(self.program)


@cache
def _list_tools(program: str) -> tuple[ToolDescription, ...]:
    from ajet_gaia.servers.settings import Settings
    from ajet_gaia.servers.tool import FunctionTool

    functions = import_module(f"ajet_gaia.servers.{program}").tools(Settings())
    listed = [FunctionTool(function) for function in functions]
    return tuple(ToolDescription(tool.name, tool.description, tool.schema) for tool in listed)
