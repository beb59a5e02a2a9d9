"""Callers: which key a request bears, and which agent and target tag it names.

Invariant: the more particular word holds: a suffix of the model's name (`ajet@agent`, `ajet@agent:target`) over the
headers `x-ajet-agent` and `x-ajet-target` over what the key was given for. An agent that is named without a target is
its own target. A malformed name is refused, never guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.gateway.dialects.contract import Caller
from ajet.gateway.keys import Grant, Keys
from ajet.gateway.session import Session
from ajet.gateway.turn import Refused

Headers = Mapping[bytes, bytes]
PATH_KEY = "ajet.key"
"""In a scope: the key that its URL path held (`/s/KEY/v1/…`)."""
_LONGEST = 128


def grant_of(keys: Keys[Session], scope: Mapping[str, Any], headers: Headers) -> tuple[str, Grant[Session]]:
    """The key and what it stands for: that of the path, of `Authorization: Bearer`, of `x-api-key` or `api-key`,
    whichever is one. Raises Refused."""
    offered = [scope[PATH_KEY]] if PATH_KEY in scope else []
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        offered.append(secret.strip())
    offered += [headers[name].decode("latin-1") for name in (b"x-api-key", b"api-key") if name in headers]
    for known in offered:
        grant = keys.find(known)
        if grant is not None:
            return known, grant
    client = headers.get(b"user-agent", b"").decode("latin-1")[:_LONGEST]
    return "", keys.look_up(offered[0] if offered else None, client=client)


def caller_of(grant: Grant[Session], headers: Headers, body: Mapping[str, Any]) -> Caller:
    """The caller behind a request: agent and sampling by key, headers or model name. Raises Refused."""
    agent, target = _from_model(body.get("model"), grant.session.model_name)
    if agent is None:
        agent = _header(headers, b"x-ajet-agent")
    if target is None:
        target = _header(headers, b"x-ajet-target")
    if target is None:
        target = grant.target if agent is None or agent == grant.agent else ""
    return Caller(grant.agent if agent is None else agent, target, grant.debug_model, grant.session.kept)


def _from_model(model: Any, served: str) -> tuple[str | None, str | None]:
    if not isinstance(model, str):
        return None, None
    name, at, suffix = model.rpartition("@")
    if not at or name not in (served, "ajet"):
        return None, None
    agent, colon, target = suffix.partition(":")
    return _checked(agent, "model"), _checked(target, "model") if colon else None


def _header(headers: Headers, name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else _checked(value.decode("latin-1").strip(), name.decode())


def _checked(name: str, param: str) -> str:
    if not name or len(name) > _LONGEST or not name.isprintable() or ":" in name:
        raise Refused(
            f"Invalid value for '{param}': expected names of 1 to {_LONGEST} printable characters without a colon.",
            param=param,
            code="invalid_value",
        )
    return name
