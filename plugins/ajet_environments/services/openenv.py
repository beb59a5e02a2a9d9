"""Adapter for servers of OpenEnv, over one WebSocket per rollout and without its package.

Invariants: the agent sees the server's JSON schema of actions, and an action is validated before it is sent. An invalid
action gets a text reply. A lost connection or a protocol error fails the instance. The score is the sum of the rewards.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from ajet.schema.bounded_json import TooManyNodesError, load_json
from ajet.schema.errors import AjetError
from ajet.schema.fenced import read_fenced_blocks
from ajet.schema.json_schema import find_value_problem
from ajet_environments.services.hosted import (
    InitialState,
    Message,
    StepResult,
    list_seeds,
    parse_reward,
    parse_seed,
    read_text,
    to_messages,
)

ANSWER_S = 100.0
"""Seconds for an answer, fewer than the requesting client waits."""
MAX_ANSWER_BYTES = 16 << 20
"""Largest answer, in bytes."""
TOOL = "act"
"""Name of the tool for actions, for agents that use tools."""
_TAGGED = re.compile(r"<action>(.*?)</action>", re.S)


class WorldServerError(AjetError):
    """The environment's server broke its protocol, or does not answer."""


class OpenEnvWorld:
    """The environment of one OpenEnv server. Tasks are seeds.

    Args:
        url: ws://HOST:PORT or http://HOST:PORT, with /ws or without.
    """

    def __init__(self, url: str, count: int) -> None:
        self.url, self._task_count = url, count
        self.name = f"OpenEnv at {url}"

    def tasks(self, split: str) -> Sequence[str]:
        return list_seeds(self._task_count, split)

    def instance(self) -> OpenEnvInstance:
        return OpenEnvInstance(self.url)


