"""External services (tool servers, model servers, …) that a run needs to be reachable.

Invariant: `Plugin.services` is the complete list of functions that derive required services from an experiment. A run
and a dry run check all services before anything costly starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ajet.schema.bounded_json import load_json


@dataclass(frozen=True)
class RequiredService:
    """An external service that the run calls, with the check of its reachability."""

    name: str
    """Description of the service, for example "environment service"."""
    address: str
    key: str
    """The configuration key of the address."""
    find_problem: Callable[[float], str]
    """Takes a timeout in seconds. Returns "" if the service works, else the problem."""
    expected: str
    do: str


def find_model_problem(base_url: str, model: str, key: str | None, seconds: float, *, named: str) -> str:
    """Return why an OpenAI-compatible server cannot be used, or "" if it can.

    A model that the server does not list is only a warning, because some servers accept unlisted names.

    Args:
        base_url: Address of the server, ending in /v1.
        model: Name of the model.
        key: API key. None: no key is sent.
        seconds: Timeout.
        named: The server's name, for the warning.
    """
    import httpx
    from loguru import logger

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{base_url}/models", headers=headers, timeout=seconds)
    except (httpx.ReadTimeout, httpx.WriteTimeout):
        return f"the server hangs: it accepted the request and sent nothing for {seconds:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    if response.status_code in (401, 403):
        return f"the server refuses the API key (status {response.status_code})"
    if response.status_code >= 500 or 300 <= response.status_code < 400:
        return f"it answers {response.status_code}"
    if response.status_code == 200 and response.headers.get("content-type", "").startswith("text/html"):
        return "the server answers with an HTML page: the address may be a login page or belong to another program"
    try:
        served = (
            [str(entry["id"]) for entry in load_json(response.content)["data"]] if response.status_code == 200 else []
        )
    except (ValueError, KeyError, TypeError):
        return ""
    if served and model not in served:
        logger.warning("the server {} does not list the model {}; it lists {}", named, model, ", ".join(served[:5]))
    return ""
