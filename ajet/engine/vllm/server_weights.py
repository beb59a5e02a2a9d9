"""ServerWeights: what a vLLM server says of its weights, and how it is given others.

A server that was started with `VLLM_SERVER_DEV_MODE=1` has a name for its weights (`GET /weight_info`, which whoever
changes them sets) and loads a checkpoint folder that lies on its machine (`POST /collective_rpc`, reload_weights). One
without has neither, and its weights stay what they are until it is started anew.

Invariant: before a server's weights change its name for them is that of none, and it gets the new one only after; so
who sees one name before a reply and after it knows whose weights sampled it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from ajet.schema.errors import UserError

NAME = "/weight_info"
CHANGING = "ajet-changing"
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
TIMEOUT = httpx.Timeout(600.0, connect=20.0)


class ServerWeights:
    """Of the server at `base_url`. May be used from any thread."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._url, self._headers = base_url, headers

    def name(self) -> str | None:
        """The server's name for them; None: it has none, and they cannot be changed from here. Raises UserError."""
        answer = self._asked("GET", NAME)
        return None if answer.status_code == 404 else str(self._fine(answer).get("weight_version"))

    def give(self, folder: Path, name: str) -> None:
        """Let the server load the weights in `folder`, and call them `name`. Raises UserError."""
        self.rename(CHANGING)
        reload: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._fine(self._asked("POST", "/collective_rpc", reload), f"to load {folder}, which must lie there too")
        self._fine(self._asked("POST", "/reset_prefix_cache"))
        self.rename(name)

    def rename(self, name: str) -> None:
        """What they are called from here on. Raises UserError."""
        self._fine(self._asked("POST", "/update_weight_version", {"new_version": name}))

    def _asked(self, method: str, route: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            with httpx.Client(base_url=self._url, headers=self._headers, timeout=TIMEOUT) as client:
                return client.request(method, route, json=body)
        except httpx.HTTPError as error:
            raise self._refusal(f"{type(error).__name__}: {error}", route) from error

    def _fine(self, answer: httpx.Response, asked: str = "") -> dict[str, Any]:
        if answer.status_code >= 400:
            why = f"status {answer.status_code}: {answer.text[:300]}"
            raise self._refusal(why, asked or answer.request.url.path)
        try:
            found = answer.json() if answer.content else {}
        except ValueError as error:
            raise self._refusal(f"what is no JSON: {answer.text[:100]!r}", answer.request.url.path) from error
        return found if isinstance(found, dict) else {}

    def _refusal(self, why: str, asked: str) -> UserError:
        return UserError(
            f"The vLLM server cannot be asked {asked}: {why}",
            where=f"ajet.rollout.vllm.base_url: {self._url}",
            expected=f"a server of vLLM 0.28, started with {DEV_MODE} where its weights are to be changed",
        )
