"""Addresses: what one names, which are this machine's for itself, which other machines reach, who may listen for them.

Invariant: what no other machine reaches is decided here alone, and so is that a server of ours which others can reach
has a key. What can be no address is one ConfigError with the key it stands at; an address is a tool server's by the
last part of its path.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from ajet.schema.errors import ConfigError, UserError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""The usual names of this machine for itself."""
_AUTHORITY = re.compile(
    r"(?:[a-zA-Z][\w+.-]*://)?(?:\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII
)
_OUTSIDE = ("192.0.2.1", 9)
"""An address that nobody has (RFC 5737)."""


def is_loopback(host: str | None) -> bool:
    """Whether no other machine reaches it: `localhost`, ::1, all of 127.0.0.0/8. False for what is no such address as
    it is usually written, and for None."""
    if host is None or host.lower() == "localhost":
        return host is not None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def parse_netloc(url: str) -> str:
    """The host and port that a URL names ("" for none, and for what is no URL): an Origin's, to compare with a Host."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def parse_header_host(value: str) -> str | None:
    """The host that a Host header or an Origin names; None for what no client sends there: a user, a path, words."""
    found = _AUTHORITY.fullmatch(value)
    return None if found is None else found["name"] or found["address"]


def list_loopback_hosts(host: str, port: int) -> frozenset[str]:
    """What a request's Host header may say where a server listens at `host`, on loopback alone: a page elsewhere that
    has a name of its own for this machine says another one."""
    return frozenset(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in {*LOOPBACK, host.lower()})


def require_key_or_loopback(host: str, *, keyed: bool, name: str, do: str) -> None:
    """Raises UserError for a server that other machines would reach and that asks nobody for a key. `do`: how it comes
    to one."""
    if not keyed and not is_loopback(host):
        raise UserError(
            f"Other machines could reach this {name} at {host}, and it would ask nobody for a key.",
            where="--host",
            expected="a key, or an address that this machine alone reaches (127.0.0.1)",
            do=f"{do}; or leave --host out",
        )


def find_own_address() -> str:
    """The IPv4 address by which other machines, and containers of this one, reach it: that of the interface which leads
    out, else of the first that is up; loopback where there is no other. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(_OUTSIDE)  # it chooses the interface
            return str(asked.getsockname()[0])
        except OSError:
            return _find_first_interface() or "127.0.0.1"


def _find_first_interface() -> str | None:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    every = (each for name, found in psutil.net_if_addrs().items() if name in up for each in found)
    own = (each.address for each in every if each.family == socket.AF_INET)
    return next((each for each in own if not is_loopback(each)), None)


ToolKind = Literal["http", "sse", "dock"]
_PORTS = {"http": 80, "https": 443}
_BY_ENDING: dict[str, ToolKind] = {"mcp": "http", "sse": "sse", "mcpapi": "dock"}


def parse_address(url: str, schemes: tuple[str, ...] = ("http", "https")) -> SplitResult | None:
    """Its parts; None for what is no address with one of these schemes, a host, and a port that can be one."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if named else None


def require_address(
    url: str, where: str, what: str, expected: str, schemes: tuple[str, ...] = ("http", "https")
) -> str:
    """The address itself. Raises ConfigError for what is none, and so none of `what`."""
    if parse_address(url, schemes) is None:
        raise ConfigError(f"{url!r} is no address of {what}.", where=where, expected=expected)
    return url


def parse_origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address, the port also where it is the scheme's own. Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def find_tool_kind(url: str) -> ToolKind | None:
    """The protocol of the tool server at an http address; None where it is none's by its path."""
    parts = parse_address(url)
    return None if parts is None else _BY_ENDING.get(parts.path.rstrip("/").rpartition("/")[2])
