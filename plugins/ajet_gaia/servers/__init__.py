"""Tool servers as programs: each module here is one, with the tools that agents built for AWorld's GAIA environment
know by name.

What enters: a working folder and a few settings, by `serve.py`'s arguments; keys by the environment. What leaves: MCP
over stdin and stdout. Invariants: nothing here imports anything of ajet's but its neighbours (relative imports only),
because a server runs with an interpreter and packages of its own; packages beside `mcp` and `pydantic` are imported
where they are used, so that a server's tools can be listed where it could not run; an answer is bounded in bytes; a
file is opened below the folder that was given, and nowhere else.

A server is a module with `tools(settings)`, which returns functions, in most of them the public methods of a
`ToolServer`: the name, docstring and annotated parameters of a function are the tool's.
"""
