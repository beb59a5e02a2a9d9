"""ServerWeights: what a server elsewhere says of its weights, and how it is given others.

Invariant: before a server's weights change its name for them is that of none, and it gets the new one only after; so
who sees one name before a reply and after it knows whose weights sampled it. The name of none is another at each load:
who finds another one after its load was crossed by somebody else's, and lets the server have no name, so that it is
given weights again.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import httpx

from ajet.engine.remote_server import ServerAwayError
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import AjetError, UserError

CHANGING = "ajet-changing"
"""What the names of no weights begin with."""
TIMEOUT = httpx.Timeout(600.0, connect=20.0)


class ConcurrentLoadError(AjetError):
    """Somebody else gave the server weights while it got ours: nobody knows which it has."""


class ServerWeights(ABC):
    """The weights of the server at `base_url`. May be used from any thread."""

    kind: ClassVar[str]
    """The server's name, for people."""
    expected: ClassVar[str]
    """What an error says that should stand there."""
    cannot: ClassVar[str]
    """What a server lacks that cannot be given weights."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._url, self._headers = base_url, headers

    @abstractmethod
    def name(self) -> str | None:
        """The server's name for them; None: it has none, and they cannot be changed from here. Raises UserError."""

    @abstractmethod
    def _load_folder(self, folder: Path, name: str) -> str:
        """Let the server load the weights in `folder`. Answers what it calls its weights after it, as it is found
        there: the one from before, or `name` where a load gives it. Raises UserError."""

    def give(self, folder: Path, name: str) -> None:
        """Let the server load the weights in `folder`, and call them `name`. Raises UserError, Crossed."""
        changing = f"{CHANGING}-{secrets.token_hex(8)}"
        self.rename(changing)
        found = self._load_folder(folder, name)
        if found == changing:
            self.rename(name)
        elif found != name:
            self.rename(f"{CHANGING}-{secrets.token_hex(8)}")
            raise ConcurrentLoadError(f"somebody else gave {self._url} weights ({found}) while it was given {name}")

    def rename(self, name: str) -> None:
        """Give the server's weights another name. Raises UserError."""
        self._parse_answer(self._send_request("POST", "/update_weight_version", {"new_version": name}))

    def _send_request(self, method: str, route: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            with httpx.Client(base_url=self._url, headers=self._headers, timeout=TIMEOUT) as client:
                return client.request(method, route, json=body)
        except httpx.TransportError as error:
            raise self._build_refusal(f"{type(error).__name__}: {error}", route, ServerAwayError) from error
        except httpx.HTTPError as error:
            raise self._build_refusal(f"{type(error).__name__}: {error}", route) from error

    def _parse_answer(self, answer: httpx.Response, request: str = "") -> dict[str, Any]:
        if answer.status_code >= 400:
            why = f"status {answer.status_code}: {answer.text[:300]}"
            raise self._build_refusal(why, request or answer.request.url.path)
        try:
            found = load_json(answer.content) if answer.content else {}
        except ValueError as error:
            raise self._build_refusal(f"what is no JSON: {answer.text[:100]!r}", answer.request.url.path) from error
        return found if isinstance(found, dict) else {}

    def _build_refusal(self, why: str, request: str, kind: type[UserError] = UserError) -> UserError:
        return kind(
            f"The {self.kind} server cannot be asked {request}: {why}",
            where=f"ajet.rollout.vllm.base_url: {self._url}",
            expected=self.expected,
        )
