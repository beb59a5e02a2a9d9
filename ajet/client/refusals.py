"""Define the errors of the client.

Invariant: every error between client and server is an instance of these classes.
"""

from __future__ import annotations


class Refused(Exception):
    """The server answered with a refusal of the request."""

    def __init__(self, status: int, code: str, message: str, param: str = "") -> None:
        """Create the error.

        Args:
            status: HTTP status.
            code: The server's code of the error; "" without one.
            message: The server's message.
            param: The field of the request that is wrong; "" for none.
        """
        super().__init__(f"{message} (HTTP {status}{', ' + code if code else ''})")
        self.status = status
        self.code = code
        self.message = message
        self.param = param


class EpisodeLost(Refused):
    """The episode no longer exists: time limit, server restart, or another server. Play a new episode."""


class Unreachable(Exception):
    """No answer within the client's patience."""
