"""Tool servers as programs, one per module, with the tool names of AWorld's GAIA environment.

A server takes a working folder and a few settings as arguments of `serve.py`, keys from the environment, and speaks MCP
over stdin and stdout. Invariants: modules import no ajet code except each other, by relative imports, since a server
runs with its own interpreter and packages. Packages other than `mcp` and `pydantic` are imported at their use, so tools
can be listed without them. Answers are bounded in bytes. Files are opened only below the given folder.

A server is a module with `tools(settings)`, which returns functions, usually the public methods of a `ToolServer`. The
tool takes name, docstring and annotated parameters from the function.
"""
