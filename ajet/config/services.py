"""What a run stands on outside itself: one list, to which each feature that asks somebody else adds its own.

Invariant: the catalogue's `services` is the list. Each line names a function of the experiment that answers the
services it will ask; a launch and its dry run ask them all before anything costly starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ajet.schema.bounded_json import load_json


@dataclass(frozen=True)
class RequiredService:
    """Somebody who will be asked."""

    name: str
    """What it is, in words: "environment service"."""
    address: str
    key: str
    """Where the address was set."""
    find_problem: Callable[[float], str]
    """Given the seconds it may take: an empty string where it is there and will do, else what is wrong."""
    expected: str
    do: str


def find_model_problem(base_url: str, model: str, key: str | None, seconds: float, *, named: str) -> str:
    """An empty string where an OpenAI-compatible server is there, else what is wrong. A model that it does not list is
    said, by the server's name: some answer to names that they do not list."""
    import httpx
    from loguru import logger

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{base_url}/models", headers=headers, timeout=seconds)
    except (httpx.ReadTimeout, httpx.WriteTimeout):
        return f"it hangs: it took the request and sent nothing for {seconds:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        return f"{type(problem).__name__}: {problem}"
    if answer.status_code in (401, 403):
        return f"it refuses the key (status {answer.status_code})"
    if answer.status_code >= 500 or 300 <= answer.status_code < 400:
        return f"it answers {answer.status_code}"
    if answer.status_code == 200 and answer.headers.get("content-type", "").startswith("text/html"):
        return "it answers with a page of HTML, as a login or another program's address does"
    try:
        listed = [str(each["id"]) for each in load_json(answer.content)["data"]] if answer.status_code == 200 else []
    except (ValueError, KeyError, TypeError):
        return ""
    if listed and model not in listed:
        logger.warning("{} lists no model {}, but {}", named, model, ", ".join(listed[:5]))
    return ""
