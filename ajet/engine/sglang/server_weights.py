"""SglangWeights: what an SGLang server says of its weights, and how it is given others.

Every server has a name for its weights (`GET /model_info`) and loads a folder that lies on its machine
(`POST /update_weights_from_disk`) while no reply is under way: it breaks them off as it is given a name (its default,
`abort_all_requests`), and waits for those that began since. It names the weights itself, so a load and its name are
one: whoever loads last is the one whose name it bears.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ajet.engine.server_weights import ServerWeights

NAME = "/model_info"


class SglangWeights(ServerWeights):
    """See `ServerWeights`."""

    kind = "SGLang"
    expected = "a server of SGLang 0.5.23 or newer"
    cannot = "name for its weights"

    def name(self) -> str | None:
        """See `ServerWeights`; always one."""
        return str(self._fine(self._asked("GET", NAME)).get("weight_version"))

    def _load(self, folder: Path, name: str) -> str:
        load: dict[str, Any] = {"model_path": str(folder), "weight_version": name, "flush_cache": True}
        self._fine(
            self._asked("POST", "/update_weights_from_disk", load), f"to load {folder}, which must lie there too"
        )
        return str(self.name())
