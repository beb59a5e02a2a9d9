"""MCP tools for thousands of concurrent attempts (an attempt is one rollout of a task).

It reads `environment.use` (an address, a command, or a file of servers). It returns tool definitions, tool results in
the form shown to the model, and a `ToolUse` record per call. Invariants: all connections live on a separate thread with
its own event loop. No state of one attempt reaches another attempt.
"""

from typing import TYPE_CHECKING

from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet_mcp.confined import require_sandbox as require_sandbox
    from ajet_mcp.contract import CallFailedError as CallFailedError
    from ajet_mcp.contract import Limits as Limits
    from ajet_mcp.contract import Reply as Reply
    from ajet_mcp.contract import Session as Session
    from ajet_mcp.contract import Tool as Tool
    from ajet_mcp.results import CountTokens as CountTokens
    from ajet_mcp.results import Shown as Shown
    from ajet_mcp.servers import Server as Server
    from ajet_mcp.servers import servers_of as servers_of
    from ajet_mcp.toolset import Toolset as Toolset

__all__ = [
    "CallFailedError",
    "CountTokens",
    "Limits",
    "Reply",
    "Server",
    "Session",
    "Shown",
    "Tool",
    "Toolset",
    "require_sandbox",
    "servers_of",
]

__getattr__ = load_lazily(
    __name__,
    {
        "confined": "require_sandbox",
        "contract": "CallFailedError, Limits, Reply, Session, Tool",
        "results": "CountTokens, Shown",
        "servers": "Server, servers_of",
        "toolset": "Toolset",
    },
)
