"""What a TokenEngine around another one has of it.

Invariant: what an engine can do and holds is the inner one's; who derives adds what happens to a request.
"""

from __future__ import annotations

from ajet.engine.contract import TokenEngine


class Around:
    """The part that engines around another one share."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine

    @property
    def constrains(self) -> bool:
        """The inner engine's."""
        return self._engine.constrains

    @property
    def version(self) -> int:
        """The inner engine's."""
        return self._engine.version

    @property
    def max_model_len(self) -> int:
        """The inner engine's."""
        return self._engine.max_model_len
