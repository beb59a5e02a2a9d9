"""ToolServer: a class with a server's tools as public methods.

Invariant: one object serves one process, so its attributes hold the state between calls.
"""

from __future__ import annotations

from .folder import Folder
from .settings import Settings
from .tool import Function


class ToolServer:
    """Settings and working folder of a server; each module has `tools = ITS_CLASS.tools`."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.folder = settings, Folder(settings)

    @classmethod
    def tools(cls, settings: Settings) -> list[Function]:
        """Create a server, and return its public methods as tools, in the order of their definition."""
        server = cls(settings)
        return [getattr(server, name) for name in vars(cls) if not name.startswith("_")]
