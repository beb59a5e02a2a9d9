"""A two-turn tool-using episode that any client can play, and the proof of what was captured of it.

Invariant: the proof knows nothing of how the gateway renders, extends or merges. It builds the one right sequence by
itself (chat template, sampled ids as the script has them, chat template) and compares token by token. The script is
hostile to whatever re-encodes or re-renders a reply: each token is a single byte, which no encoder would write, the
JSON of the tool call has its own spaces and key order, and characters are split over tokens and stream chunks.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ajet.context_tracker import timelines
from ajet.engine.contract import Sampling
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_tokenizer
from ajet.engine.scripted import ScriptedEngine, ScriptedReply, scripted_logprob
from ajet.gateway import Capture, Gateway, Session
from ajet.schema.call import prompt_ids
from ajet.schema.endpoint import Endpoint
from ajet.tokens import Renderer
from ajet_proof.tokens.proof import prove as prove_record
from tests.support.chat_templates import tokenizer

SYSTEM = "You are a calculator."
QUESTION = "What is 40 ⊕ 2?"
MUSING = "The answer is no mystery: ⊕ is the add tool."
THOUGHT = "Let me add 40 ⊕ 2."
CALL = '<tool_call>\n{"arguments": {"b":2,  "a": 40}, "name":"add"}\n</tool_call>'
SECOND_CALL = '<tool_call>\n{"name": "add",  "arguments": {"a": 1, "b":  2}}\n</tool_call>'
FINAL = "The answer is 42 ✓."
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1/models/ajet",
}
VERSION = 3
END = "<|im_end|>"


class Cell(NamedTuple):
    """One cell of the table in docs/clients.md."""

    client: str
    dialect: str
    streaming: bool

    def __str__(self) -> str:
        return f"{self.client}-{self.dialect}-{'streaming' if self.streaming else 'whole'}"


@dataclass
class Told:
    """What the client told its user."""

    answer: str
    usage: list[tuple[int, int]] | None = None
    """Prompt and completion tokens of each call; None where the client does not say."""
    pieces: list[str] | None = None
    """Pieces of the last reply's text, as they arrived; None where the client does not show them."""
    around: list[str] | None = None
    """Where prompts are raw: the text that the client put before each reply, what was sampled apart."""


@dataclass
class Stage:
    """One episode, waiting to be played."""

    endpoint: Endpoint
    session: Session
    gateway: Gateway
    renderer: Renderer
    replies: list[list[int]]
    """What the model samples, call by call."""
    wire: list[tuple[str, bool]] = field(default_factory=list)
    """Path and whether events were sent, of each request that was answered with a reply."""

    @property
    def root(self) -> str:
        """The base URL without /v1, as Anthropic's clients take it."""
        return self.endpoint.base_url.removesuffix("/v1")


Play = Callable[..., "Told | Awaitable[Told]"]
"""Called with the stage and whether to stream."""


class Plays(dict[Cell, Play]):
    """A test module's cells of the table, with the function that plays each."""

    def cells(self, client: str, dialect: str, *ways: str) -> Callable[[Play], Play]:
        """Enters a play for `client` speaking `dialect`, for "whole" replies, "streaming" ones, or both."""

        def enter(play: Play) -> Play:
            for way in ways or ("whole", "streaming"):
                assert way in ("whole", "streaming")
                self[Cell(client, dialect, way == "streaming")] = play
            return play

        return enter


def cases(plays: Plays) -> list[tuple[Cell, bool]]:
    """The cells, and again for a model that thinks and calls tools in parallel.

    Not over Completions: there a reply is a text, thoughts and all.
    """
    return [(cell, thinking) for thinking in (False, True) for cell in plays if not thinking or _parsed(cell)]


def _parsed(cell: Cell) -> bool:
    return cell.dialect != "completions"


