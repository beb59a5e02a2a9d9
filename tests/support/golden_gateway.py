"""The gateways that answer the golden requests, over scripted engines.

Invariant: this is the only module of the golden requests that names a part of ajet. Whoever changes the gateway's
inside changes this module and nothing else of theirs; the requests, the recorded answers and the replay stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, cast
from urllib.parse import urlsplit

from ajet.engine.contract import Sampling, TokenChunk, TokenRequest
from ajet.engine.scripted import ScriptedChat, ScriptedEngine, ScriptedReply, scripted_logprob
from ajet.gateway import Gateway
from ajet.schema.call import Call, Ids, Terms
from ajet.schema.endpoint import FOREIGN_KEY
from ajet.schema.errors import EngineFailure, EngineHangs
from ajet.tokens import Renderer
from tests.support.chat_templates import tokenizer
from tests.support.image_fixtures import seeing_renderer

MODELS = ("text", "image", "chat", "full")
"""A text model; one that sees images; a chat engine without token ids; a text model whose gateway takes no call."""
MAX_MODEL_LEN, MAX_RESPONSE_TOKENS, MAX_CALLS, VERSION = 2000, 300, 100, 3
RUN = Sampling(200, temperature=0.9)
"""The sampling of the run, which holds for agents that are trained."""
CHUNK = 3
"""Tokens in each chunk of the engine."""
MOST_SPELLED = 500
"""Tokens that a record spells out; of more it has a digest."""
WAIT_S = 30.0
Reply = Mapping[str, Any]
"""One reply of the engine. `text` or, for a chat engine, `message`; `spelled`: sampled as one token a character;
`ended: false`: no end token; `fail`: the text after which the engine fails; `pause`: the text after which it waits;
`hang`: it does not answer in time; `crash`: a mistake of the engine's own."""


class GoldenEngine:
    """A TokenEngine that gives the queued replies in order, and can wait in the middle of one."""

    constrains = False
    version = VERSION
    max_model_len = MAX_MODEL_LEN

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.replies: deque[Reply] = deque()
        self.sampled: list[dict[str, Any]] = []
        """The sampling of each request, without what the engine's contract takes by default."""
        self.paused, self.resumed = threading.Event(), threading.Event()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """See TokenEngine."""
        if not self.replies:
            raise EngineFailure("no reply is queued")
        reply = self.replies.popleft()
        self.sampled.append(_describe_sampling(request))
        if reply.get("hang"):
            raise EngineHangs("no token for 60 seconds")
        if reply.get("crash"):
            raise RuntimeError("a mistake in the engine")
        engine = ScriptedEngine([self._scripted(reply)], end_id=self._renderer.end_ids[0], version=VERSION)
        pause = len(self._encode(reply["pause"], reply)) if "pause" in reply else -1
        count = 0
        async with aclosing(cast(Any, engine.generate(request))) as chunks:
            async for chunk in chunks:
                yield chunk
                count += len(chunk.ids)
                if count == pause:
                    self.paused.set()
                    while not self.resumed.is_set():
                        await asyncio.sleep(0.002)

    def weights_changed(self, version: int) -> None:
        """See TokenEngine."""

    def close(self) -> None:
        """See TokenEngine."""

    def _scripted(self, reply: Reply) -> ScriptedReply:
        fail_after = len(self._encode(reply["fail"], reply)) if "fail" in reply else None
        chunk = 1 if "pause" in reply else CHUNK
        ids = self._encode(reply["text"], reply)
        return ScriptedReply(ids=ids, ended=reply.get("ended", True), chunk=chunk, fail_after=fail_after)

    def _encode(self, text: str, reply: Reply) -> list[int]:
        parts = list(text) if reply.get("spelled") else [text]
        return [int(token) for part in parts for token in self._renderer.encode(part)]


class GoldenSession:
    """One episode at a gateway: where its clients send requests, what its engine answers, and what was recorded."""

    def __init__(self, server: GoldenGateway, options: Mapping[str, Any]) -> None:
        server.opened += 1
        self._server = server
        opened = {"trainable": None, **options}
        if end_on := opened.pop("end_on", None):  # a check that ends the episode at the first reply with this text
            opened |= {"inspect": _check_for(end_on), "terminate_on_inspect": True}
        self._session = server.gateway.open("episode", key=(7, server.opened, 1), sampling=RUN, **opened)
        endpoint = self._session("agent", "agent", None)
        self.keys = {
            "own": endpoint.api_key,
            "unknown": "0" * 32,
            "run": server.gateway.ambient.api_key,
            "another": FOREIGN_KEY,
        }
        self.address = urlsplit(endpoint.base_url).netloc
        self.is_closed = False
        self._first_sent = server.count_sent()

    @property
    def call_count(self) -> int:
        """The number of calls that the requests so far have made."""
        return self._session.calls

    def queue_replies(self, replies: list[Reply]) -> None:
        """Have the engine give these next."""
        self._server.queue_replies(replies)

    def wait_paused(self) -> None:
        """Wait until the engine waits in the middle of a reply."""
        if not self._server.engine.paused.wait(WAIT_S):
            raise TimeoutError("the engine has not reached its pause")

    def resume(self) -> None:
        """Let the engine go on."""
        self._server.engine.resumed.set()

    def wait_idle(self) -> None:
        """Wait until no request of the session is in flight."""
        deadline = time.monotonic() + WAIT_S
        while not self._session.idle:
            if time.monotonic() > deadline:
                raise TimeoutError("a request is still in flight")
            time.sleep(0.002)

    def close(self) -> None:
        """End the episode."""
        self.is_closed = True
        self._capture = self._session.close()

    def records(self) -> list[dict[str, Any]]:
        """The record of each call, in order, after the end of the episode."""
        return [self._server.describe_call(call) for call in self._capture.calls]

    def sent(self) -> list[dict[str, Any]]:
        """The requests that the engine got for this session: a chat engine's bodies, a token engine's sampling."""
        return self._server.list_sent()[self._first_sent :]


