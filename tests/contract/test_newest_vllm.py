"""The newest vLLM server as an engine: its token route gives the ids and logprobs of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.vllm.remote import RemoteVllm
from ajet.schema.errors import UserError
from scripts.environments import get_environment
from tests.support.environments import find_environment_python
from tests.support.vllm_fixtures import VOCABULARY, unit_logprobs, vllm_server

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
VERSION = get_environment("vllm-newest").packages[0].partition("==")[2]
PROMPT = np.array([5, 6, 7], np.int32)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    arguments = ("--logprobs-mode", "processed_logprobs", "--enable-scale-out")
    with vllm_server(*arguments, python=find_environment_python("vllm-newest"), seconds=400) as address:
        yield address


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_replies_have_the_models_logprobs(url: str, temperature: float) -> None:
    assert httpx.get(f"{url}/version").json()["version"] == VERSION
    engine = RemoteVllm(url, vocabulary=VOCABULARY)

    async def sample() -> tuple[list[int], list[float], list[list[tuple[int, float]]]]:
        ids: list[int] = []
        logprobs: list[float] = []
        top: list[list[tuple[int, float]]] = []
        sampling = Sampling(8, temperature=temperature, top_logprobs=2)
        async for chunk in engine.generate(TokenRequest(PROMPT, sampling, DrawKey(0, 0, 0, 0))):
            ids, logprobs, top = ids + chunk.ids, logprobs + chunk.logprobs_unit, top + (chunk.top or [])
        return ids, logprobs, top

    ids, logprobs, top = asyncio.run(sample())
    assert len(ids) == 8 and np.allclose(logprobs, unit_logprobs(PROMPT, ids), atol=1e-4)
    assert [len(rows) for rows in top] == [2] * 8 and all(rows[0][1] >= rows[1][1] for rows in top)
    assert np.allclose(engine.score([*PROMPT.tolist(), *ids])[-8:], unit_logprobs(PROMPT, ids), atol=1e-4)


def test_a_server_without_the_route_says_how_to_start_it() -> None:
    with (
        vllm_server(python=find_environment_python("vllm-newest"), seconds=400) as address,
        pytest.raises(UserError, match="--enable-scale-out"),
    ):
        RemoteVllm(address, vocabulary=VOCABULARY)