def all_plays() -> Plays:
    """The whole table: the plays of every tests/contract/test_clients_*.py that has any, and of the harnesses."""
    found = Plays()
    paths = sorted((Path(__file__).parents[1] / "contract").glob("test_clients_*.py"))
    for name in (*(f"tests.contract.{path.stem}" for path in paths), "ajet_harness.tests.test_presets"):
        module = importlib.import_module(name)
        if not hasattr(module, "PLAYS"):
            continue
        (mark,) = [mark for mark in module.test_its_episode_is_proven.pytestmark if mark.name == "parametrize"]
        played = [getattr(case, "values", (case,)) for case in mark.args[1]]  # some are marked
        played = [case[0] if len(case) == 1 else case for case in played]
        assert played in (list(module.PLAYS), cases(module.PLAYS)), f"{name} plays what it lists"
        assert found.keys().isdisjoint(module.PLAYS), f"{name} repeats a cell"
        found.update(module.PLAYS)
    return found


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}


class RawTalk:
    """An agent over Completions, which writes its model's chat format itself."""

    def __init__(self) -> None:
        self.around = [f"<|im_start|>user\n{QUESTION}{END}\n<|im_start|>assistant\n"]
        self.usage: list[tuple[int, int]] = []
        self._prompt = self.around[0]

    def asked(self) -> dict[str, Any]:
        """The next request."""
        return {"model": "gpt-3.5-turbo-instruct", "prompt": self._prompt, "max_tokens": 500}

    def heard(self, chunks: Sequence[Any]) -> Told | None:
        """The reply to it, in one object or in chunks; what the user is told if no tool was called."""
        pieces = [choice.text for chunk in chunks for choice in chunk.choices if choice.text]
        self.usage += [(chunk.usage.prompt_tokens, chunk.usage.completion_tokens) for chunk in chunks if chunk.usage]
        said = "".join(pieces)
        call = re.search("<tool_call>(.*)</tool_call>", said, re.DOTALL)
        if call is None:
            return Told(said, self.usage, pieces, self.around)
        after = f"\n<|im_start|>tool\n{add(**json.loads(call[1])['arguments'])}{END}\n<|im_start|>assistant\n"
        self.around.append(after)
        self._prompt += said + END + after
        return None


@cache
def tiny_tools() -> Any:
    """The tokenizer of embedded:tiny-tools, a real one."""
    return load_tokenizer(locate_model("embedded:tiny-tools"))


class _Wire:
    """Notes what crosses the wire; changes nothing."""

    def __init__(self, app: Any, seen: list[tuple[str, bool]]) -> None:
        self._app, self._seen = app, seen

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "POST" and message["status"] == 200:
                kind = dict(message["headers"]).get(b"content-type", b"")
                self._seen.append((scope["path"], kind.startswith(b"text/event-stream")))
            await send(message)

        await self._app(scope, receive, noted)


@contextmanager
def stage(
    texts: tuple[str, ...] = (f"{THOUGHT}\n{CALL}", FINAL),
    *,
    thinking: bool = False,
    engine: Callable[..., ScriptedEngine] = ScriptedEngine,
    version: int = VERSION,
) -> Iterator[Stage]:
    """A gateway whose model says `texts`, a byte a token and three tokens a chunk, over a real tokenizer; with
    `thinking`, over Qwen3's chat template, each reply after some reasoning, and the tool called twice at once."""
    renderer = Renderer(tokenizer("qwen3") if thinking else tiny_tools())
    if thinking:
        texts = tuple(
            f"<think>\n{MUSING}\n</think>\n\n{text}".replace(CALL, f"{CALL}\n{SECOND_CALL}") for text in texts
        )
    replies = [bytewise(renderer, text) for text in texts]
    script = [ScriptedReply(ids=ids, ended=False, chunk=3) for ids in replies]
    gateway = Gateway(engine(script, version=version), renderer, max_model_len=1 << 20, max_response_tokens=4000)
    wire: list[tuple[str, bool]] = []
    gateway.app = _Wire(gateway.app, wire)  # type: ignore[assignment]
    gateway.start()
    try:
        session = gateway.open("episode", key=(0, 0, 0), sampling=Sampling(4000, temperature=0.7), trainable=None)
        yield Stage(session("agent", "agent", None), session, gateway, renderer, replies, wire)
        session.close()
    finally:
        gateway.close()


