"""The MCP client: plain JSON-RPC over aiohttp and pipes, for tools only.

Invariants: all code runs on the tools' event loop. Each server has one connection pool for all sessions. The client
supports sessions (`initialize`, `Mcp-Session-Id`) and the stateless revision of 2026-07-28. Over HTTP the stateless
revision is tried first, once per server.
"""

from ajet_mcp.thin.client import ThinClient

__all__ = ["ThinClient"]
