"""What an address names, before anybody is asked there.

Invariant: what can be no address is one ConfigError with the key it stands at; an address is a tool server's by the
last part of its path, whatever stands behind that.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import SplitResult, urlsplit

from ajet.schema.errors import ConfigError

ToolKind = Literal["http", "sse", "dock"]
_PORTS = {"http": 80, "https": 443}
_BY_ENDING: dict[str, ToolKind] = {"mcp": "http", "sse": "sse", "mcpapi": "dock"}


def parts_of(url: str, schemes: tuple[str, ...] = ("http", "https")) -> SplitResult | None:
    """Its parts; None for what is no address with one of these schemes, a host, and a port that can be one."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if named else None


def checked(url: str, where: str, what: str, expected: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """The address itself. Raises ConfigError for what is none, and so none of `what`."""
    if parts_of(url, schemes) is None:
        raise ConfigError(f"{url!r} is no address of {what}.", where=where, expected=expected)
    return url


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address, the port also where it is the scheme's own. Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def tool_kind(url: str) -> ToolKind | None:
    """The protocol of the tool server at an http address; None where it is none's by its path."""
    parts = parts_of(url)
    return None if parts is None else _BY_ENDING.get(parts.path.rstrip("/").rpartition("/")[2])