class OpenEnvInstance:
    """One episode of an OpenEnv server, over its own WebSocket connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._schema: Mapping[str, Any] = {}
        self._reward_sum = 0.0
        self._is_over = False

    async def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        """Reset the environment with the task's seed. `params["reset"]` adds arguments of the reset."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        self._schema = await self._fetch_action_schema()
        try:
            self._socket = await self._session.ws_connect(
                build_url(self._url, "ws", "/ws"), max_msg_size=MAX_ANSWER_BYTES
            )
        except (aiohttp.ClientError, OSError) as problem:
            raise WorldServerError(f"no connection to {self._url}: {problem}") from problem
        reset_params = {"seed": parse_seed(task_id) % 2**31, "episode_id": task_id, **dict(params.get("reset") or {})}
        observation, _, _ = _parse_observation(await self._exchange_message("reset", reset_params))
        rules = (
            f"Act by answering with one JSON object that fits this schema:\n{json.dumps(_hide_metadata(self._schema))}"
        )
        state = [{"role": "system", "content": rules}, *to_messages(observation)]
        return InitialState(state, {"tools": self._list_tools()})

    async def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Parse the action in the agent's message, send it to the server, and return the observation.

        An action that the schema or the server rejects gets a reply with the reason, and changes nothing.

        Raises:
            WorldServerError: the server fails or breaks its protocol.
        """
        if self._is_over:
            return StepResult(to_messages("The episode is over."), 0.0, True, {})
        parsed_action = parse_action(action, self._schema)
        problem: str | None = "it holds no JSON object"
        if parsed_action is not None:
            # In a thread: the schema is the server's, so its check may take long.
            problem = await asyncio.to_thread(find_value_problem, parsed_action, self._schema)
        if parsed_action is None or problem:
            return StepResult(to_messages(f"That was no action: {problem}."), 0.0, False, {"invalid_action": True})
        answer = await self._exchange_message("step", parsed_action)
        if answer.get("type") == "error":
            data = answer.get("data") or {}
            if data.get("code") != "VALIDATION_ERROR":
                raise WorldServerError(f"the environment could not act: {data.get('message')} ({data.get('code')})")
            problems = "; ".join(str(error.get("msg", error)) for error in data.get("errors") or [])
            return StepResult(to_messages(f"That was no action: {problems}."), 0.0, False, {"invalid_action": True})
        observation, reward, self._is_over = _parse_observation(answer)
        self._reward_sum += reward
        return StepResult(to_messages(observation), reward, self._is_over, {})

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        return self._reward_sum

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        """Return the action's JSON schema, also as a tool definition."""
        return {"tools": self._list_tools(), "action": self._schema}

    async def release(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        if self._session is not None:
            await self._session.close()

    def _list_tools(self) -> list[dict[str, Any]]:
        """Return the action schema as a tool definition, for agents that act by tool calls."""
        about = str(self._schema.get("description") or "Act in the environment.")
        function = {"name": TOOL, "description": about, "parameters": _hide_metadata(self._schema)}
        return [{"type": "function", "function": function}]

    async def _fetch_action_schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the server's actions; any object is accepted if the server has no `/schema`.

        Raises:
            WorldServerError: the server does not answer, or its reply defines no action.
        """
        assert self._session is not None
        try:
            async with self._session.get(build_url(self._url, "http", "/schema")) as response:
                raw = await response.content.read(MAX_ANSWER_BYTES + 1)
                if response.status == 404:
                    return {"type": "object"}
                schemas = load_json(raw) if response.status == 200 and len(raw) <= MAX_ANSWER_BYTES else None
        except (aiohttp.ClientError, OSError) as problem:
            raise WorldServerError(f"no connection to {self._url}: {problem}") from problem
        except (ValueError, RecursionError):
            schemas = None
        action = schemas.get("action") if isinstance(schemas, dict) else None
        if not isinstance(action, dict):
            raise WorldServerError(f"{self._url}/schema does not define the form of an action")
        return action

    async def _exchange_message(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send one message over the WebSocket and return the parsed reply, a dict with `type` and `data`.

        A reply of the type `error` is returned only for `step`, since the agent may have caused it.

        Raises:
            WorldServerError: the connection or the protocol fails, or the server refuses the request.
        """
        assert self._socket is not None, "`create` is called before any other method"
        try:
            await self._socket.send_json({"type": kind, "data": data})
            frame = await self._socket.receive(ANSWER_S)
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise WorldServerError(f"no answer to {kind}: {type(problem).__name__}") from problem
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise WorldServerError(
                f"the connection ended before the environment's answer to the request {kind} "
                f"({frame.type.name}, {frame.data!r:.100})"
            )
        try:
            answer = load_json(frame.data)
        except TooManyNodesError as problem:
            raise WorldServerError(f"the environment's answer to the request {kind} is too large: {problem}") from None
        except ValueError:
            raise WorldServerError(
                f"the environment's answer to the request {kind} is not JSON: {frame.data!r:.200}"
            ) from None
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise WorldServerError(f"the environment's answer to the request {kind} is {answer!r:.200}")
        if answer.get("type") == "error" and kind != "step":
            raise WorldServerError(
                f"the server refused {kind}: {answer['data'].get('message')} ({answer['data'].get('code')})"
            )
        return answer


def parse_action(action: Message, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Find the action in the agent's message: the arguments of a tool call, or the last JSON object of the text.

    Without JSON, a schema with a single field takes the complete text (a string field) or the last number of the text.

    Returns:
        The action, not yet validated; None if there is none.
    """
    calls = action.get("tool_calls")
    if isinstance(calls, (list, tuple)) and calls and isinstance(calls[0], Mapping):
        arguments = (calls[0].get("function") or {}).get("arguments")
        return (
            _find_object(arguments)
            if isinstance(arguments, str)
            else arguments
            if isinstance(arguments, dict)
            else None
        )
    reply = read_text(action).strip()
    fenced = [block.content for block in read_fenced_blocks(reply)]
    for text in (*reversed(_TAGGED.findall(reply)), *reversed(fenced), reply):
        if (action_object := _find_object(text)) is not None:
            return action_object
    properties = _hide_metadata(schema).get("properties") or {}
    if len(properties) == 1:
        (name, field_schema), *_ = properties.items()
        if field_schema.get("type") == "string":
            return {name: reply}
        if field_schema.get("type") in ("integer", "number") and (numbers := re.findall(r"-?\d+(?:\.\d+)?", reply)):
            return {
                # JSON allows no leading zeros.
                name: json.loads(numbers[-1].lstrip("0") or "0")
                if field_schema["type"] == "integer"
                else float(numbers[-1])
            }
    return None


def _find_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object in a text that is no part of another one, or None."""
    # 64 brackets bound the work, which would grow with the square of their number.
    for start in reversed([match.start() for match in re.finditer(r"\{", text)][-64:]):
        try:
            candidate, _ = json.JSONDecoder().raw_decode(text[start:])
        except (ValueError, RecursionError):
            continue
        # an object within another one is no action of its own
        if isinstance(candidate, dict) and not _is_nested(text, start):
            return candidate
    return None


def _is_nested(text: str, start: int) -> bool:
    """Return True if an earlier JSON object in the text extends over the position `start`."""
    for earlier in [match.start() for match in re.finditer(r"\{", text[:start])][-64:]:
        try:
            _, length = json.JSONDecoder().raw_decode(text[earlier:])
        except (ValueError, RecursionError):
            continue
        if earlier + length > start:
            return True
    return False


def _hide_metadata(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action schema without `metadata`, a protocol field that agents do not need."""
    properties = {name: about for name, about in (schema.get("properties") or {}).items() if name != "metadata"}
    return {**schema, "properties": properties} if "properties" in schema else dict(schema)


def _parse_observation(answer: Mapping[str, Any]) -> tuple[str, float, bool]:
    """Split the server's reply into (observation as text, reward, is over)."""
    data = answer["data"]
    observation = data.get("observation", {})
    if isinstance(observation, Mapping):
        observation = {name: value for name, value in observation.items() if name not in ("metadata", "done", "reward")}
        if len(observation) == 1 and isinstance(only := next(iter(observation.values())), str):
            observation = only
    text = observation if isinstance(observation, str) else json.dumps(observation)
    return text, parse_reward(data.get("reward"), "the reward"), bool(data.get("done"))


def build_url(url: str, scheme: str, path: str) -> str:
    """Return the URL of `path` on the same server, with the scheme "ws" or "http"."""
    parts = urlsplit(url)
    secure = "s" if parts.scheme in ("wss", "https") else ""
    base = parts.path.rstrip("/").removesuffix("/ws")
    # The query may configure the WebSocket; other paths do not know it.
    return urlunsplit((scheme + secure, parts.netloc, base + path, parts.query if path == "/ws" else "", ""))


def find_health_problem(url: str, seconds: float) -> str:
    """Request /health of a server. Return why it is not healthy, or "" for any status below 500."""
    import httpx

    try:
        answer = httpx.get(build_url(url, "http", "/health"), timeout=seconds)
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        return str(problem) or type(problem).__name__
    return "" if answer.status_code < 500 else f"it answers {answer.status_code}"
