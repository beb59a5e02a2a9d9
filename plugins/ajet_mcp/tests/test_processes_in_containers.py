from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import Any

import pytest

from ajet_mcp import processes
from ajet_mcp.images import Contained
from ajet_mcp.processes import ServerProcess
from ajet_mcp.servers import Server
from tests.support.waiting import until


def test_a_start_that_is_given_up_while_the_engine_is_asked_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answers = threading.Event(), threading.Event()
    given: list[int] = []

    def contained(server: Any) -> Contained:
        asked.set()
        answers.wait()
        given.append(os.open(os.devnull, os.O_RDONLY))
        return Contained(("true",), "podman", "name", {}, given[0])

    def is_open() -> bool:
        with suppress(OSError):
            os.fstat(given[0])
            return True
        return False

    async def given_up() -> None:
        starting = asyncio.ensure_future(ServerProcess.start(Server("s", "stdio", image="image")))
        await asyncio.to_thread(asked.wait)
        starting.cancel()
        await asyncio.wait([starting])
        answers.set()
        assert await asyncio.to_thread(until, lambda: given and not is_open(), seconds=20)

    monkeypatch.setattr(processes, "contained", contained)
    asyncio.run(given_up())
