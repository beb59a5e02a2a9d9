"""The thin client: MCP's tools, and nothing else of it, by plain JSON-RPC over aiohttp and pipes.

Invariants: all of it runs on the tools' loop; one connection pool a server, whatever the number of sessions. It speaks
both eras: sessions (`initialize`, `Mcp-Session-Id`) and the stateless revision of 2026-07-28, which it tries first over
HTTP, once a server.
"""

from ajet_mcp.thin.client import ThinClient

__all__ = ["ThinClient"]
