from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ajet_aworld import tool_environment
from ajet_aworld.tool_environment import EpisodeTools
from ajet_mcp.thin.http import EPISODES


def test_a_cancelled_end_leaves_the_others_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt's resources are ended once more, and would otherwise find nothing left to end."""
    ended: list[str] = []
    is_ending, may_answer = threading.Event(), threading.Event()

    def answer(method: str, url: str, headers: Any, body: Any) -> tuple[int, dict[str, Any]]:
        if method == "POST" and url.endswith("/mcp"):
            return 200, {"result": {"_meta": {EPISODES: "/episodes"}}}
        if method == "POST":
            return 201, {"episode": url.split("//")[1][0], "path": "/mcp"}
        is_ending.set()
        may_answer.wait()
        ended.append(url)
        return 204, {}

    async def cancel_and_end() -> None:
        tools = EpisodeTools()
        for number in range(3):
            tools.begin(f"http://{number}.example/mcp", {})
        ending = asyncio.ensure_future(tools.end())
        await asyncio.to_thread(is_ending.wait)
        ending.cancel()
        await asyncio.wait([ending])
        may_answer.set()
        await tools.end()

    monkeypatch.setattr(tool_environment, "send_request", answer)
    asyncio.run(cancel_and_end())
    assert sorted(url[-1] for url in ended) == ["0", "1", "2"]
