"""The only module with the `mcp` SDK: serves a list of tools over stdin and stdout, with 1.x and 2.x.

Invariants: stdout belongs to the protocol, and output of a tool or a library goes to stderr. Any exception of a tool
becomes an answer, and the server keeps running.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from .settings import Settings
from .tool import FunctionTool, Image, ToolError, bounded


def serve(name: str, tools: Sequence[FunctionTool], settings: Settings, *, unavailable_reason: str = "") -> None:
    """Serve the tools until stdin ends.

    Args:
        unavailable_reason: error text that every call gets instead of an answer; "" if the tools work.
    """
    anyio.run(partial(_serve_tools, name, tools, settings, unavailable_reason))


async def _serve_tools(name: str, tools: Sequence[FunctionTool], settings: Settings, unavailable_reason: str) -> None:
    """Serve the tools over stdin and stdout by the installed version of the SDK, until stdin ends."""
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolResult, ListToolsResult
    from mcp.types import Tool as ListedTool

    by_name = {tool.name: tool for tool in tools}
    listed_tools = [
        ListedTool.model_validate({"name": tool.name, "description": tool.description, "inputSchema": tool.schema})
        for tool in tools
    ]

    async def call_tool(tool: str, arguments: Mapping[str, Any] | None) -> CallToolResult:
        answer = await anyio.to_thread.run_sync(
            partial(answer_call, by_name, tool, arguments or {}, settings, unavailable_reason), abandon_on_cancel=True
        )
        return CallToolResult.model_validate(answer)

    if hasattr(Server, "list_tools"):  # 1.x registers handlers by decorators
        server: Any = Server(name)
        server.call_tool(validate_input=False)(call_tool)

        @server.list_tools()  # type: ignore[untyped-decorator, unused-ignore]
        async def list_tools() -> list[ListedTool]:
            return listed_tools
    else:

        async def on_list(context: Any, params: Any) -> ListToolsResult:
            return ListToolsResult(tools=listed_tools)

        async def on_call(context: Any, params: Any) -> CallToolResult:
            return await call_tool(params.name, params.arguments)

        newer_server_class: Any = Server
        server = newer_server_class(name, on_list_tools=on_list, on_call_tool=on_call)

    wire_in, wire_out = _claim_pipes()
    async with stdio_server(wire_in, wire_out) as (read, write):
        await server.run(read, write, server.create_initialization_options())


def answer_call(
    tools: Mapping[str, FunctionTool],
    name: str,
    arguments: Mapping[str, Any],
    settings: Settings,
    unavailable_reason: str,
) -> dict[str, Any]:
    """Call a tool and return the result in MCP's format. Any failure becomes a result with `isError`."""
    try:
        if unavailable_reason:
            raise ToolError(unavailable_reason)
        if name not in tools:
            raise ToolError(f"there is no tool {name}; there are: {', '.join(tools)}")
        answer = tools[name].call(arguments, settings)
    except ToolError as error:
        return _failed_result(str(error), settings)
    except OSError as error:
        return _failed_result(f"{error.strerror or error}", settings)
    except Exception as error:  # noqa: BLE001 - libraries raise anything over a hostile file; the model gets to know
        return _failed_result(f"{type(error).__name__}: {error}", settings)
    if isinstance(answer, Image):
        data = base64.b64encode(answer.data).decode("ascii")
        return {"content": [{"type": "image", "data": data, "mimeType": answer.mime}]}
    return {"content": [{"type": "text", "text": answer}]}


def _failed_result(reason: str, settings: Settings) -> dict[str, Any]:
    """Return a failed call's result in MCP's format, with a text of bounded length."""
    return {"content": [{"type": "text", "text": bounded(reason, settings.max_bytes)}], "isError": True}


def _claim_pipes() -> tuple[Any, Any]:
    """Return stdin and stdout for the protocol, and redirect descriptors 0 and 1 to null and stderr."""
    input_descriptor, output_descriptor = os.dup(0), os.dup(1)
    null_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_descriptor, 0)
    os.close(null_descriptor)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    wire_in = anyio.wrap_file(os.fdopen(input_descriptor, encoding="utf-8", errors="replace"))
    wire_out = anyio.wrap_file(os.fdopen(output_descriptor, "w", encoding="utf-8"))
    return wire_in, wire_out
