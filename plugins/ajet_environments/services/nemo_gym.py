"""NeMo Gym's resource servers as a world, by HTTP: a cookie an instance, without their package.

Invariants: a row of their data is a task; its tools are what the agent is given, and a call is held against their names
and schemas before it is sent, once. What does not fit, or is answered as a bad request, is told in words. A server that
fails, or says that its reward measures nothing (`mask_sample`), fails the instance: that is no reward of 0.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from ajet.schema.bounded_json import load_json
from ajet.schema.json_schema import find_value_problem
from ajet_environments.services.hosted import Message, Opened, Stepped, as_reward, as_state, text_of
from ajet_environments.services.openenv import ANSWER_S, LONGEST, Broken

ROW = "responses_create_params"
"""What every row of theirs has: the request that opens the dialogue, in the form of OpenAI's Responses."""
TOLD = frozenset({200, 201, 202, 400, 409, 422})
"""Statuses of a tool whose answer is the agent's to read; its own bad request among them."""
OVER = "The episode is over."


class NemoGymWorld:
    """`url`: http://HOST:PORT of a resource server. `rows`: tasks by name; without them a task brings its row as its
    metadata."""

    def __init__(self, url: str, rows: Mapping[str, Mapping[str, Any]] | None) -> None:
        self.url, self._rows = url.rstrip("/"), rows
        self.name = f"NeMo Gym at {url}"

    def tasks(self, split: str) -> Sequence[str]:
        """See World: rows whose `split` is another are left out."""
        if self._rows is None:
            raise ValueError("the server lists no tasks: name the file with its rows (--data rows.jsonl)")
        return [name for name, row in self._rows.items() if row.get("split", split) == split]

    def instance(self) -> NemoGymInstance:
        """See World."""
        return NemoGymInstance(self.url, self._rows)


