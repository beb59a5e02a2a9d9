"""Tools of MCP servers, for thousands of attempts: sessions, and all tools of one attempt as a `Toolset`.

What enters: `environment.use` (an address, a command, a file). What leaves: tools as a model is told them, results as
it is shown them, each use as a `ToolUse`. Invariants: connections live on a thread and loop of their own; nothing of
one attempt reaches the next.
"""

from ajet.environment.mcp.confined import require_sandbox
from ajet.environment.mcp.contract import CallFailed, Limits, Reply, Session, Tool
from ajet.environment.mcp.results import CountTokens, Shown
from ajet.environment.mcp.servers import Server, servers_of
from ajet.environment.mcp.toolset import Toolset
from ajet.environment.pinned import Pinned, Pins, ToolsChanged

__all__ = [
    "CallFailed",
    "CountTokens",
    "Limits",
    "Pinned",
    "Pins",
    "Reply",
    "Server",
    "Session",
    "Shown",
    "Tool",
    "ToolsChanged",
    "Toolset",
    "require_sandbox",
    "servers_of",
]
