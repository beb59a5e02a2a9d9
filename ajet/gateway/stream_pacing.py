"""StreamPacing: how long a stream collects tokens before it sends the next event.

Invariant: with few clients each token is sent as it comes. With many, all streams together send a bounded number of
events per second, and fewer while the event loop runs late: what it cannot send in time would only be later in more
pieces. It belongs to the gateway's loop.
"""

from __future__ import annotations

_FEW_CLIENTS = 16
_EVENTS = 10_000
"""Events per second of all streams together; one loop cannot send more."""
_LATENESS_FACTOR = 6
"""The extra delay, as a multiple of the loop's lateness: fewer events complete all replies sooner."""
_MAX_DELAY = 1.0
"""Seconds of extra delay at most: a process that was suspended for minutes is not late by itself."""
_WINDOW = 64
"""The extra delay is a moving average over about so many samples."""


class StreamPacing:
    """Counts the clients of one gateway and derives the interval between two events of a stream."""

    def __init__(self) -> None:
        self.clients = 0
        """Requests that wait for their replies."""
        self._delay = 0.0

    def add_lateness(self, seconds: float) -> None:
        """Record by how many seconds a stream that collected tokens woke up late."""
        self._delay += (min(_LATENESS_FACTOR * seconds, _MAX_DELAY) - self._delay) / _WINDOW

    @property
    def is_busy(self) -> bool:
        """True if so many clients wait that tokens which arrived together are parsed and sent together."""
        return self.clients > _FEW_CLIENTS

    @property
    def flush_interval(self) -> float:
        """Seconds for which a stream collects tokens before it sends again; 0: it sends them as they come."""
        return self.clients / _EVENTS + self._delay if self.clients > _FEW_CLIENTS else 0.0
