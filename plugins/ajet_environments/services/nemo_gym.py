"""Adapter for resource servers of NeMo Gym, over HTTP with one cookie per rollout and without its package.

Invariants: a row of the data file is a task. The agent gets the row's tools. A call is checked against their names and
schemas before it is sent, once. An invalid call, or one that the server answers with a client error, gets a text reply.
A failing server, or a reward that the server marks as invalid (`mask_sample`), fails the instance and gives no reward.
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
from ajet_environments.services.hosted import InitialState, Message, StepResult, parse_reward, read_text, to_messages
from ajet_environments.services.openenv import ANSWER_S, MAX_ANSWER_BYTES, WorldServerError

ROW = "responses_create_params"
"""A field of every row: the opening request, in the form of OpenAI's Responses."""
READABLE_STATUSES = frozenset({200, 201, 202, 400, 409, 422})
"""Statuses of a tool with an answer for the agent, including its own bad requests."""
OVER = "The episode is over."


class NemoGymWorld:
    """The tasks of one resource server.

    Args:
        url: http://HOST:PORT of the resource server.
        rows: data rows by task id; None if each task carries its row in its metadata.
    """

    def __init__(self, url: str, rows: Mapping[str, Mapping[str, Any]] | None) -> None:
        self.url, self._rows = url.rstrip("/"), rows
        self.name = f"NeMo Gym at {url}"

    def tasks(self, split: str) -> Sequence[str]:
        """Return the task ids of the split. Rows without the key `split` belong to every split."""
        if self._rows is None:
            raise ValueError("the server lists no tasks: pass the file with its rows (--data rows.jsonl)")
        return [name for name, row in self._rows.items() if row.get("split", split) == split]

    def instance(self) -> NemoGymInstance:
        return NemoGymInstance(self.url, self._rows)


