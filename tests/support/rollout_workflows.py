"""Workflows for the tests of rollout/, in a module of their own so that another process can import them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from ajet import Task, Workflow, WorkflowOutput, WorkflowTask

RELEASE = threading.Event()
"""Lets the hanging workflows of this process go."""
HANGS = "AJET_TEST_HANGS"
"""Names the file that what hangs makes once it does."""


def hang_begins() -> None:
    """For a test that waits for this and not for a time."""
    if HANGS in os.environ:
        Path(os.environ[HANGS]).touch()


async def ask(tuner: Any, text: str, **more: Any) -> str:
    """One question to the model over the OpenAI SDK."""
    client = tuner.as_raw_openai_sdk_client(**more)
    reply = await client.chat.completions.create(messages=[{"role": "user", "content": text}])
    return str(reply.choices[0].message.content)


class Asks(Workflow):
    """Asks once."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        print(f"playing {task.task_tag}")
        return WorkflowOutput(metadata={"answer": await ask(tuner, task.task.main_query)}, log_metrics={"asked": 1})


async def asks(task: Task, tuner: Any) -> str:
    """A function that asks once."""
    return await ask(tuner, task.main_query)


def asks_blocking(task: Task, tuner: Any) -> float:
    """A plain one that sets the reward itself."""
    import requests

    endpoint = tuner.as_oai_baseurl_apikey()
    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": task.main_query}]}
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    reply = requests.post(f"{endpoint.base_url}/chat/completions", headers=headers, json=asked, timeout=30)
    return float(reply.json()["choices"][0]["message"]["content"] == "yes")


async def returns_a_number_of_its_own(task: Task, tuner: Any) -> complex:
    """Neither an answer nor a reward."""
    await ask(tuner, task.main_query)
    return 1j


class AsksBlocking(Workflow):
    """Asks by a blocking HTTP client inside an async function, as users' code does."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        import requests

        endpoint = tuner.as_oai_baseurl_apikey()
        reply = requests.post(
            f"{endpoint.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {endpoint.api_key}"},
            json={"model": endpoint.model, "messages": [{"role": "user", "content": "blocking"}]},
            timeout=30,
        )
        reply.raise_for_status()
        return WorkflowOutput(metadata={"answer": reply.json()["choices"][0]["message"]["content"]})


class AsksPlain(Workflow):
    """A plain function as `execute`, which runs an event loop of its own."""

    def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:  # type: ignore[override]
        return asyncio.run(Asks().execute(task, tuner))


def doubled(number: int) -> int:
    """A tool."""
    return 2 * number


class AsksInHelper(Workflow):
    """Uses asyncio.to_thread, and tools: from a thread beside, in a block, and one that fails."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        assert await asyncio.to_thread(tuner.tool(doubled), 4) == 8
        with tuner.tool("look", {"at": [1]}, call_id="c1", server="eyes") as running:
            running.result, running.whole = "much", "much more"
        with suppress(ConnectionError), tuner.tool("call", {}):
            raise ConnectionResetError("gone")
        with tuner.tool("call", {}) as running:
            running.result = "back"
        return WorkflowOutput(metadata={"answer": await ask(tuner, "x")})


class Converses(Workflow):
    """Five turns of one conversation."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.task.main_query}]
        for turn in range(5):
            reply = await client.chat.completions.create(messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": f"turn {turn}"})
        return WorkflowOutput(reward=1.0)


class Raises(Workflow):
    """Raises after a call."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "x")
        raise ZeroDivisionError("my own mistake")


class RaisesOnOdd(Workflow):
    """Only the odd repeats fail."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        answer = await ask(tuner, "x")
        if task.task_thread_index % 2:
            raise ValueError("odd")
        return WorkflowOutput(metadata={"answer": answer})


class Exits(Workflow):
    """Calls sys.exit."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "x")
        sys.exit(3)


class Garbles(Workflow):
    """Speaks in its worker's place: a pickle, which would make a file where it is believed."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "x")
        bomb = pickle.dumps((1, "ended", ("output", _Bomb(), [])))
        os.write(int(sys.argv[1]), len(bomb).to_bytes(4, "big") + bomb)
        await asyncio.sleep(600)
        raise AssertionError


class _Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path(os.environ[HANGS]),)


class Dies(Workflow):
    """Takes its whole process along."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        print("last words")
        os._exit(7)


