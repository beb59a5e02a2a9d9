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
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # ::ffff:127.0.0.1 counts as 127.0.0.1


def parse_netloc(url: str) -> str:
    """Return host and port of a URL, for comparison with a Host header, or "" on failure."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def parse_header_host(value: str) -> str | None:
    """Return the host of a Host or Origin header without scheme and port, or None for an invalid value."""
    match = _AUTHORITY.fullmatch(value)
    return None if match is None else match["name"] or match["address"]


def list_loopback_hosts(host: str, port: int) -> frozenset[str]:
    """Return all Host header values (`host:port`) that a server listening on loopback accepts.

    A page of another site may point its own host name at loopback (DNS rebinding); its requests carry that name in the
    Host header, and are refused.
    """
    # An IPv6 address stands in brackets.
    return frozenset(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in {*LOOPBACK, host.lower()})


def require_key_or_loopback(host: str, *, keyed: bool, name: str, do: str) -> None:
    """Raise UserError if a server without a key would be reachable from other machines.

    Args:
        host: The address that the server listens on.
        keyed: True if the server requires a key.
        name: What the server is, for the message.
        do: How to set a key, for the message.
    """
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
    """Return the first IPv4 address of an active network interface that is not loopback, or None without one."""
    import psutil

    active_interfaces = {name for name, state in psutil.net_if_stats().items() if state.isup}
    all_addresses = (
        address
        for name, addresses in psutil.net_if_addrs().items()
        if name in active_interfaces
        for address in addresses
    )
    ipv4_addresses = (address.address for address in all_addresses if address.family == socket.AF_INET)
    return next((candidate for candidate in ipv4_addresses if not is_loopback(candidate)), None)


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
    """Return the URL unchanged, or raise ConfigError if it has no allowed scheme, no host or an invalid port.

    Args:
        where: The configuration key, for the message.
        what: The kind of server, for the message.
        expected: An example of a valid URL, for the message.
    """
    if parse_address(url, schemes) is None:
        raise ConfigError(f"{url!r} is not the URL of {what}.", where=where, expected=expected)
    return url


def parse_origin(url: str) -> tuple[str, str, int | None]:
    """Return (scheme, host, port) of a URL, with the scheme's default port if it names none.

    Raises:
        ValueError: The URL or its port is invalid.
    """
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def find_tool_kind(url: str) -> ToolKind | None:
    """Return the protocol that the last path segment of a tool server's URL stands for, or None for another URL."""
    parts = parse_address(url)
    return None if parts is None else _BY_ENDING.get(parts.path.rstrip("/").rpartition("/")[2])
