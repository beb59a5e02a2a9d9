"""Whoever stops computing leaves no worker of torch's behind, whose mere being there halves everyone's speed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ajet.engine import openmp
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model
from ajet.engine.transformers import TransformersEngine, engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(openmp.find_pause_function() is None, reason="torch has another OpenMP than GNU's"),
]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    openmp.end_worker_threads()  # of tests before
    yield
    openmp.end_worker_threads()
    torch.set_num_threads(before)


def test_the_library_is_found_wherever_it_lies() -> None:
    """In a folder with blanks in its name the engine did not start."""
    site = Path("/home/a b/site-packages")
    own, other = f"{site}/torch.libs/libgomp-1.so.1", "/usr/lib/libgomp.so.1.0.0"

    def found(*files: str) -> str | None:
        lines = [f"7f00-7f0{at} r-xp 00000000 08:01 1234                   {file}" for at, file in enumerate(files)]
        return openmp.find_libgomp(
            [line.rstrip() + "\n" for line in ["7f10-7f11 rw-p 00000000 00:00 0 ", *lines]], site
        )

    assert found(own, "/home/libgomp/of.so", own) == own == found(other, own)
    assert found(other) == other and found("", "/usr/lib/libc.so.6") is None
    assert found(other, "/opt/libgomp.so.1") is None, "which of them is torch's cannot be told"


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def loop_in_parallel() -> None:
    torch.zeros(1 << 20).add_(1.0)


def gone(team: set[str]) -> bool:
    ends = time.monotonic() + 60
    while team & threads() and time.monotonic() < ends:
        time.sleep(0.01)
    return not team & threads()


def test_a_team_is_left_and_made_again() -> None:
    for _ in range(3):
        before = threads()
        loop_in_parallel()
        team = threads() - before
        assert len(team) == 1
        openmp.end_worker_threads()
        assert gone(team)
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("leaves", [True, False])
def test_neither_the_engine_nor_who_pauses_it_keeps_one(monkeypatch: pytest.MonkeyPatch, leaves: bool) -> None:
    """Where neither leaves its team, both are there: what the other half of this test asserts is not so by itself."""
    if not leaves:
        monkeypatch.setattr(engine, "end_worker_threads", lambda: None)
    model: Any = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    openmp.end_worker_threads()
    before = threads()
    made = TransformersEngine(model, max_num_seqs=16)
    try:
        asyncio.run(_reply(made))
        with made.paused():
            loop_in_parallel()
        own = {str(made._thread.native_id)}
        if leaves:
            assert gone(threads() - before - own)
        else:
            assert len(threads() - before - own) == 2
    finally:
        made.close()


async def _reply(made: TransformersEngine) -> None:
    ids = np.arange(3, 203, dtype=np.int32)
    async for _ in made.generate(TokenRequest(ids, Sampling(4), DrawKey(1, 2, 0, 0))):
        pass
