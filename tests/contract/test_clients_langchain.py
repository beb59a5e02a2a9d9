"""LangChain and LangGraph, unmodified: ChatOpenAI over Chat Completions and Responses, ChatAnthropic.

The `langchain` rows are its `create_agent`; the `langgraph` rows a graph of one's own, a model node and a ToolNode.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.client_fixtures import QUESTION, SYSTEM, Cell, Plays, Stage, Told, add, cases, play_and_prove

pytestmark = pytest.mark.slow

PLAYS = Plays()
DIALECTS = ["chat", "responses", "anthropic"]


def model(on: Stage, dialect: str, streaming: bool) -> Any:
    if dialect == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model="ajet", base_url=on.root, api_key=on.endpoint.api_key, streaming=streaming)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="gpt-4o",
        base_url=on.endpoint.base_url,
        api_key=on.endpoint.api_key,
        use_responses_api=dialect == "responses",
        streaming=streaming,
        stream_usage=True,
    )


def add_tool() -> Any:
    from langchain_core.tools import tool

    return tool(add)


def agent_of_langchain(llm: Any) -> Any:
    from langchain.agents import create_agent

    return create_agent(llm, [add_tool()], system_prompt=SYSTEM)


def graph_of_langgraph(llm: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    bound = llm.bind_tools([add_tool()])

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke([("system", SYSTEM), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([add_tool()]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def play(on: Stage, streaming: bool, make: Callable[[Any], Any], dialect: str) -> Told:
    from langchain_core.messages import AIMessage, AIMessageChunk

    graph = make(model(on, dialect, streaming))
    pieces: list[str] | None = None
    asked = {"messages": [("user", QUESTION)]}
    if streaming:
        pieces = []
        state: Any = None
        last = None
        async for mode, news in graph.astream(asked, stream_mode=["messages", "values"]):
            if mode == "values":
                state = news
                continue
            message = news[0]
            if isinstance(message, AIMessageChunk):
                if message.id != last:
                    last = message.id
                    pieces.clear()
                pieces += [message.text] if message.text else []
    else:
        state = await graph.ainvoke(asked)
    said = [message for message in state["messages"] if isinstance(message, AIMessage)]
    usage = [(message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]) for message in said]
    return Told(said[-1].text, usage, pieces)


def enter(client: str, make: Callable[[Any], Any], dialect: str) -> None:
    @PLAYS.cells(client, dialect)
    async def played(on: Stage, streaming: bool) -> Told:
        return await play(on, streaming, make, dialect)


for each in DIALECTS:
    enter("langchain", agent_of_langchain, each)
    enter("langgraph", graph_of_langgraph, each)


@pytest.fixture(autouse=True)
def own_connections() -> Iterator[None]:
    """LangChain keeps an asynchronous client per address for the whole process, and the kernel may give the next
    stage's gateway the same port: its connections would be those of an event loop that is closed."""
    yield
    from langchain_anthropic import _client_utils as of_anthropic
    from langchain_openai.chat_models import _client_utils as of_openai

    of_anthropic._get_default_async_httpx_client.cache_clear()
    of_openai._cached_async_httpx_client.cache_clear()


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
