"""What a server says instead of an answer.

Invariant: whatever goes wrong between a client and its server is one of these.
"""

from __future__ import annotations


class Refused(Exception):
    """The server has answered, and does not do it."""

    def __init__(self, status: int, code: str, message: str, param: str = "") -> None:
        """`param`: the field at fault."""
        super().__init__(f"{message} (HTTP {status}{', ' + code if code else ''})")
        self.status, self.code, self.message, self.param = status, code, message, param


class EpisodeLost(Refused):
    """The server knows no such episode any more, or has ended it: by its time limit, or as it was started again; or
    another server has its place. Play another one."""


class Unreachable(Exception):
    """No answer within the client's patience."""
