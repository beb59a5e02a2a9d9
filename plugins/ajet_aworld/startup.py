"""What this plug-in changes in a process that plays AWorld's agents, before user code is imported.

Invariant: nothing of it happens by `import ajet`. The kernel calls `start` (`Plugin.start`); a script's import of
`train` or of `ajet_aworld.agent_loop` calls it, too.
"""

from __future__ import annotations

from ajet_aworld import packages, quiet_import


def start() -> None:
    """Make AWorld's names importable, and its import quiet. Idempotent."""
    quiet_import.install_finder()
    packages.install_finders()
