"""A real server of the `mcp` package, 1.x or 2.x, on pipes, or on a port with streamable HTTP at /mcp and SSE at /sse.

python -m tests.mcp_servers.with_sdk [PORT]
"""

from __future__ import annotations

import sys

from mcp.types import ToolAnnotations

try:
    from mcp.server.mcpserver import Image, MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp import Image

app = MCPServer("sdk", log_level="ERROR")
_PIXEL = bytes.fromhex("89504e470d0a1a0a")


@app.tool(annotations=ToolAnnotations.model_validate({"idempotentHint": True}))
def echo(text: str) -> str:
    """Say it again."""
    return text


@app.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@app.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=_PIXEL, format="png")


@app.tool()
def price(item: str) -> str:
    """The price of an item."""
    return str(len(item))


def main() -> None:
    if len(sys.argv) == 1:
        app.run()
        return
    import uvicorn
    from starlette.applications import Starlette

    http, sse = app.streamable_http_app(), app.sse_app()
    both = Starlette(routes=[*http.routes, *sse.routes], lifespan=lambda _: app.session_manager.run())
    uvicorn.run(both, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


if __name__ == "__main__":
    main()