class NemoGymInstance:
    """One episode of a NeMo Gym resource server, identified there by a cookie."""

    def __init__(self, url: str, rows: Mapping[str, Mapping[str, Any]] | None) -> None:
        self._url, self._rows = url, rows
        self._session: aiohttp.ClientSession | None = None
        self._row: Mapping[str, Any] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._output: list[dict[str, Any]] = []
        self._verify_reply: Mapping[str, Any] | None = None
        """The reply of /verify for the attempt so far."""
        self._is_over = False

    async def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        """Open the session with the task's data row, and return the row's messages and tools.

        Raises:
            ValueError: the task has no usable row.
            WorldServerError: the server refuses the session.
        """
        row = self._rows.get(task_id) if self._rows is not None else params.get("metadata")
        if not isinstance(row, Mapping) or not isinstance(row.get(ROW), Mapping):
            raise ValueError(f"task {task_id!r} has no row with the key `{ROW}`")
        self._row = row
        self._schemas = {tool["name"]: tool.get("parameters") or {} for tool in _list_functions(row[ROW])}
        jar = aiohttp.CookieJar(unsafe=True)  # accepts cookies of hosts that are IP addresses, too
        self._session = aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        status, body = await self._post_json("seed_session", dict(row))
        if status >= 400:
            raise WorldServerError(f"the server refused /seed_session (status {status}): {body[:500]}")
        return InitialState(_build_state(row[ROW]), {"tools": self._list_tools()})

    async def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Run the tool calls of the agent's message in order and return their results.

        The results are tool messages, also in `info["messages"]`. A message without tool calls is the final answer: it
        ends the episode, and the server's score is the reward.
        """
        if self._is_over:
            return StepResult(to_messages(OVER), 0.0, True, {})
        self._verify_reply = None
        calls = action.get("tool_calls")
        text = read_text(action) if action.get("content") else ""
        if text or not calls:
            self._output.append(_build_message(text))
        if not isinstance(calls, (list, tuple)) or not calls:
            self._is_over = True
            answer = await self._verify_response()
            return StepResult(to_messages(OVER), _read_reward(answer), True, self._select_info(answer))
        results, is_invalid = [], False
        for call in calls:
            content, is_valid = await self._call_tool(call)
            is_invalid = is_invalid or not is_valid
            results.append({"role": "tool", "tool_call_id": str(call.get("id") or ""), "content": content})
        return StepResult(
            results, 0.0, False, {"messages": results, **({"invalid_action": True} if is_invalid else {})}
        )

    async def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """Return the server's score (`/verify`) of the episode so far."""
        return _read_reward(await self._verify_response())

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {"tools": self._list_tools()}

    async def release(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call_tool(self, call: Mapping[str, Any]) -> tuple[str, bool]:
        """Run one tool call and append it to the transcript. Return (result text, True if the call was valid)."""
        function = call.get("function") or {}
        name, raw_arguments = str(function.get("name")), function.get("arguments")
        call_id = str(call.get("id") or f"call_{secrets.token_hex(8)}")
        arguments_text = raw_arguments if isinstance(raw_arguments, str) else json.dumps(raw_arguments)
        self._output.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments_text})
        content, is_valid = await self._run_call(name, arguments_text)
        self._output.append({"type": "function_call_output", "call_id": call_id, "output": content})
        return content, is_valid

    async def _run_call(self, name: str, arguments_text: str) -> tuple[str, bool]:
        """Check a tool call against the task's tools, and send a valid one to the server.

        Args:
            arguments_text: the arguments as JSON text.

        Returns:
            (text for the agent, True if the call was valid).
        """
        if name not in self._schemas:  # the name becomes a path, and must not be one of the server's own
            return f"There is no tool {name}; there are {', '.join(self._schemas) or 'none'}.", False
        try:
            arguments = json.loads(arguments_text or "{}")
        except (ValueError, RecursionError):
            return "That was no action: its arguments are no JSON.", False
        problem: str | None = "they are no object"
        if isinstance(arguments, dict):
            # The check runs in a thread, because it may take a second.
            problem = await asyncio.to_thread(find_value_problem, arguments, self._schemas[name])
        if problem is not None:
            return f"That was no action: its arguments do not fit: {problem}.", False
        status, body = await self._post_json(name, arguments)
        if status not in READABLE_STATUSES:
            raise WorldServerError(f"the tool {name} answered status {status}: {body[:500]}")
        return body, status < 400

    async def _verify_response(self) -> Mapping[str, Any]:
        """Return the reply of `/verify` for the episode so far, requested once until the next step.

        Raises:
            WorldServerError: the reply is unusable, or says that its reward is not valid.
        """
        if self._verify_reply is None:
            status, body = await self._post_json("verify", {**self._row, "response": self._build_response()})
            try:
                reply = load_json(body) if status < 400 else None
            except (ValueError, RecursionError):
                reply = None
            if not isinstance(reply, dict):
                raise WorldServerError(f"/verify answered status {status}: {body[:500]}")
            mask_sample = reply.get("mask_sample")
            # older servers have no `mask_sample`, and give a reason only where the reward cannot be relied on
            if mask_sample or (mask_sample is None and reply.get("failure_reason")):
                reason = reply.get("failure_reason") or reply.get("failure_kind") or "it does not say why"
                raise WorldServerError(f"the server reports that its reward is not valid: {reason}")
            self._verify_reply = reply
        return self._verify_reply

    def _build_response(self) -> dict[str, Any]:
        """Return the episode so far in the form of OpenAI's Responses API, as `/verify` expects it."""
        request = self._row[ROW]
        return {
            "id": f"resp_{secrets.token_hex(8)}",
            "object": "response",
            "created_at": time.time(),
            "model": str(request.get("model") or "policy"),
            "output": self._output,
            "parallel_tool_calls": bool(request.get("parallel_tool_calls", True)),
            "tool_choice": request.get("tool_choice") or "auto",
            "tools": list(request.get("tools") or []),
        }

    def _select_info(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that `/verify` added, without the row's own fields and the transcript."""
        return {name: value for name, value in answer.items() if name not in self._row and name != "response"}

    def _list_tools(self) -> list[dict[str, Any]]:
        """Return the row's functions in the form of OpenAI's chat API."""
        fields = ("name", "description", "parameters")
        functions = [
            {name: tool[name] for name in fields if tool.get(name)} for tool in _list_functions(self._row[ROW])
        ]
        return [{"type": "function", "function": function} for function in functions]

    async def _post_json(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Send a JSON body to the server and return (status, body text). Redirects are not followed.

        Raises:
            WorldServerError: the server does not answer in time, or answers too much.
        """
        assert self._session is not None, "`create` is called before any other method"
        try:
            async with self._session.post(f"{self._url}/{path}", json=body, allow_redirects=False) as answer:
                received = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    received += chunk
                    if len(received) > MAX_ANSWER_BYTES:
                        raise WorldServerError(f"the answer to /{path} is longer than {MAX_ANSWER_BYTES >> 20} MiB")
                return answer.status, received.decode(errors="replace")
        except TimeoutError:
            raise WorldServerError(f"no answer to /{path} within {ANSWER_S:.0f} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise WorldServerError(
                f"no answer to /{path} from {self._url}: {type(problem).__name__}: {problem}"
            ) from problem


def _list_functions(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the request's tools of the type `function`, which is the default type."""
    return [tool for tool in request.get("tools") or [] if tool.get("type", "function") == "function"]


def _build_state(request: Mapping[str, Any]) -> list[Message]:
    """Convert a row in the form of OpenAI's Responses API to opening chat messages."""
    request_input = request.get("input") or ""
    messages = [{"role": "user", "content": request_input}] if isinstance(request_input, str) else list(request_input)
    if request.get("instructions"):
        messages.insert(0, {"role": "system", "content": request["instructions"]})
    state = [
        {"role": message.get("role", "user"), "content": _join_text(message.get("content"))} for message in messages
    ]
    # "developer" is the Responses API's name of the role "system".
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in state]


def _join_text(content: Any) -> str:
    """Return the text of a message's content, which is a string or a list of blocks."""
    if isinstance(content, (list, tuple)):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))
    return str(content or "")


def _build_message(text: str) -> dict[str, Any]:
    """Return an assistant message as an output item of OpenAI's Responses API."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    name = f"msg_{secrets.token_hex(8)}"
    return {"type": "message", "id": name, "role": "assistant", "status": "completed", "content": content}


def _read_reward(answer: Mapping[str, Any]) -> float:
    """Return the reward in a reply of `/verify`. Raises WorldServerError if there is none."""
    if answer.get("reward") is None:
        raise WorldServerError(f"the answer to /verify contains no reward: {answer!r:.200}")
    return parse_reward(answer["reward"], "the reward of /verify")
