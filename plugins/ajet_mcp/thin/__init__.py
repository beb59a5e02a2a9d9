"""The MCP client: JSON-RPC over HTTP (aiohttp) and pipes, with tools as the only MCP feature.

Invariants: all code runs on the tools' event loop. Each server has one connection pool for all sessions. The client
speaks both protocol generations: with sessions (`initialize`, `Mcp-Session-Id`), and the stateless revision of
2026-07-28. Over HTTP the stateless revision is tried first, once per server.
"""

from ajet_mcp.thin.client import ThinClient

__all__ = ["ThinClient"]
