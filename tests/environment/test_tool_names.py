"""Names of tools, each told once."""

import asyncio

from ajet.environment.mcp.contract import Tool
from ajet.environment.mcp.servers import Server
from ajet.environment.mcp.toolset import Toolset


class OddClient:
    """A client of a server whose tools have these names and schemas."""

    def __init__(self, *tools):
        self._tools = tools

    async def open(self, server, limits):
        return self

    async def tools(self):
        return list(self._tools)

    async def call(self, name, arguments, *, call_id=""):
        raise AssertionError("a call whose check fails is not sent")

    async def close(self):
        pass


async def _opened(*tools):
    async def count(text):
        return 0

    return await Toolset.open([Server("s", "http")], OddClient(*tools), keep=lambda use: None, count=count)


def test_thousands_of_tools_of_one_name():
    long = [f"{'a' * 62}{number % 100:02d}" for number in range(10_000)]
    names = [*["x"] * 20_000, *long, *(f"s__x_{number}" for number in range(2, 1000))]

    async def run():
        async with await _opened(*(Tool(name, "", {}) for name in names)) as toolset:
            return [each["function"]["name"] for each in toolset.told]

    told = asyncio.run(run())
    assert len(set(told)) == len(names) and max(map(len, told)) <= 64
    assert told[:3] == ["s__x", "s__x_2", "s__x_3"]


def test_lattice_schema_leaves_the_loop_free():
    from tests.hostile_requests import lattice

    async def run():
        ended = []
        async with await _opened(Tool("t", "", lattice(26))) as toolset:

            async def hostile():
                await toolset.use("t", "{}")
                ended.append("hostile")

            task = asyncio.ensure_future(hostile())
            for _ in range(3):  # it has begun
                await asyncio.sleep(0)
            ended.append("other")
            await task
        return ended

    assert asyncio.run(run()) == ["other", "hostile"]
