"""StreamPacing: how long a stream collects tokens before it sends the next event.

Invariant: with few clients each token is sent on arrival. With many clients, all streams together send a bounded number
of events per second, and fewer while the event loop runs late: more events would only be sent later. Belongs to the
gateway's loop.
"""

from __future__ import annotations

_FEW_CLIENTS = 16
_EVENTS = 10_000
"""Events per second of all streams together; one loop cannot send more."""
_LATENESS_FACTOR = 6
"""The extra delay, as a multiple of the loop's lateness: fewer events complete all replies sooner."""
_MAX_DELAY = 1.0
"""Longest extra delay in seconds: a process that was suspended for minutes is not overloaded."""
_WINDOW = 64
"""The extra delay is a moving average over about this many samples."""


class StreamPacing:
    """Counts the clients of one gateway, and derives how long a stream collects tokens before it sends an event."""

    def __init__(self) -> None:
        self.clients = 0
        """Requests that wait for their replies."""
        self._chunk_delay = 0.0

    def add_lateness(self, seconds: float) -> None:
        """Record by how many seconds a stream that collected tokens woke up too late: the measure of a busy loop."""
        self._chunk_delay += (min(_LATENESS_FACTOR * seconds, _MAX_DELAY) - self._chunk_delay) / _WINDOW

    @property
    def is_busy(self) -> bool:
        """True if many clients wait: tokens that arrived together are then parsed and sent together."""
        return self.clients > _FEW_CLIENTS

    @property
    def flush_interval(self) -> float:
        """Seconds in which a stream collects tokens before sending, or 0 for sending on arrival."""
        return self.clients / _EVENTS + self._chunk_delay if self.clients > _FEW_CLIENTS else 0.0
