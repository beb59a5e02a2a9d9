from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ajet_aworld import tool_environment
from ajet_aworld.tool_environment import EpisodeTools


def test_who_is_cancelled_while_one_address_is_left_leaves_the_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt's resources ask again, and would find nothing left to end."""
    ended: list[str] = []
    asked, answers = threading.Event(), threading.Event()

    def exchange(method: str, url: str, *_: Any) -> tuple[int, dict[str, Any]]:
        asked.set()
        answers.wait()
        ended.append(url)
        return 204, {}

    async def cancelled() -> None:
        tools = EpisodeTools()
        tools._open_episodes = {f"http://there/episodes/{number}": {} for number in range(3)}
        ending = asyncio.ensure_future(tools.end())
        await asyncio.to_thread(asked.wait)
        ending.cancel()
        await asyncio.wait([ending])
        answers.set()
        await tools.end()

    monkeypatch.setattr(tool_environment, "send_request", exchange)
    asyncio.run(cancelled())
    assert sorted(url[-1] for url in ended) == ["0", "1", "2"]
