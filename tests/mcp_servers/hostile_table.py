"""A table of hostile replies: JSON-RPC bodies for HTTP and pipes, and HTTP replies that are wrong below them."""

from __future__ import annotations

import json

from tests.mcp_servers.scripted import RESULTS, TOOL, Parts, chunked, http, rpc

BODIES: dict[str, tuple[str, str]] = {}
"""By name: the method, and the text that answers it."""
RAW: dict[str, tuple[str, Parts]] = {}
"""By name: the method, and the bytes that answer it."""


def lattice(levels: int) -> str:
    """A schema with 2^levels paths."""
    defs = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{levels}": {"type": "object"}}}
    return json.dumps({"tools": [{"name": "f", "inputSchema": schema}]})


def tool_with(**keys: str) -> str:
    """A list of one tool with this JSON in place of its own."""
    own = {"name": '"f"', "inputSchema": '{"type": "object"}', **keys}
    return '{"tools": [{' + ", ".join(f'"{name}": {value}' for name, value in own.items()) + "}]}"


ERROR = '{"jsonrpc": "2.0", "id": $ID, "error": '
DEEP = "[" * 50_000 + "]" * 50_000
FOR_EACH = {
    "null": rpc("null"),
    "no result": '{"jsonrpc": "2.0", "id": $ID}',
    "text": rpc('"x"'),
    "list": rpc("[[[]]]"),
    "number": rpc("7"),
    "false": rpc("false"),
    "NaN": rpc("NaN"),
    "nested deeply": rpc(DEEP),
    "empty": "",
    "integer of 5,000 digits": rpc("9" * 5_000),
    "bare NaN": "NaN",
    "batch": "[" + rpc("{}") + "]",
    "HTML": "<html>no</html>",
    "another id": '{"jsonrpc": "2.0", "id": 77, "result": {}}',
    "id a list": '{"jsonrpc": "2.0", "id": [1], "result": {}}',
    "id a huge integer": f'{{"jsonrpc": "2.0", "id": {"9" * 4_000}, "result": {{}}}}',
    "id NaN": '{"jsonrpc": "2.0", "id": NaN, "result": {}}',
    "no id": '{"jsonrpc": "2.0", "result": {}}',
    "no version": '{"id": $ID, "result": {}}',
    "version 1.0": '{"jsonrpc": "1.0", "id": $ID, "result": {}}',
    "a request": '{"jsonrpc": "2.0", "id": $ID, "method": "roots/list"}',
    "a request with null": '{"jsonrpc": "2.0", "id": null, "method": "ping"}',
    "error null and result": '{"jsonrpc": "2.0", "id": $ID, "error": null, "result": {}}',
    "error of text": '{"jsonrpc": "2.0", "id": $ID, "error": "no"}',
    "error of nothing": '{"jsonrpc": "2.0", "id": $ID, "error": {}}',
    "error with odd fields": ERROR + '{"code": "x", "message": [1], "data": {"boundary": [1], "supported": 7}}}',
    "unsupported version": ERROR + '{"code": -32022, "message": "no", "data": {"supported": [{}]}}}',
    "half a document": '{"jsonrpc": "2.0", "id": $ID, "result": {"tools": [',
    "NUL": "\0\0\0\0",
    "one key twice": '{"jsonrpc": "2.0", "id": $ID, "result": {}, "result": 7}',
    "half a letter": rpc('{"tools": "\\ud800", "content": "\\udfff"}'),
}
BODIES |= {f"{m}: {name}": (m, text) for m in RESULTS for name, text in FOR_EACH.items()}
LISTS = {
    "tools null": '{"tools": null}',
    "tools an object": '{"tools": {"a": 1}}',
    "tools of lists": '{"tools": [[[]], null, 1, "f", {}]}',
    "4,000 tools of one name": json.dumps({"tools": [TOOL] * 4_000}),
    "names of nothing": tool_with(name='""'),
    "names of blanks": tool_with(name='" \\n"'),
    "name a number": tool_with(name="7"),
    "name of 10,000 letters": tool_with(name=f'"{"n" * 10_000}"'),
    "two names that read alike": '{"tools": [{"name": "a.b"}, {"name": "a b"}, {"name": "a_b"}, {"name": "a_b_2"}]}',
    "half a letter in a name": tool_with(name='"f\\ud800"'),
    "half a letter in a schema": tool_with(inputSchema='{"properties": {"\\ud800": {"enum": ["\\udc00"]}}}'),
    "lattice": lattice(30),
    "a circle": tool_with(inputSchema='{"$ref": "#"}'),
    "a remote schema": tool_with(inputSchema='{"$ref": "http://127.0.0.1:9/s.json"}'),
    "NaN in a schema": tool_with(inputSchema='{"properties": {"a": {"default": NaN, "maximum": Infinity}}}'),
    "a float beyond floats": tool_with(inputSchema='{"properties": {"a": {"default": 1e999, "minimum": -1e999}}}'),
    "a long integer": tool_with(inputSchema='{"properties": {"a": {"maximum": %s}}}' % ("9" * 4_000)),
    "a slow pattern": tool_with(inputSchema='{"properties": {"a": {"pattern": "^(x+x+)+y$"}}}'),
    "a broken pattern": tool_with(inputSchema='{"properties": {"a": {"pattern": "("}}}'),
    "schema true": tool_with(inputSchema="true"),
    "schema of text": tool_with(inputSchema='"object"'),
    "schema of another type": tool_with(inputSchema='{"type": "array"}'),
    "description a list": tool_with(description="[1]"),
    "description of 500,000 letters": tool_with(description=f'"{"d" * 500_000}"'),
    "annotations and meta of text": tool_with(annotations='"x"', _meta='"y"'),
    "cursor a number": '{"tools": [], "nextCursor": 7}',
    "cursor that does not end": json.dumps({"tools": [TOOL] * 500, "nextCursor": "again"}),
    "headers of arguments": tool_with(inputSchema='{"properties": {"a": {"x-mcp-header": "A\\r\\nB: c"}}}'),
}
BODIES |= {f"tools: {name}": ("tools/list", rpc(text)) for name, text in LISTS.items()}
CALLS = {
    "content null": '{"content": null}',
    "content of text": '{"content": "done"}',
    "content of lists": '{"content": [[["x"]], null, 7]}',
    "block without type": '{"content": [{}]}',
    "block type a list": '{"content": [{"type": [1]}]}',
    "text an object": '{"content": [{"type": "text", "text": {"a": 1}}]}',
    "half a letter": '{"content": [{"type": "text", "text": "\\ud83d"}]}',
    "NUL": '{"content": [{"type": "text", "text": "\\u0000"}]}',
    "structured NaN": '{"structuredContent": {"a": [NaN, -Infinity, 1e999]}}',
    "structured long integer": '{"structuredContent": %s}' % ("9" * 4_000),
    "resource a list": '{"content": [{"type": "resource", "resource": []}, {"type": "resource_link", "uri": {}}]}',
    "image without data": '{"content": [{"type": "image", "mimeType": 7}, {"type": "image", "data": 7}]}',
    "isError of text": '{"isError": "yes", "content": []}',
    "meta a list": '{"_meta": [], "content": []}',
    "result type": '{"resultType": ["input_required"], "content": []}',
    "900,000 letters": '{"content": [{"type": "text", "text": "%s"}]}' % ("x" * 900_000),
    "1,100,000 letters": '{"content": [{"type": "text", "text": "%s"}]}' % ("x" * 1_100_000),
    "300,000 values": '{"content": [' + ",".join(["{}"] * 150_000) + "]}",
}
BODIES |= {f"call: {name}": ("tools/call", rpc(text)) for name, text in CALLS.items()}
DONE = rpc('{"content": [{"type": "text", "text": "done"}]}').encode()
STATUSES = {
    "202": [http(b"", "202 Accepted")],
    "204": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "200 and nothing": [http(b"")],
    "500 and HTML": [http("<h1>no</h1>", "500 Internal Server Error", "text/html")],
    "404": [http(b"", "404 Not Found")],
    "503": [http(b"", "503 Busy", head="Retry-After: 1\r\n")],
    "401": [http(b"", "401 Unauthorized")],
    "304": [b"HTTP/1.1 304 Not Modified\r\n\r\n"],
    "101": [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"],
    "999": [http(b"", "999 What")],
    "no status": [b"garbage\r\n\r\n"],
    "binary": [b"\x00\xff\xfe" * 100],
    "nothing": [],
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-"],
    "a head of 1 MB": [b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n"],
    "10,000 headers": [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000 + b"\r\n"],
    "100 for ever": [b"HTTP/1.1 100 Continue\r\n\r\n", 0.05] * 40,
    "body cut": [http(DONE.replace(b"$ID", b"1"))[:-5]],
    "too long": [b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999999\r\n\r\n"],
    "length below zero": [b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}"],
    "length of text": [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}"],
    "chunks cut": chunked(DONE, kind="application/json", ended=False),
    "chunk size wrong": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"],
    "chunks drip": chunked(*[b" ", 0.05] * 60, kind="application/json"),
    "head drips": [b"H", 0.2, b"T", 0.2, b"T", 0.2, b"P", 0.2, b"/", 3.0],
    "gzip": [http(b"\x1f\x8b\x08\x00garbage", head="Content-Encoding: gzip\r\n")],
    "charset": [http(DONE, kind="application/json; charset=nothing")],
    "kind odd": [http(DONE, kind="; ; =")],
    "UTF-16": [http(DONE.decode().replace("$ID", "1").encode("utf-16"))],
    "UTF-8 cut": [http(b'{"jsonrpc": "2.0", "id": $ID, "result": {"a": "\xff\xc3"}}')],
    "session of bytes": [http(DONE, head="Mcp-Session-Id: \xff\xfe\r\n").replace(b"\xc3\xbf\xc3\xbe", b"\xff\xfe")],
    "session of a tab": [http(DONE, head="Mcp-Session-Id: a\tb\r\n")],
    "events of nothing": chunked(b"\n\n\n"),
    "events without end": chunked(*[b"data: x\n\n", 0.05] * 60),
    "one long line": chunked(*[b"data: " + b"x" * 65_536] * 20),
    "many short lines": chunked(*[b"data:\n" * 20_000] * 10),
    "events that ask": chunked(b'data: {"jsonrpc": "2.0", "id": 7, "method": "ping"}\n\n' * 5_000, 3.0),
    "an answer that goes on": chunked(b"data: " + DONE + b"\n\n", *[b": more\n", 0.05] * 60),
}
RAW |= {f"{m}: {name}": (m, parts) for m in RESULTS for name, parts in STATUSES.items()}
RAW |= {f"server/discover: {name}": ("server/discover", parts) for name, parts in STATUSES.items()}
