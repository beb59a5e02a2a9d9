"""Errors of the client.

Invariant: every error between client and server is one of these classes.
"""

from __future__ import annotations


class Refused(Exception):
    """The server has answered, and does not do it."""

    def __init__(self, status: int, code: str, message: str, param: str = "") -> None:
        """`param`: the field at fault."""
        super().__init__(f"{message} (HTTP {status}{', ' + code if code else ''})")
        self.status, self.code, self.message, self.param = status, code, message, param


class EpisodeLost(Refused):
    """The episode no longer exists: ended by its time limit, a server restart, or another server. Play another one."""


class Unreachable(Exception):
    """No answer within the client's patience."""
