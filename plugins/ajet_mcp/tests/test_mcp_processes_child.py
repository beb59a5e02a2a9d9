"""A process on pipes is the same on every event loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from ajet_mcp.processes import started

SCRIPT = """
sleep 600 < /dev/null > /dev/null 2>&1 &
echo $! > /dev/stderr
read line < /dev/stdin
echo "$line" > /dev/stdout
exit 3
"""


def on_uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


LOOPS = [asyncio.new_event_loop, pytest.param(on_uvloop, marks=pytest.mark.skipif(not find_spec("uvloop"), reason="-"))]


@pytest.mark.parametrize("loop", LOOPS)
def test_it_ends_for_us_when_it_ends_whatever_it_has_started(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def play() -> None:
        child = await started(["sh", "-c", SCRIPT])
        other = int(await asyncio.wait_for(child.stderr.readline(), 60))
        try:
            child.stdin.write(b"a line\n")
            assert await asyncio.wait_for(child.stdout.read(), 60) == b"a line\n", "by the names of its pipes"
            await asyncio.wait_for(child.wait(), 60)
            os.kill(other, 0)
        finally:
            os.kill(other, signal.SIGKILL)
        assert child.returncode == 3
        child.let_go()
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            await started(["no-such-program"])
        with pytest.raises(FileNotFoundError, match="no-such-folder"):
            await started(["true"], cwd="/no-such-folder")

    made = loop()
    try:
        made.run_until_complete(play())
    finally:
        made.close()
