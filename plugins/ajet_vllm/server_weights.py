"""ServerWeights: reads the name of a remote server's weights, and loads other weights.

Invariant: a server's weights carry a placeholder name during a change and get the new name afterwards. Equal names
before and after a reply therefore prove which weights sampled it. Each load uses a fresh placeholder: another
placeholder after the load reveals a concurrent load, and the weights are then left unnamed, so that they are loaded
once more.
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

CHANGING = "ajet-changing"  # prefix of placeholder names
TIMEOUT = httpx.Timeout(600.0, connect=20.0)


class ConcurrentLoadError(AjetError):
    """Another process loaded weights at the same time; the server's weights are unknown."""


class ServerWeights(ABC):
    """The weights of the server at `base_url`. Usable from any thread."""

    kind: ClassVar[str]
    """Display name of the server's kind."""
    expected: ClassVar[str]
    """Expected server, for error messages."""
    cannot: ClassVar[str]
    """The feature missing in servers that cannot load weights."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        """Store the server's address, without a request.

        Args:
            headers: HTTP headers of each request, with the API key.
        """
        self._url, self._headers = base_url, headers

    @abstractmethod
    def name(self) -> str | None:
        """Return the name of the weights, or None if the server has no names and cannot load weights.

        Raises:
            UserError: the server cannot be reached or refuses.
        """

    @abstractmethod
    def _load_folder(self, folder: Path, name: str) -> str:
        """Load the weights in `folder` into the server.

        Args:
            name: name for the weights, for servers that set it in the same request.

        Returns:
            The server's name for its weights after the load: the previous one, or `name` if the load sets it.

        Raises:
            UserError: the server cannot be reached or refuses.
        """

    def give(self, folder: Path, name: str) -> None:
        """Load the weights in `folder` into the server and set their name to `name`.

        During the load the weights have a placeholder name, so that replies of that time are recognised.

        Raises:
            UserError: the server cannot be reached or refuses.
            ConcurrentLoadError: another process loaded weights at the same time.
        """
        changing = f"{CHANGING}-{secrets.token_hex(8)}"
        self.rename(changing)
        loaded_name = self._load_folder(folder, name)
        if loaded_name == changing:  # the load itself set no name, and nobody else did
            self.rename(name)
        elif loaded_name != name:  # another process renamed the weights: leave them without a known name
            self.rename(f"{CHANGING}-{secrets.token_hex(8)}")
            raise ConcurrentLoadError(
                f"another process loaded the weights {loaded_name} into {self._url} at the same time"
            )

    def rename(self, name: str) -> None:
        """Set the server's name for its weights, without changing them.

        Raises:
            UserError: the server cannot be reached or refuses.
        """
        self._parse_answer(self._send_request("POST", "/update_weight_version", {"new_version": name}))

    def _send_request(self, method: str, route: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send a request and return the response, whatever its status.

        Args:
            body: JSON body, or None for none.

        Raises:
            ServerAwayError: the server cannot be reached.
            UserError: the request failed otherwise.
        """
        try:
            with httpx.Client(base_url=self._url, headers=self._headers, timeout=TIMEOUT) as client:
                return client.request(method, route, json=body)
        except httpx.TransportError as error:
            raise self._build_refusal(f"{type(error).__name__}: {error}", route, ServerAwayError) from error
        except httpx.HTTPError as error:
            raise self._build_refusal(f"{type(error).__name__}: {error}", route) from error

    def _parse_answer(self, answer: httpx.Response, request: str = "") -> dict[str, Any]:
        """Return the JSON object of a response, or {} if it has none.

        Args:
            request: what the server was to do, for the error; by default the route.

        Raises:
            UserError: the server refused the request, or sent invalid JSON.
        """
        if answer.status_code >= 400:
            reason = f"status {answer.status_code}: {answer.text[:300]}"
            raise self._build_refusal(reason, request or answer.request.url.path)
        try:
            content = load_json(answer.content) if answer.content else {}
        except ValueError as error:
            raise self._build_refusal(f"invalid JSON: {answer.text[:100]!r}", answer.request.url.path) from error
        return content if isinstance(content, dict) else {}

    def _build_refusal(self, why: str, request: str, error_type: type[UserError] = UserError) -> UserError:
        """Build the error of a request that failed.

        Args:
            request: what the server was to do, as the end of "failed to ...".
        """
        return error_type(
            f"The {self.kind} server failed to {request}: {why}",
            where=f"ajet.rollout.vllm.base_url: {self._url}",
            expected=self.expected,
        )
