"""Which instance of a server an episode gets, and when one is started."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ajet.schema.errors import BoundaryError, EnvironmentFailure, UserError
from ajet_environments.deployment.description import EnvironmentPart
from ajet_environments.deployment.instances import McpInstance, make_starter
from ajet_environments.deployment.workdirs import Workdirs
from ajet_environments.front.app import AccessRule, Front
from ajet_environments.front.episodes import FrontEpisodes, UnknownToolError
from ajet_environments.front.servers import InstancePool
from ajet_mcp.contract import CallFailedError, Reply
from ajet_mcp.servers import Server
from tests.support.mcp_fixtures import lives


class Instance:
    """One that says what was done to it."""

    tools = ({"name": "look"},)

    def __init__(self) -> None:
        self.is_alive = True

    async def call(self, name, arguments):
        return {"content": []}

    async def close(self) -> None:
        self.is_alive = False


def server(**settings) -> tuple[InstancePool, list[Instance]]:
    started: list[Instance] = []

    async def start(episode: str) -> Instance:
        await asyncio.sleep(0)
        started.append(Instance())
        return started[-1]

    return InstancePool("s", start, **settings), started


def test_who_comes_while_a_shared_one_is_started_gets_the_same():
    one, started = server(per="shared")

    async def take_three() -> None:
        assert len({id(each) for each in await asyncio.gather(*(one.take() for _ in range(3)))}) == 1
        started[0].is_alive = False
        assert len({id(each) for each in await asyncio.gather(*(one.take() for _ in range(3)))}) == 1

    asyncio.run(take_three())
    assert len(started) == 2, "the second in place of one that died"


def test_one_that_is_only_asked_for_its_tools_serves_no_episode():
    one, started = server(spare=0)

    async def play() -> Instance:
        await one.open()
        return await one.take("episode")

    taken = asyncio.run(play())
    assert one.tools and not started[0].is_alive and taken is started[1]


def test_one_whose_tools_are_known_is_started_when_it_is_needed():
    for per in ("episode", "shared"):
        one, started = server(per=per, spare=0, tools=[{"name": "look"}])
        asyncio.run(one.open())
        assert not started


def test_an_episode_that_is_called_while_another_idle_one_is_ended_stays():
    async def play() -> None:
        episodes = FrontEpisodes([], capacity=9, idle=900)
        gone, used = episodes.create(), episodes.create()
        gone.last_used = used.last_used = -900.0
        episodes.on_ended = lambda name: setattr(used, "last_used", time.monotonic())
        assert await episodes.reap() == 1 and episodes.find(used.name) is used and len(episodes) == 1

    asyncio.run(play())


GREETS = """
import json, os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
for line in sys.stdin:
    asked = json.loads(line)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "greets", "version": "1"}}
    answer = {"result": hello} if asked["method"] == "initialize" else {"error": {"code": -1, "message": "no list"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **answer}), flush=True)
