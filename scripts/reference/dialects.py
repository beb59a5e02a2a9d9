"""The text of the generated page of dialects: what the gateway does with each field of a request.

Invariant: the fields are those that the dialects' modules take; each stands once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from ajet.gateway.ignored_fields import HINTS, HONOURED
from scripts.reference.surface.http_routes import DIALECTS

_HEAD = """\
# Fields of the dialects

<!-- Generated from the modules in ajet/gateway/dialects by `make docs`; change them there. -->

A request with another field gets status 400 in the protocol's error shape, with the field's name. `null` counts as
missing. [Dialects](../dialects.md) describes each protocol.

| Row | Meaning |
|---|---|
"""
_ROWS = {
    "Honoured": "In effect. For calls that train, `temperature`, `top_p`, `top_k` and `seed` come from the run, and "
    "the client's values are only recorded.",
    "Chat engines only": "Passed to a debug model or remote server. Refused in Completions, and where tokens are "
    "sampled here, unless null or the value in parentheses.",
    "One value": "Refused unless null or the value in parentheses.",
    "Noted": "Passed to a debug model or remote server. Elsewhere logged once and recorded, never refused.",
    "Without effect": "Accepted, logged once, not passed on.",
}
_TITLES = {
    "POST /v1/chat/completions": "Chat Completions",
    "POST /v1/completions": "Completions",
    "POST /v1/responses": "Responses",
    "POST /v1/messages": "Messages",
    "POST /v1beta/models/{model}:generateContent": "Gemini",
}


def dialects_md() -> str:
    """Return the page: one table of fields for each dialect."""
    lines = [_HEAD + "\n".join(f"| {title} | {meaning} |" for title, meaning in _ROWS.items()), ""]
    for route, module in DIALECTS.items():
        lines += [f"## {_TITLES[route]}", "", f"`{route}`", "", "| | Fields |", "|---|---|"]
        rows = zip(_ROWS, _group_fields(import_module(module)), strict=True)
        lines += [f"| {title} | {fields} |" for title, fields in rows if fields]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _group_fields(dialect: ModuleType) -> list[str]:
    """Return the fields of a dialect, a text for each of `_ROWS`."""
    neutral: Mapping[str, tuple[Any, ...]] = getattr(dialect, "NEUTRAL", {})
    only: Mapping[str, tuple[Any, ...]] = getattr(dialect, "ONLY_VALUES", {})
    chat = {name: values for name, values in neutral.items() if name not in HINTS | HONOURED}
    noted = sorted(neutral.keys() & HINTS)
    honoured = dialect.TAKEN - chat.keys() - only.keys() - {*noted, *dialect.INERT}
    return [
        _spell_fields(sorted(honoured)),
        ", ".join(_spell_neutral(name, values) for name, values in sorted(chat.items())),
        ", ".join(_spell_neutral(name, values) for name, values in sorted(only.items())),
        _spell_fields(noted),
        _spell_fields(sorted(dialect.INERT)),
    ]


def _spell_fields(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _spell_neutral(name: str, values: tuple[Any, ...]) -> str:
    return f"`{name}` ({', '.join(map(json.dumps, values))})" if values else f"`{name}`"
