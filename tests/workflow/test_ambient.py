"""What a run changes in httpx, for clients that were given nothing, and that it ends with the run."""

from __future__ import annotations

import functools
import importlib
import os
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from ajet.schema.task import WorkflowOutput
from tests.support.rollouts import stage

VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
LIBRARIES = [importlib.import_module(name) for name in ("httpx", "httpx2") if find_spec(name) is not None]
KINDS: list[Any] = [kind for library in LIBRARIES for kind in (library.Client, library.AsyncClient)]


@pytest.fixture(autouse=True)
def unset_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def list_sends() -> list[Any]:
    return [kind.send for kind in KINDS]


class Asks:
    """It has neither address nor key but the environment's."""

    trainable_targets = None

    async def execute(self, task, tuner):
        address, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
        asked = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
            reply = await client.post(f"{address}/chat/completions", json=asked)
        reply.raise_for_status()
        return WorkflowOutput(reward=1.0)


class Raises(Asks):
    async def execute(self, task, tuner):
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("workflow", [Asks, Raises])
def test_httpx_is_restored_after_a_run(workflow: type[Any]) -> None:
    before = list_sends()
    for _ in range(2):
        with stage(workflow, isolation="thread", num_repeat=1) as made:
            during = list_sends()
            episode = made.episode()
        assert (episode.failure is None) == (workflow is Asks)
        assert not {*before} & {*during}
        assert list_sends() == before


def test_the_last_of_two_runs_restores_it() -> None:
    before = list_sends()
    with stage(Asks, isolation="thread", num_repeat=1) as first:
        with stage(Raises, isolation="thread", num_repeat=1):
            during = list_sends()
        assert list_sends() == during
        assert first.episode().failure is None
    assert list_sends() == before


def test_a_librarys_own_wrapper_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracers wrap httpx, too, and a run may begin before them."""
    sent: list[str] = []
    original = httpx.AsyncClient.send
    with stage(Asks, isolation="thread", num_repeat=1) as made:
        inner = httpx.AsyncClient.send

        @functools.wraps(inner)
        async def trace(self: Any, request: httpx.Request, *args: Any, **kwargs: Any) -> httpx.Response:
            sent.append(request.url.path)
            return await inner(self, request, *args, **kwargs)

        httpx.AsyncClient.send = trace  # type: ignore[method-assign]
        made.episode()
    assert httpx.AsyncClient.send is trace and len(sent) == 1
    with stage(Asks, isolation="thread", num_repeat=1) as made:
        assert made.episode().failure is None and len(sent) == 2
        httpx.AsyncClient.send = inner  # type: ignore[method-assign]  # the tracer ends
    assert httpx.AsyncClient.send is original
