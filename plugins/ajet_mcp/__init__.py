"""Tools of MCP servers, for thousands of attempts: sessions, and all tools of one attempt as a `Toolset`.

What enters: `environment.use` (an address, a command, a file). What leaves: tools as a model is told them, results as
it is shown them, each use as a `ToolUse`. Invariants: connections live on a thread and loop of their own; nothing of
one attempt reaches the next.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_mcp.confined import require_sandbox as require_sandbox
    from ajet_mcp.contract import CallFailed as CallFailed
    from ajet_mcp.contract import Limits as Limits
    from ajet_mcp.contract import Reply as Reply
    from ajet_mcp.contract import Session as Session
    from ajet_mcp.contract import Tool as Tool
    from ajet_mcp.results import CountTokens as CountTokens
    from ajet_mcp.results import Shown as Shown
    from ajet_mcp.servers import Server as Server
    from ajet_mcp.servers import servers_of as servers_of
    from ajet_mcp.toolset import Toolset as Toolset

_HOME = {
    "CallFailed": "ajet_mcp.contract",
    "CountTokens": "ajet_mcp.results",
    "Limits": "ajet_mcp.contract",
    "Reply": "ajet_mcp.contract",
    "Server": "ajet_mcp.servers",
    "Session": "ajet_mcp.contract",
    "Shown": "ajet_mcp.results",
    "Tool": "ajet_mcp.contract",
    "Toolset": "ajet_mcp.toolset",
    "require_sandbox": "ajet_mcp.confined",
    "servers_of": "ajet_mcp.servers",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """Load a name when it is used: ajet reads this package's `plugin` at every start."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
