"""Names of this machine for itself."""

from __future__ import annotations

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts that no other machine reaches."""


def loopback_hosts(port: int) -> frozenset[str]:
    """What a request's Host header may say where a server listens on loopback alone: a page elsewhere that has a name
    of its own for this machine says another one."""
    return frozenset(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in LOOPBACK)
