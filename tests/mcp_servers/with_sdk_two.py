"""A real server of the `mcp` package's 2.x line, on pipes, or on a port with streamable HTTP of both eras at /mcp."""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

app = MCPServer("two")


@app.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


if __name__ == "__main__":
    app.run("streamable-http", port=int(sys.argv[1])) if len(sys.argv) > 1 else app.run("stdio")
