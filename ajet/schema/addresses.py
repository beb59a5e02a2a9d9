"""Parse addresses, find the machine's own addresses, and protect servers reachable from other machines.

Invariant: only this module decides whether an address is local, and whether a reachable ajet server needs a key. An
invalid address is a single ConfigError with the key. The last part of a path decides whether an address belongs to a
tool server.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from ajet.schema.errors import ConfigError, UserError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Host names and addresses that only this machine can reach."""
_AUTHORITY = re.compile(
    r"(?:[a-zA-Z][\w+.-]*://)?(?:\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII
)
_OUTSIDE = ("192.0.2.1", 9)
"""An address without a host (RFC 5737)."""


def is_loopback(host: str | None) -> bool:
    """Return True for `localhost`, ::1 and 127.0.0.0/8, and False for None and any other text."""
    if host is None or host.lower() == "localhost":
        return host is not None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def parse_netloc(url: str) -> str:
    """Return host and port of a URL, for comparison with a Host header, or "" on failure."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def parse_header_host(value: str) -> str | None:
    """Return the host of a Host header or an Origin, or None for an invalid value."""
    match = _AUTHORITY.fullmatch(value)
    return None if match is None else match["name"] or match["address"]


def list_loopback_hosts(host: str, port: int) -> frozenset[str]:
    """Return the valid Host headers of a server on loopback at `host`.

    Excluding all other names protects against DNS rebinding by a foreign page.
    """
    return frozenset(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in {*LOOPBACK, host.lower()})


def require_key_or_loopback(host: str, *, keyed: bool, name: str, do: str) -> None:
    """Raise UserError for a server without a key that other machines can reach. `do`: how to set a key."""
    if not keyed and not is_loopback(host):
        raise UserError(
            f"Other machines could reach the {name} at {host} without a key.",
            where="--host",
            expected="a key, or an address that only this machine can reach (127.0.0.1)",
            do=f"{do}; or omit --host",
        )


def find_own_address() -> str:
    """Return the machine's IPv4 address as seen by other machines and containers. Sends no packet.

    The address belongs to the interface with the outgoing route, else to the first active interface, else to loopback.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE)  # selects the outgoing interface
            return str(probe.getsockname()[0])
        except OSError:
            return _find_first_interface() or "127.0.0.1"


def _find_first_interface() -> str | None:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    every = (address for name, addresses in psutil.net_if_addrs().items() if name in up for address in addresses)
    ipv4 = (each.address for each in every if each.family == socket.AF_INET)
    return next((each for each in ipv4 if not is_loopback(each)), None)


ToolKind = Literal["http", "sse", "dock"]
_PORTS = {"http": 80, "https": 443}
_BY_ENDING: dict[str, ToolKind] = {"mcp": "http", "sse": "sse", "mcpapi": "dock"}


def parse_address(url: str, schemes: tuple[str, ...] = ("http", "https")) -> SplitResult | None:
    """Return the parts of a URL, or None without an allowed scheme, a host and a valid port."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_valid else None


def require_address(
    url: str, where: str, what: str, expected: str, schemes: tuple[str, ...] = ("http", "https")
) -> str:
    """Return the URL. Raise ConfigError if invalid. `what`: the kind of server."""
    if parse_address(url, schemes) is None:
        raise ConfigError(f"{url!r} is not the URL of {what}.", where=where, expected=expected)
    return url


def parse_origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address, with the scheme's default port. Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def find_tool_kind(url: str) -> ToolKind | None:
    """Return the protocol of a tool server at an http address, or None for other paths."""
    parts = parse_address(url)
    return None if parts is None else _BY_ENDING.get(parts.path.rstrip("/").rpartition("/")[2])
