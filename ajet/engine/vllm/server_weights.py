"""VllmWeights: what a vLLM server says of its weights, and how it is given others.

A server that was started with `VLLM_SERVER_DEV_MODE=1` has a name for its weights (`GET /weight_info`, which whoever
changes them sets) and loads a checkpoint folder that lies on its machine (`POST /collective_rpc`, reload_weights). One
without has neither, and its weights stay what they are until it is started anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ajet.engine.server_weights import ServerWeights

NAME = "/weight_info"
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"


class VllmWeights(ServerWeights):
    """See `ServerWeights`. A load and its name are two requests: who was stopped between them is noticed after."""

    kind = "vLLM"
    expected = f"a server of vLLM 0.28, started with {DEV_MODE} where its weights are to be changed"
    cannot = DEV_MODE

    def name(self) -> str | None:
        """See `ServerWeights`."""
        answer = self._asked("GET", NAME)
        return None if answer.status_code == 404 else str(self._fine(answer).get("weight_version"))

    def _load(self, folder: Path, name: str) -> str:
        reload: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._fine(self._asked("POST", "/collective_rpc", reload), f"to load {folder}, which must lie there too")
        self._fine(self._asked("POST", "/reset_prefix_cache"))
        return str(self.name())