class NemoGymInstance:
    """See NemoGymWorld."""

    def __init__(self, url: str, rows: Mapping[str, Mapping[str, Any]] | None) -> None:
        self._url, self._rows = url, rows
        self._session: aiohttp.ClientSession | None = None
        self._row: Mapping[str, Any] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._output: list[dict[str, Any]] = []
        self._verified: Mapping[str, Any] | None = None
        """The answer to /verify for what was done so far."""
        self._over = False

    async def create(self, task_id: str, params: Mapping[str, Any]) -> Opened:
        """See Instance."""
        given = self._rows.get(task_id) if self._rows is not None else params.get("metadata")
        if not isinstance(given, Mapping) or not isinstance(given.get(ROW), Mapping):
            raise ValueError(f"task {task_id!r} has no row with `{ROW}`")
        self._row = given
        self._schemas = {tool["name"]: tool.get("parameters") or {} for tool in _functions(given[ROW])}
        jar = aiohttp.CookieJar(unsafe=True)  # of addresses that are numbers, too
        self._session = aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        status, body = await self._posted("seed_session", dict(given))
        if status >= 400:
            raise Broken(f"/seed_session was refused (status {status}): {body[:500]}")
        return Opened(_state(given[ROW]), {"tools": self._tools()})

    async def step(self, action: Message, params: Mapping[str, Any]) -> Stepped:
        """See Instance. The tool calls of a message are made, in their order, and their results are what is seen
        (`info["messages"]` has them apart); a message without any is the answer, which ends the episode."""
        if self._over:
            return Stepped(as_state(OVER), 0.0, True, {})
        self._verified = None
        calls = action.get("tool_calls")
        said = text_of(action) if action.get("content") else ""
        if said or not calls:
            self._output.append(_message(said))
        if not isinstance(calls, (list, tuple)) or not calls:
            self._over = True
            answer = await self._verify()
            return Stepped(as_state(OVER), _reward(answer), True, self._beside(answer))
        results, wrong = [], False
        for call in calls:
            content, fits = await self._called(call)
            wrong = wrong or not fits
            results.append({"role": "tool", "tool_call_id": str(call.get("id") or ""), "content": content})
        return Stepped(results, 0.0, False, {"messages": results, **({"invalid_action": True} if wrong else {})})

    async def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """See Instance: what the server says of what was done so far."""
        return _reward(await self._verify())

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        """See Instance."""
        return {"tools": self._tools()}

    async def release(self) -> None:
        """See Instance."""
        if self._session is not None:
            await self._session.close()

    async def _called(self, call: Mapping[str, Any]) -> tuple[str, bool]:
        """(what the agent reads, whether it was a call that fits)."""
        function = call.get("function") or {}
        name, told = str(function.get("name")), function.get("arguments")
        call_id = str(call.get("id") or f"call_{secrets.token_hex(8)}")
        spelled = told if isinstance(told, str) else json.dumps(told)
        self._output.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": spelled})
        content, fits = await self._answered(name, spelled)
        self._output.append({"type": "function_call_output", "call_id": call_id, "output": content})
        return content, fits

    async def _answered(self, name: str, spelled: str) -> tuple[str, bool]:
        if name not in self._schemas:  # and never one of the server's own paths
            return f"There is no tool {name}; there are {', '.join(self._schemas) or 'none'}.", False
        try:
            arguments = json.loads(spelled or "{}")
        except (ValueError, RecursionError):
            return "That was no action: its arguments are no JSON.", False
        why: str | None = "they are no object"
        if isinstance(arguments, dict):
            why = await asyncio.to_thread(find_value_problem, arguments, self._schemas[name])  # which may take a second
        if why is not None:
            return f"That was no action: its arguments do not fit: {why}.", False
        status, body = await self._posted(name, arguments)
        if status not in TOLD:
            raise Broken(f"the tool {name} answered status {status}: {body[:500]}")
        return body, status < 400

    async def _verify(self) -> Mapping[str, Any]:
        if self._verified is None:
            status, body = await self._posted("verify", {**self._row, "response": self._response()})
            try:
                answer = load_json(body) if status < 400 else None
            except (ValueError, RecursionError):
                answer = None
            if not isinstance(answer, dict):
                raise Broken(f"/verify answered status {status}: {body[:500]}")
            masked = answer.get("mask_sample")
            # older servers have no `mask_sample`, and give a reason only where the reward cannot be relied on
            if masked or (masked is None and answer.get("failure_reason")):
                why = answer.get("failure_reason") or answer.get("failure_kind") or "it does not say why"
                raise Broken(f"the server says that its reward is no measurement: {why}")
            self._verified = answer
        return self._verified

    def _response(self) -> dict[str, Any]:
        """The attempt as the Responses object that a NeMo Gym agent hands over."""
        asked = self._row[ROW]
        return {
            "id": f"resp_{secrets.token_hex(8)}",
            "object": "response",
            "created_at": time.time(),
            "model": str(asked.get("model") or "policy"),
            "output": self._output,
            "parallel_tool_calls": bool(asked.get("parallel_tool_calls", True)),
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": list(asked.get("tools") or []),
        }

    def _beside(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer without the reward and what it was sent."""
        return {name: value for name, value in answer.items() if name not in self._row and name != "response"}

    def _tools(self) -> list[dict[str, Any]]:
        kept = ("name", "description", "parameters")
        functions = [{name: tool[name] for name in kept if tool.get(name)} for tool in _functions(self._row[ROW])]
        return [{"type": "function", "function": each} for each in functions]

    async def _posted(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        assert self._session is not None, "created first"
        try:
            async with self._session.post(f"{self._url}/{path}", json=body, allow_redirects=False) as answer:
                raw = bytearray()
                async for part in answer.content.iter_chunked(1 << 16):
                    raw += part
                    if len(raw) > LONGEST:
                        raise Broken(f"the answer to /{path} is longer than {LONGEST >> 20} MiB")
                return answer.status, raw.decode(errors="replace")
        except asyncio.TimeoutError:  # on Python 3.10 no TimeoutError
            raise Broken(f"no answer to /{path} within {ANSWER_S:.0f} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise Broken(f"no answer to /{path} from {self._url}: {type(problem).__name__}: {problem}") from problem


def _functions(asked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [tool for tool in asked.get("tools") or [] if tool.get("type", "function") == "function"]


def _state(asked: Mapping[str, Any]) -> list[Message]:
    """The messages that open the dialogue."""
    given = asked.get("input") or ""
    told = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    if asked.get("instructions"):
        told.insert(0, {"role": "system", "content": asked["instructions"]})
    state = [{"role": each.get("role", "user"), "content": _text(each.get("content"))} for each in told]
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in state]


def _text(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    name = f"msg_{secrets.token_hex(8)}"
    return {"type": "message", "id": name, "role": "assistant", "status": "completed", "content": content}


def _reward(answer: Mapping[str, Any]) -> float:
    if answer.get("reward") is None:
        raise Broken(f"the answer to /verify holds no reward: {answer!r:.200}")
    return as_reward(answer["reward"], "the reward of /verify")