def bytewise(renderer: Renderer, text: str) -> list[int]:
    """The text a byte a token (special tokens apart), then the end token."""
    alphabet = _byte_ids(renderer.tokenizer)
    ids: list[int] = []
    rest = text
    while rest:
        special = next((name for name in renderer.tokenizer.get_added_vocab() if rest.startswith(name)), None)
        if special is not None:
            ids.append(renderer.tokenizer.convert_tokens_to_ids(special))
            rest = rest[len(special) :]
            continue
        ids += [alphabet[byte] for byte in rest[0].encode()]
        rest = rest[1:]
    assert renderer.decode(ids) == text, "the script says what it should"
    assert ids != renderer.encode(text).tolist(), "and as no encoder would spell it"
    return [*ids, renderer.end_ids[0]]


@cache
def _byte_ids(tokenizer: Any) -> dict[int, int]:
    """Byte -> the token that stands for it alone."""
    found: dict[int, int] = {}
    for byte in range(256):
        shown = byte if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255 else None
        found[byte] = -1 if shown is None else tokenizer.convert_tokens_to_ids(chr(shown))
    hidden = [byte for byte in range(256) if found[byte] == -1]
    for at, byte in enumerate(hidden):  # as GPT-2 has it: bytes that do not print are moved above 255
        found[byte] = tokenizer.convert_tokens_to_ids(chr(256 + at))
    return found


def play_and_prove(cell: Cell, play: Play, *, expect: str = FINAL, **options: Any) -> None:
    """Play the episode with a real client and prove its capture."""
    with stage(**options) as on:
        told = told_by(play, on, cell.streaming)
        capture = on.session.close()
        prove(on, capture, told.around)
        prove_told(on, capture, cell, told, expect)
        prove_again(on, capture)


def prove_again(on: Stage, capture: Capture) -> None:
    """ajet's own proof finds every token right, and nothing it could not check."""
    again = prove_record(capture.calls, capture.messages, capture.tools, Renderer(on.renderer.tokenizer))
    assert again.ok, str(again)
    sampled, scaffolds = again.counts["sampled"], again.counts["scaffold"]
    assert sampled.tokens == sampled.checked == sampled.equal == sum(map(len, on.replies))
    assert scaffolds.equal == scaffolds.checked == scaffolds.tokens > 0 and not again.unchecked
    assert not again.forks and not again.counts["forked"].tokens


def told_by(play: Play, on: Stage, streaming: bool) -> Told:
    """Play it, sync or async."""
    told = play(on, streaming)
    return asyncio.run(_awaited(told)) if inspect.isawaitable(told) else told


async def _awaited(told: Awaitable[Told]) -> Told:
    return await told


def prove(on: Stage, capture: Capture, around: list[str] | None = None) -> None:
    """The episode is one timeline: the one right sequence, masked where it was sampled, token by token."""
    calls = capture.calls
    spoken = [on.renderer.decode(reply) for reply in on.replies]
    parsed = ["tool_calls" if "<tool_call>" in text else "stop" for text in spoken]
    assert [call.finish for call in calls] == (parsed if around is None else ["stop"] * len(spoken))
    assert {call.fork for call in calls} == {None}, "every turn extends the last verbatim"
    expected, mask = right_sequence(on, scaffold(on, capture) if around is None else around)
    found, untrained = timelines(calls)
    assert not untrained and len(found) == 1
    (line,) = found
    assert_same_tokens(on, line.ids.tolist(), expected)
    assert line.mask.tolist() == mask
    sampled = [token for reply in on.replies for token in reply]
    assert line.ids[line.mask].tolist() == sampled
    chosen = np.array([scripted_logprob(token) for token in sampled], np.float32)
    assert np.array_equal(line.logprobs[line.mask], chosen)
    assert np.array_equal(line.logprobs_unit[line.mask], 2 * chosen)
    assert set(line.versions[line.mask].tolist()) == {VERSION} and set(line.versions[~line.mask].tolist()) == {-1}
    assert all(call.trained and call.temperature == 0.7 for call in calls)


