"""A small MCP server over stdio, of the handshake era: it keeps notes, and misbehaves when it is asked to."""

from __future__ import annotations

import json
import os
import sys
import time

notes: list[str] = []
ONE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NONE = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "note", "description": "Keep a note.", "inputSchema": ONE},
    {"name": "notes", "description": "All notes.", "inputSchema": NONE, "annotations": {"readOnlyHint": True}},
    {"name": "forget", "description": "Drop all notes.", "inputSchema": NONE},
    {"name": "whoami", "description": "Its process.", "inputSchema": NONE},
    {"name": "wait", "description": "Sleep.", "inputSchema": NONE},
    {"name": "die", "description": "End.", "inputSchema": NONE},
]


def call(name: str, arguments: dict) -> str:
    if name == "note":
        notes.append(arguments["text"])
    if name == "forget":
        notes.clear()
    if name == "die":
        os._exit(3)
    if name == "wait":
        time.sleep(30)
    return str(os.getpid()) if name == "whoami" else ", ".join(notes)


def answer(message: dict) -> dict:
    params = message.get("params", {})
    if message["method"] == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "n", "version": "1"},
        }
    if message["method"] == "tools/list":
        return {"tools": TOOLS}
    return {
        "content": [{"type": "text", "text": call(params["name"], params.get("arguments") or {})}],
        "isError": False,
    }


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}), flush=True)
