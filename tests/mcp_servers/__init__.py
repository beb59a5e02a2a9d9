"""MCP servers that tests start: one of the `mcp` SDK, and two of the standard library alone that start in no time and
do what no good server does."""