def right_sequence(on: Stage, around: list[str]) -> tuple[list[int], list[bool]]:
    """Ids and mask of the episode, from the script and the text before each of its replies."""
    ids: list[int] = []
    mask: list[bool] = []
    for text, reply in zip(around, on.replies, strict=True):
        put = on.renderer.tokenizer.encode(text, add_special_tokens=False)
        ids += put + reply
        mask += [False] * len(put) + [True] * len(reply)
    return ids, mask


def scaffold(on: Stage, capture: Capture) -> list[str]:
    """The text before each reply, by the chat template over the whole history."""
    last = capture.calls[-1]
    said = [on.renderer.decode(reply) for reply in on.replies]
    history: list[dict[str, Any]] = []
    for index in last.messages:
        message = capture.messages[index]
        if message["role"] == "assistant":  # the very text that was sampled, so that no tool call is spelled anew
            ordinal = sum(earlier["role"] == "assistant" for earlier in history)
            message = {"role": "assistant", "content": said[ordinal].removesuffix(END)}
        history.append({**message, "role": "system" if message["role"] == "developer" else message["role"]})
    text = on.renderer.tokenizer.apply_chat_template(
        history,
        tools=_fill_parameters(capture.tools[last.tools]) if last.tools is not None else None,
        add_generation_prompt=True,
        tokenize=False,
    )
    around: list[str] = []
    for reply in said[:-1]:
        before, found, text = text.partition(reply)
        assert found, f"the client's history does not hold {reply!r}"
        around.append(before)
    return [*around, text]


def _fill_parameters(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with an empty schema for those without parameters, as OpenAI reads them."""
    empty = {"parameters": {"type": "object", "properties": {}}}
    return [
        {**tool, "function": {**tool["function"], **({} if "parameters" in tool["function"] else empty)}}
        for tool in tools
    ]


def assert_same_tokens(on: Stage, found: list[int], expected: list[int]) -> None:
    """Equal, or the first position where they are not."""
    for position, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, (
            f"token {position}: {on.renderer.decode([one])!r} in the timeline, not {on.renderer.decode([other])!r}, "
            f"after {on.renderer.decode(expected[max(position - 20, 0) : position])!r}"
        )
    assert len(found) == len(expected), "one is the beginning of the other"


def prove_told(on: Stage, capture: Capture, cell: Cell, told: Told, expect: str) -> None:
    """What the client saw is what was captured, over the dialect and in the way that the cell names."""
    assert told.answer == expect
    calls = capture.calls
    path = PATHS[cell.dialect]
    if cell.dialect == "gemini":
        path += ":streamGenerateContent" if cell.streaming else ":generateContent"
    wire = [(sent.replace("/v1beta/", "/v1/"), streamed) for sent, streamed in on.wire]
    asked = [request for request in wire if request[0].startswith(path) and not request[0].endswith("count_tokens")]
    assert asked == [(path, cell.streaming)] * len(calls), on.wire
    if told.around is None:
        results = [capture.messages[index] for index in calls[-1].messages if capture.messages[index]["role"] == "tool"]
        wanted = sum(on.renderer.decode(reply).count("<tool_call>") for reply in on.replies[:-1])
        assert len(results) == wanted and "42" in results[0]["content"], "the tool ran and its result was told"
    if told.usage is not None:
        prompts = [len(full) for full in _prompts(capture)]
        assert told.usage == [(prompt, len(call.response_ids)) for prompt, call in zip(prompts, calls, strict=True)]
    if cell.streaming and told.pieces is not None:
        assert len(told.pieces) > 2 and "".join(told.pieces) == told.answer


def _prompts(capture: Capture) -> list[Any]:
    return [prompt_ids(capture.calls, call.index) for call in capture.calls]
