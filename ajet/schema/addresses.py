"""Addresses: which are this machine's for itself, which other machines reach it by, and who may listen for them.

Invariant: what no other machine reaches is decided here alone, and so is that a server of ours which others can reach
has a key.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from ajet.schema.errors import UserError

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


def host_of(url: str) -> str:
    """The host and port that a URL names ("" for none, and for what is no URL): an Origin's, to compare with a Host."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def hostname_in_header(value: str) -> str | None:
    """The host that a Host header or an Origin names; None for what no client sends there: a user, a path, words."""
    found = _AUTHORITY.fullmatch(value)
    return None if found is None else found["name"] or found["address"]


def loopback_hosts(host: str, port: int) -> frozenset[str]:
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


def own_address() -> str:
    """The IPv4 address by which other machines, and containers of this one, reach it: that of the interface which leads
    out, else of the first that is up; loopback where there is no other. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(_OUTSIDE)  # it chooses the interface
            return str(asked.getsockname()[0])
        except OSError:
            return _first_interface() or "127.0.0.1"


def _first_interface() -> str | None:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    every = (each for name, found in psutil.net_if_addrs().items() if name in up for each in found)
    own = (each.address for each in every if each.family == socket.AF_INET)
    return next((each for each in own if not is_loopback(each)), None)