"""


def test_one_that_starts_and_lists_no_tools_is_ended(tmp_path: Path):
    command = (sys.executable, "-I", "-S", "-c", GREETS, str(tmp_path / "pid"))
    part = EnvironmentPart("greets", server=Server("greets", "stdio", command=command))

    async def start() -> None:
        with pytest.raises(BoundaryError, match="the MCP server greets does not list its tools: no list"):
            await make_starter(part, Workdirs())("")
        assert not lives(int((tmp_path / "pid").read_text()))

    asyncio.run(start())


def test_there_are_never_more_than_allowed_and_those_who_wait_get_one_in_turn():
    one, started = server(limit=2, spare=1, reset="forget")
    got: list[int] = []

    async def play(number: int) -> None:
        instance = await one.take()
        got.append(number)
        assert len([each for each in started if each.is_alive]) <= 2
        await asyncio.sleep(0)
        if number == 2:
            instance.is_alive = False  # it died: another is started in its place
        await one.give_back(instance)

    async def all_of_them() -> None:
        await one.open()
        await asyncio.wait_for(asyncio.gather(*(play(number) for number in range(6))), 60)

    asyncio.run(all_of_them())
    assert got == list(range(6)) and one.used == 0
    assert len(started) == 3, "two, and one for the one that died"


def test_who_waits_in_vain_is_told_so_and_who_gives_up_takes_none_along():
    one, started = server(limit=1, spare=0, patience=0.05)

    async def play() -> None:
        held = await one.take()
        with pytest.raises(EnvironmentFailure, match="all 1 instances are in use, .* within 0.05 s"):
            await one.take()
        waiting, given_up = asyncio.create_task(one.take()), asyncio.create_task(one.take())
        await asyncio.sleep(0)
        await one.give_back(held)
        waiting.cancel(), given_up.cancel()  # the first has been given its turn, and has not heard of it
        await asyncio.wait([waiting, given_up])
        assert one.used == 0 and (await one.take()).is_alive

    asyncio.run(play())


def test_only_the_tools_that_are_named_are_shown_and_each_is_one_of_a_servers():
    class Two(Instance):
        tools = ({"name": "look"}, {"name": "leap"})

    async def start(episode: str) -> Instance:
        return Two()

    async def play(*shown: str) -> list[str]:
        episodes = FrontEpisodes([InstancePool("s", start)], capacity=1, idle=1, tools=shown)
        await episodes.open()
        episode = episodes.create()
        found = [tool["name"] for tool in episodes.list_tools(episode)]
        for name in {"look", "leap"} - set(found):
            with pytest.raises(UnknownToolError, match=name):
                await episodes.call(episode, name, {})
        return found

    assert asyncio.run(play()) == ["look", "leap"] and asyncio.run(play("leap")) == ["leap"]
    with pytest.raises(UserError, match="tool fly"):
        asyncio.run(play("fly"))


def test_a_request_that_found_an_episode_before_it_ended_takes_nothing():
    one, started = server(spare=0)

    async def play() -> None:
        await one.open()
        episodes = FrontEpisodes([one], capacity=1, idle=900)
        episode = episodes.create()
        await episodes.end(episode.name)
        with pytest.raises(EnvironmentFailure, match="the episode has ended"):
            await episodes.call(episode, "look", {})
        assert one.used == 0 and len(started) == 1, "the one that its tools were asked of"

    asyncio.run(play())


def test_an_episode_that_lost_a_server_is_answered_by_no_shared_one_either():
    one, _ = server(per="shared")

    async def play() -> None:
        await one.open()
        episodes = FrontEpisodes([one], capacity=1, idle=900)
        episode = episodes.create()
        assert await episodes.call(episode, "look", {})
        episode.lost = "another server is gone"
        with pytest.raises(EnvironmentFailure, match="another server is gone"):
            await episodes.call(episode, "look", {})

    asyncio.run(play())


def test_one_that_died_keeps_its_place_until_it_is_closed_and_none_is_started_after_the_end():
    one, started = server(limit=1, spare=1)
    gone = asyncio.Event()

    async def play() -> None:
        await one.open()
        started[0].is_alive, started[0].close = False, gone.wait
        taking = asyncio.create_task(one.take())
        await asyncio.sleep(0.01)
        assert len(started) == 1
        gone.set()
        taken = await asyncio.wait_for(taking, 60)
        await one.close()
        await one.give_back(taken)
        await asyncio.sleep(0.01)
        assert not one.starting and not one.waiting and [each.is_alive for each in started] == [False, False]
        with pytest.raises(EnvironmentFailure, match="is shutting down"):
            await one.take()

    asyncio.run(play())


class Session:
    """One that fails as it is told."""

    ended = False

    def __init__(self) -> None:
        self.problem: CallFailedError | None = None

    async def call(self, name, arguments):
        if self.problem is not None:
            raise self.problem
        return Reply([])


def test_a_call_of_a_shared_server_that_takes_too_long_costs_the_others_nothing():
    slow, huge, gone = (
        CallFailedError("slow", "timeout"),
        CallFailedError("huge", "too_large"),
        CallFailedError("gone", "transport"),
    )

    async def lives_after(*problems: CallFailedError | None, shared: bool = True) -> bool:
        session = Session()
        instance = McpInstance(session, [], shared=shared)
        for session.problem in problems:
            with suppress(CallFailedError):
                await instance.call("look", {})
        return instance.is_alive

    async def play() -> None:
        assert await lives_after(slow, slow, None, slow, huge, slow)
        assert not await lives_after(slow, slow, slow), "it hangs"
        assert not await lives_after(gone) and not await lives_after(slow, shared=False)

    asyncio.run(play())


def test_an_episode_that_is_being_reaped_as_the_environment_ends_is_ended_whole():
    """Its server closed, its folder gone: whoever looks after idle ones is no longer there to do it."""
    closing, may_close = asyncio.Event(), asyncio.Event()
    gone: list[str] = []

    class Slow(Instance):
        async def close(self) -> None:
            closing.set()
            await may_close.wait()
            await super().close()

    async def come() -> bool:
        instance = Slow()

        async def start(episode: str) -> Instance:
            return instance

        pool = InstancePool("s", start, tools=Instance.tools, spare=0)
        episodes = FrontEpisodes([pool], capacity=1, idle=0.01, on_ended=gone.append)
        front = Front("f", episodes, AccessRule(), {})
        episode = episodes.create()
        await episodes.call(episode, "look", {})
        front.start()
        await closing.wait()
        ending = asyncio.ensure_future(front.close())
        await asyncio.sleep(0)
        may_close.set()
        await ending
        return not instance.is_alive and gone == [episode.name]

    assert asyncio.run(asyncio.wait_for(come(), 60))
