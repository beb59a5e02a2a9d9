"""`gateway`: where the workflows' model calls arrive."""

from __future__ import annotations

from ajet.config.schema.base import SERVE, Section, key, nowhere
from ajet.config.schema.reasons import ONLY_SERVED


class Gateway(Section):
    """Where the workflows' model calls arrive."""

    host: str | None = key(None, "Address to listen on; null is the loopback interface.")
    port: int = key(0, "Port; 0 lets the kernel choose a free one.", ge=0, le=65535)
    idle_timeout: float | None = key(
        600.0,
        "Seconds without a model call after which an episode of `ajet serve` fails; null waits for ever.",
        idle={**nowhere(ONLY_SERVED), SERVE: None},
        gt=0,
    )
    max_calls: int = key(
        16384, "Model calls under way at once; a client that asks for more is told to come back (429).", ge=1
    )
    advertise: str = key("auto", "Host name that clients on other machines and in containers are given.")
