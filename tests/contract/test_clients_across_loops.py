"""A client library that keeps its connections for the whole process, under episodes that each have an event loop."""

import asyncio
import threading

import httpx
import pytest

from tests.gateway_fixtures import bench

pytestmark = pytest.mark.slow

langchain_openai = pytest.importorskip("langchain_openai")


@pytest.mark.parametrize("at_once", [False, True])
def test_langchain_with_a_connection_of_its_own_works_on_every_loop(at_once):
    said: list[str] = []

    def episode(endpoint) -> None:
        async def execute() -> None:
            async with httpx.AsyncClient() as http:
                model = langchain_openai.ChatOpenAI(
                    base_url=endpoint.base_url,
                    api_key=endpoint.api_key,
                    model="any",
                    max_retries=0,
                    http_async_client=http,
                )
                said.append((await model.ainvoke("Hello?")).content)

        asyncio.run(execute())

    with bench(lambda _: "Yes.") as stage:
        threads = [threading.Thread(target=episode, args=(stage.open()("a", "a", None),)) for _ in range(4)]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
    assert said == ["Yes."] * 4
