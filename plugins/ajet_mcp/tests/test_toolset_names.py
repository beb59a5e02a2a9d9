"""Names of tools, each told once."""

import asyncio

import pytest
from loguru import logger

import ajet_mcp.toolset as toolset_module
from ajet_mcp.contract import Reply, Tool
from ajet_mcp.servers import Server
from ajet_mcp.toolset import Toolset


class OddClient:
    """A client of a server whose tools have these names and schemas."""

    def __init__(self, *tools, reply=None):
        self._tools, self._reply, self.called = tools, reply, []

    async def open(self, server, limits):
        return self

    async def tools(self):
        return list(self._tools)

    async def call(self, name, arguments, *, call_id=""):
        assert self._reply is not None, "a call whose check fails is not sent"
        self.called.append((name, arguments))
        return self._reply

    async def close(self):
        pass


async def _opened(*tools, client=None):
    async def count(text):
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolset_module, "ThinClient", lambda: client or OddClient(*tools))
        return await Toolset.open([Server("s", "http")], keep=lambda use: None, count=count)


def test_thousands_of_tools_of_one_name():
    long = [f"{'a' * 62}{number % 100:02d}" for number in range(10_000)]
    names = [*["x"] * 20_000, *long, *(f"s__x_{number}" for number in range(2, 1000))]

    async def run():
        async with await _opened(*(Tool(name, "", {}) for name in names)) as toolset:
            return [each["function"]["name"] for each in toolset.definitions]

    told = asyncio.run(run())
    assert len(set(told)) == len(names) and max(map(len, told)) <= 64
    assert told[:3] == ["s__x", "s__x_2", "s__x_3"]


def test_lattice_schema_leaves_the_loop_free():
    from tests.support.hostile_requests import lattice

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


def test_tool_of_unusable_schema_is_called_unchecked():
    odd = {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {}}}
    client = OddClient(
        Tool("odd", "", odd), Tool("plain", "", {"properties": odd["properties"]}), reply=Reply([], False)
    )
    warned = []

    async def run():
        for _ in range(2):
            async with await _opened(client=client) as toolset:
                assert not (await toolset.use("odd", '{"a": "no number"}')).error
                assert (await toolset.use("plain", '{"a": "no number"}')).error == "arguments"

    sink = logger.add(lambda message: warned.append(str(message)), level="WARNING")
    try:
        asyncio.run(run())
    finally:
        logger.remove(sink)
    assert client.called == [("odd", {"a": "no number"})] * 2
    assert sum("odd" in line and "patternProperties" in line for line in warned) == 1
