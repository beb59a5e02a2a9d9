"""What of an error of Ray reaches a person, and an episode's record."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.schema.errors import EngineFailure
from ajet_ray.cluster.ray_errors import read_last_line
from ajet_verl.agent.engine import ServerEngine

pytestmark = pytest.mark.verl


def test_an_error_of_another_process_is_its_last_line():
    ray = pytest.importorskip("ray")
    trace = "Traceback (most recent call last):\n  File 'x.py', line 1, in f\n    raise ValueError('no')\n"
    problem = ray.exceptions.RayTaskError("f", f"{trace}ValueError: no such token\n\n", ValueError("no such token"))
    assert read_last_line(problem) == "ValueError: no such token"
    assert read_last_line(ray.exceptions.RayActorError(error_msg="The actor died.")) == "The actor died."
    low = "4 worker(s) were killed due to the node running low on memory. Memory was 22.30GB used / 23.54GB limit"
    problem = ray.exceptions.OutOfMemoryError(f"{low}\nOOM kill reason: 95.0%\nRefer to the documentation on …")
    assert read_last_line(problem) == low


def test_one_that_says_nothing_is_its_kind():
    assert read_last_line(TimeoutError()) == "TimeoutError" and read_last_line(OSError(" \n")) == "OSError"


@pytest.mark.parametrize("kind", ["ActorDiedError", "ActorUnavailableError"])
def test_a_server_that_died_is_not_waited_for_as_one_that_may_come_back(kind: str) -> None:
    """verl starts none in its place: no attempt after this one would find another."""
    ray = pytest.importorskip("ray")
    given = {"ActorDiedError": (), "ActorUnavailableError": ("", bytes(16))}
    problem = getattr(ray.exceptions, kind)(*given[kind])

    class Client:
        async def generate(self, request_id, *, prompt_ids, sampling_params):
            raise problem

    async def asked() -> None:
        engine = ServerEngine(Client(), max_model_len=9, vocabulary=9, server="vllm")
        async for _ in engine.generate(TokenRequest(np.array([1]), Sampling(4), DrawKey(0, 0, 0, 0))):
            pass

    with pytest.raises(EngineFailure) as failed:
        asyncio.run(asked())
    assert failed.value.retryable is (kind != "ActorDiedError")
