"""Prepares a process for AWorld's agents, before user code is imported.

Invariant: `import ajet` changes nothing. ajet's start calls `start` (`Plugin.start`), and so does a script's import of
`train` or of `ajet_aworld.agent_loop`.
"""

from __future__ import annotations

from ajet_aworld import packages, quiet_import


def start() -> None:
    """Make AWorld's names importable, and its import quiet. Idempotent."""
    quiet_import.install_finder()
    packages.install_finders()
