"""EnvService: the protocol of an environment service, with a connection per request.

Invariants: every request has a deadline and a byte limit, checked before parsing. Each request uses its own connection,
so a request is either unsent or possibly received. Possibly received requests are repeated only if idempotent; unsent
requests always may be. Errors are EnvironmentFailures that name address, request and response.
"""

from __future__ import annotations

import http.client
import json
import math
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ajet.config.other_models import read_api_key
from ajet.schema.addresses import parse_address
from ajet.schema.bounded_json import TooManyNodesError, load_json
from ajet.schema.errors import AjetError, EnvironmentFailure

TOKEN = "ENV_SERVICE_TOKEN"
"""Environment variable with the bearer token."""
SECONDS: Mapping[str, float] = {"create": 120.0, "step": 120.0, "evaluate": 120.0, "release": 10.0}
"""How long an answer may take, by request."""
OTHERWISE_S = 30.0
LONGEST = 16 << 20  # bytes of an answer
REPEATABLE = frozenset({"get_env_profile", "get_info", "evaluate", "release"})
"""Idempotent requests. `create` is excluded: some services refuse an existing instance."""
TRIES, PAUSE_S = 3, 0.2


@dataclass(frozen=True)
class EnvService:
    """An environment service, as an immutable value that can be pickled. Thread-safe."""

    url: str
    """http://HOST:PORT, optionally with a path prefix."""
    env_type: str = ""
    token: str | None = None
    """Bearer token. None: read ENV_SERVICE_TOKEN, if set."""
    seconds: float | None = None
    """Deadline of every request. None: the default per request."""

    def __repr__(self) -> str:
        return f"EnvService({self.url!r}, {self.env_type!r})"

    def task_ids(self, split: str) -> list[str]:
        """Return the ids of a split's tasks. Raises EnvironmentFailure."""
        answer = self.ask("get_env_profile", params={"split": split})
        task_id_list = answer.get("data", answer.get("task_ids"))
        if not isinstance(task_id_list, list):
            raise self.wrong("get_env_profile", f"contains no list of tasks: {_shorten_answer(answer)}")
        return [str(task_id) for task_id in task_id_list]

    def ask(
        self,
        request: str,
        *,
        task_id: str | None = None,
        instance_id: str | None = None,
        messages: Any = None,
        params: Mapping[str, Any] | None = None,
        within: float | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        A request that may have been received is repeated only if it is idempotent; an unsent request always is.

        Args:
            request: Name of the request, such as "step", which is also the path.
            within: Limit of all tries in seconds. None: only the limit of each try.

        Raises:
            EnvironmentFailure: no answer, a refusal, or an invalid answer.
        """
        fields = {
            "env_type": self.env_type or "default",
            "task_id": task_id,
            "instance_id": instance_id,
            "messages": messages if messages is not None else {},
            "params": dict(params or {}),
        }
        body = json.dumps(fields, default=str).encode()
        seconds = self.seconds or SECONDS.get(request, OTHERWISE_S)
        deadline = math.inf if within is None else time.monotonic() + within
        failure: _NotSentError | _UnansweredError | None = None
        for try_number in range(1, TRIES + 1):
            try:
                return self._send_once(request, body, max(0.001, min(seconds, deadline - time.monotonic())))
            except (_NotSentError, _UnansweredError) as error:
                failure = error
                if isinstance(error, _UnansweredError) and request not in REPEATABLE:
                    break
            pause = PAUSE_S * try_number
            if try_number == TRIES or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        raise EnvironmentFailure(f"the environment service at {self.url}, /{request}: {failure}") from failure

    def health(self, seconds: float) -> str:
        """Return "" if the service responds at all within `seconds`, with any status, else the problem as text."""
        try:
            connection = self._open_connection(seconds)
            connection.request("GET", self._request_path("healthz"), headers=self._build_headers())
            connection.getresponse()
        except (_NotSentError, OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        connection.close()
        return ""

    def _send_once(self, request: str, body: bytes, seconds: float) -> dict[str, Any]:
        """Send a request over a new connection and return the answer within `seconds`.

        Raises:
            _NotSentError: no connection.
            _UnansweredError: the request may have been received.
            EnvironmentFailure: the answer is a refusal or invalid.
        """
        deadline = time.monotonic() + seconds
        connection = self._open_connection(seconds)
        try:
            try:
                connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
                connection.request("POST", self._request_path(request), body, self._build_headers())
                response = connection.getresponse()
                answer_bytes = _read_body(connection, response, deadline)
            except TimeoutError:
                raise _UnansweredError(f"no answer within {seconds:.3g} s") from None
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}".removesuffix(": ")
                raise _UnansweredError(f"the connection broke before the answer was complete ({reason})") from error
        finally:
            connection.close()
        if len(answer_bytes) > LONGEST:
            raise self.wrong(request, f"is longer than {LONGEST >> 20} MiB; the rest was not read")
        return self._parse_answer(request, response.status, answer_bytes)

    def _parse_answer(self, request: str, status: int, raw: bytes) -> dict[str, Any]:
        """Return the JSON object of an answer. Raises EnvironmentFailure for a refusal or an invalid answer.

        Args:
            status: HTTP status.
            raw: Body of the answer.
        """
        try:
            answer = load_json(raw)
        except TooManyNodesError as error:
            raise self.wrong(request, f"is too large: {error}") from None
        except ValueError:
            text = raw[:200].decode(errors="replace")
            raise self.wrong(request, f"is not JSON (status {status}): {text!r}") from None
        # The failed release of an instance that does not exist any more is no refusal.
        if status >= 400 or not isinstance(answer, dict) or (answer.get("success") is False and request != "release"):
            raise self.wrong(request, f"refuses the request (status {status}): {_refusal_reason(answer)}")
        return answer

    def _open_connection(self, seconds: float) -> http.client.HTTPConnection:
        """Return an open connection to the service. Raises _NotSentError without one in `seconds`."""
        address = parse_address(self.url)
        if address is None or address.hostname is None:
            raise _NotSentError(f"{self.url} is not a URL such as http://127.0.0.1:8080")
        connection_class = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = connection_class(address.hostname, address.port, timeout=max(0.001, seconds))
        try:
            connection.connect()
        except (OSError, ssl.SSLError) as error:
            raise _NotSentError(f"no connection: {getattr(error, 'strerror', None) or error}") from error
        return connection

    def _request_path(self, request: str) -> str:
        """Return the URL path of a request, below the path of the service's address."""
        return f"{urlsplit(self.url).path.rstrip('/')}/{request}"

    def _build_headers(self) -> dict[str, str]:
        """Return the headers of a request, with the bearer token if there is one."""
        token = self.token if self.token is not None else read_api_key(TOKEN)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        return headers | {"Authorization": f"Bearer {token}"} if token else headers

    def wrong(self, request: str, what: str) -> EnvironmentFailure:
        """Return the failure of a request with an invalid answer. `what` follows "its answer": "is not JSON"."""
        return EnvironmentFailure(f"the environment service at {self.url}, /{request}: its answer {what}")


class _NotSentError(AjetError):
    """The request was not sent."""


class _UnansweredError(AjetError):
    """The request may have been received."""


def _read_body(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Return the body of a response, or a prefix longer than LONGEST of a body above this limit.

    Raises:
        TimeoutError: the deadline (monotonic time) has passed.
        http.client.IncompleteRead: the connection ended before the end of the body.
    """
    chunks: list[bytes] = []
    byte_count = 0
    while byte_count <= LONGEST:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(remaining)
        chunk = response.read1(1 << 16)
        if not chunk:
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            break
        chunks.append(chunk)
        byte_count += len(chunk)
    return b"".join(chunks)


def _refusal_reason(answer: Any) -> str:
    """Return the reason in a service's refusal, at most 1,000 characters; of a traceback only the last line."""
    if isinstance(answer, dict):
        for name in ("detail", "error", "message", "data"):
            if value := answer.get(name):
                reason = value.get("message", value) if isinstance(value, dict) else value
                lines = str(reason).strip().splitlines()
                return (lines[-1] if lines and lines[0].startswith("Traceback") else " ".join(lines))[:1000]
    return _shorten_answer(answer)


def _shorten_answer(answer: Any) -> str:
    """Return the first 200 characters of an answer, as Python code."""
    return f"{answer!r:.200}"