class KillsBothOnce(Workflow):
    """The second of two in one process kills it while the first one waits; in the process after that both return."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        waits = Path(os.environ[HANGS])
        if not waits.with_suffix(".over").exists():
            await ask(tuner, "x")
            if task.task_thread_index == 0:
                waits.touch()
                await asyncio.Event().wait()
            while not waits.exists():
                await asyncio.sleep(0.01)
            waits.with_suffix(".over").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return WorkflowOutput(metadata={"answer": await ask(tuner, "x")})


class ReturnsNone(Workflow):
    """Forgets to return."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "x")
        return None  # type: ignore[return-value]


class ReturnsText(Workflow):
    """Returns the wrong type."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "x")
        return "yes"  # type: ignore[return-value]


class NeverCalls(Workflow):
    """Never asks the model."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        return WorkflowOutput(reward=1.0)


class CannotBeMade(Workflow):
    """Fails when an instance is made."""

    def __init__(self, **data: Any) -> None:
        raise RuntimeError("no instance")

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        return WorkflowOutput(reward=1.0)


class HangsAwaiting(Workflow):
    """Awaits what never comes."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        print("about to hang")
        await ask(tuner, "x")
        hang_begins()
        await asyncio.Event().wait()
        return WorkflowOutput()


class HangsBlocking(Workflow):
    """Blocks its thread until RELEASE (in another process: for ever)."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        print("about to hang")
        await ask(tuner, "x")
        hang_begins()
        RELEASE.wait()  # the line that blocks
        return WorkflowOutput()


class HangsPlain(Workflow):
    """Blocks in a plain function."""

    def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:  # type: ignore[override]
        print("about to hang")
        asyncio.run(ask(tuner, "x"))
        hang_begins()
        RELEASE.wait()
        return WorkflowOutput()


class HangsDeaf(Workflow):
    """Swallows its cancellation."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        print("about to hang")
        await ask(tuner, "x")
        hang_begins()
        while not RELEASE.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return WorkflowOutput()


class Judged(Workflow):
    """Two agents, one of which trains."""

    trainable_targets: list[str] | None = ["player"]

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "as referee", agent_name="referee")
        return WorkflowOutput(metadata={"answer": await ask(tuner, "as player", agent_name="player")})


OPENED = "AJET_TEST_OPENED"
"""Names the file that those below write to when they open and close something."""


def noted(what: str) -> None:
    with open(os.environ[OPENED], "a") as file:
        file.write(f"{what}\n")


@contextmanager
def plain_resource(name: str) -> Iterator[str]:
    noted(f"open {name}")
    yield name
    noted(f"close {name}")


@asynccontextmanager
async def async_resource(name: str) -> AsyncIterator[str]:
    """It wants to be left by the task that entered it, as those of anyio do."""
    task = asyncio.current_task()
    noted(f"open {name}")
    yield name
    noted(f"close {name}" if asyncio.current_task() is task else f"close {name} beside")


class Opens(Workflow):
    """Something of each kind, and goes on as its subclasses do."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        assert await tuner.resources.enter_async_context(async_resource("session")) == "session"
        tuner.resources.enter_context(plain_resource("folder"))
        tuner.resources.callback(noted, "close file")
        await ask(tuner, "x")
        await self.go_on()
        return WorkflowOutput(reward=1.0)

    async def go_on(self) -> None:
        return None


class OpensAndRaises(Opens):
    async def go_on(self) -> None:
        raise ValueError("broken")


class OpensAndAwaits(Opens):
    async def go_on(self) -> None:
        hang_begins()
        await asyncio.Event().wait()


class OpensAndHangs(Opens):
    async def go_on(self) -> None:
        hang_begins()
        RELEASE.wait()


class OpensPlain(Workflow):
    """In a plain function, which hangs."""

    def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:  # type: ignore[override]
        noted("open session")
        tuner.resources.callback(noted, "close session")
        tuner.resources.enter_context(plain_resource("folder"))
        tuner.resources.callback(noted, "close file")
        asyncio.run(ask(tuner, "x"))
        hang_begins()
        RELEASE.wait()
        return WorkflowOutput()


@contextmanager
def no_tool() -> Iterator[None]:
    raise FileNotFoundError("there is no such program")
    yield


class CannotOpen(Workflow):
    """Its tool does not start."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await ask(tuner, "x")
        tuner.resources.enter_context(no_tool(), boundary="tool")
        return WorkflowOutput()
