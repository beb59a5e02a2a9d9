"""What ajet knows of this package before its code is loaded."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_ray",
    about="what the backbones `verl` and `trinity` share: cluster, mailbox, tickets, rows, record",
    packages=("ray",),
    extra="verl",
)