class GoldenGateway:
    """A started gateway of one model."""

    def __init__(self, model: str) -> None:
        assert model in MODELS, f"no model {model!r}; there are {', '.join(MODELS)}"
        renderer = seeing_renderer() if model == "image" else Renderer(tokenizer("qwen3"))
        self._renderer = renderer
        self.engine = GoldenEngine(renderer)
        self._chat = ScriptedChat(self._answer_chat) if model == "chat" else None
        self.opened = 0
        self.gateway = Gateway(
            self._chat or self.engine,
            None if self._chat else renderer,
            max_model_len=MAX_MODEL_LEN,
            max_response_tokens=MAX_RESPONSE_TOKENS,
            max_calls=0 if model == "full" else MAX_CALLS,
        ).start()

    def open(self, options: Mapping[str, Any]) -> GoldenSession:
        """Open a session. `options`: trainable, model_name, models as `Gateway.open` has them; end_on."""
        return GoldenSession(self, options)

    def close(self) -> None:
        """Stop serving."""
        self.gateway.close()

    def queue_replies(self, replies: list[Reply]) -> None:
        """Replace the queue of replies."""
        self.engine.replies = deque(replies)
        self.engine.paused.clear()
        self.engine.resumed.clear()

    def list_sent(self) -> list[dict[str, Any]]:
        """Every request that the engine got."""
        return self._chat.requests if self._chat else self.engine.sampled

    def count_sent(self) -> int:
        """The number of requests that the engine got."""
        return len(self.list_sent())

    def describe_call(self, call: Call) -> dict[str, Any]:
        """A call as a golden record: token ids as tokens, and only what differs from a usual call."""
        told: dict[str, Any] = {"call": call.index, "parent": call.parent, "prefix": call.prefix}
        told |= {"own": self._spell(call.suffix_ids), "reply": self._spell(call.response_ids)}
        told |= {"finish": call.finish, "logprobs": _describe_logprobs(call)}
        told |= {"versions": [list(run) for run in call.versions]}
        unusual = {
            "agent": (call.agent, "agent"),
            "target": (call.target, call.agent),
            "temperature": (call.temperature, RUN.temperature),
            "trained": (call.trained, True),
            "fork": (call.fork, None),
            "error": (call.error, None),
            "stop": (call.stop, None),
            "rejected": (call.rejected, None),
            "resumed": (call.resumed, 0),
            "checks": (list(call.checks), []),
            "extra": (call.extra, {"model": "ajet"}),
        }
        told |= {name: value for name, (value, usual) in unusual.items() if value != usual}
        usual_terms = asdict(Terms())
        terms = {name: value for name, value in asdict(call.terms).items() if value != usual_terms[name]}
        return told | ({"terms": terms} if terms else {})

    def _spell(self, ids: Ids) -> str:
        """Token ids as the vocabulary's own tokens, which hold no space: exactly one spelling for each list of ids."""
        tokens = self._renderer.tokenizer.convert_ids_to_tokens(ids.tolist())
        if len(tokens) <= MOST_SPELLED:
            return " ".join(tokens)
        digest = hashlib.blake2b(" ".join(tokens).encode(), digest_size=8).hexdigest()
        return f"{' '.join(tokens[:40])} ({len(tokens)} tokens, digest {digest})"

    def _answer_chat(self, request: dict[str, Any]) -> dict[str, Any] | str:
        reply = self.engine.replies.popleft()
        if "fail" in reply:
            raise EngineFailure("the server fails")
        return reply["message"] if "message" in reply else reply["text"]


def _check_for(text: str) -> Callable[[Call, dict[str, Any]], list[str]]:
    def check(call: Call, message: dict[str, Any]) -> list[str]:
        return ["planted"] if text in (message.get("content") or "") else []

    return check


def _describe_sampling(request: TokenRequest) -> dict[str, Any]:
    usual = asdict(Sampling(0))
    changed = {name: value for name, value in asdict(request.sampling).items() if value != usual[name]}
    changed.pop("stop_ids")
    return changed | ({"images": len(request.images)} if request.images else {})


def _describe_logprobs(call: Call) -> int | list[list[float]]:
    """The number of log-probabilities if they are the engine's, one pair a token; otherwise the values."""
    expected = [scripted_logprob(token) for token in call.response_ids.tolist()]
    drawn, unit = call.logprobs.tolist(), call.logprobs_unit.tolist()
    return len(drawn) if drawn == expected and unit == [2 * value for value in expected] else [drawn, unit]
