"""No reply: what an endpoint answered in place of one, in words.

Invariant: what it was is said by what came alone (a page, nothing, half of a reply, an error, another service's JSON),
never by what its reader stumbled over. Nothing is decided here: the client gets the bytes as they are.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from ajet.record.console import counted

NAMES = {"chat": "Chat Completions", "completions": "Completions", "responses": "Responses", "anthropic": "Messages"}
HAS = {"chat": "choices", "completions": "choices", "responses": "output", "anthropic": "content"}
"""What a reply of each dialect has."""
SHOWN = 120
"""Characters of what came."""
BEGINNING = 4096
"""Characters in which a page says that it is one."""
_PAGE = re.compile(r"\s*(<\?xml[^>]*>\s*)?(<!--[^>]*-->\s*)?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)


def what_came(dialect: str, body: Any) -> str:
    """The words for what came. `body`: JSON, or {"text": …} for what is none; None: nothing came."""
    if body is None:
        return "an empty body"
    text = body.get("text") if isinstance(body, Mapping) and len(body) == 1 else None
    if isinstance(text, str):
        return _text(text)
    if not isinstance(body, Mapping):
        return f"JSON that is no object: {_shown(json.dumps(body, ensure_ascii=False))}"
    if body.get("error"):
        said = body["error"]
        said = said.get("message") or said if isinstance(said, Mapping) else said
        return f"an error: {_shown(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))}"
    if HAS[dialect] in body:
        return f"JSON whose {HAS[dialect]} cannot be read: {_shown(json.dumps(body[HAS[dialect]], ensure_ascii=False))}"
    return f"JSON without {HAS[dialect]}: {_shown(json.dumps(body, ensure_ascii=False))}"


def no_reply(dialect: str, body: Any) -> str:
    """Why a whole answer, whose status says that all is well, is none."""
    return f"the endpoint answered no reply of {NAMES[dialect]} but {what_came(dialect, body)}"


def _text(text: str) -> str:
    if not text.strip():
        return "an empty body"
    if _PAGE.match(text[:BEGINNING]):
        title = _TITLE.search(text[:BEGINNING])
        named = " ".join(html.unescape(re.sub("<[^>]*>", "", title[2])).split()) if title else ""
        return f"a page of HTML ({_shown(named)})" if named else "a page of HTML"
    if text.lstrip().startswith(("{", "[")) and _cut(text):
        return f"JSON that breaks off after {counted(len(text), 'character')}"
    return f"text: {_shown(text)}"


def _cut(text: str) -> bool:
    """Whether it is the beginning of JSON, as far as it goes."""
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        return problem.pos >= len(text.rstrip()) - 1 or "Unterminated" in problem.msg
    except RecursionError:
        return False
    return False


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"
