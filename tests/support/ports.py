"""Ports for servers that a test starts by number.

Invariant: `free_port` gives each port once, and only such as the kernel never hands out by itself (those from 32768 on
go to whoever connects or asks for port 0): between the choice and the server's start nobody else takes it. Workers
choose from ranges of their own.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

EACH = 1500
"""Ports of one worker."""
FIRST, WORKERS = 20_000, 8
_FROM = FIRST + EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS)
_ports = (_FROM + number % EACH for number in itertools.count(random.randrange(EACH)))  # another suite may run here


def free_port() -> int:
    """One on which nothing listens."""
    for port in itertools.islice(_ports, EACH):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError(f"no port from {_FROM} on is free")
