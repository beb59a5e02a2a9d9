"""Worlds for tests: a person's class, objects with the methods of other ecosystems, a server of OpenEnv's protocol, and
services that fail in every way."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import WSMsgType, web


class Count:
    """Say the number of the task; anything else is wrong. Ends when it was said."""

    made: list[Count] = []
    tasks = {"train": ["1", "2", "3"], "dev": ["4"]}

    def __init__(self) -> None:
        self.released = False
        self.steps = 0
        Count.made.append(self)

    def create(self, task_id: str, params: dict[str, Any]) -> str:
        self.number = int(task_id)
        return f"Say {task_id}."

    def step(self, action: str) -> tuple[str, float, bool]:
        self.steps += 1
        if action == "crash":
            raise ZeroDivisionError("of the world's own")
        right = str(self.number) in action
        return ("right" if right else "wrong"), float(right), right

    def release(self) -> None:
        self.released = True


class AsyncCount:
    """The same, asynchronous, with a score and tools of its own."""

    async def create(self, task_id: str) -> list[dict[str, str]]:
        self.number, self.said = int(task_id), 0
        return [{"role": "system", "content": "Count."}, {"role": "user", "content": f"Say {task_id}."}]

    async def step(self, action: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.said += str(self.number) in action
        return {"observation": {"role": "user", "content": "heard"}, "reward": None, "done": self.said > 0}

    async def evaluate(self) -> float:
        return float(self.said)

    async def get_info(self) -> dict[str, Any]:
        return {"tools": []}


class AgentJetCount:
    """The same, as AgentJet's own service wants it."""

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any]) -> None:
        self.number, self.score = int(task_id), 0.0

    @staticmethod
    def get_query_list(split: str) -> list[str]:
        return ["1", "2", "3"]

    def get_init_state(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"state": [{"role": "user", "content": f"Say {self.number}."}], "info": {}}

    def step(self, action: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        right = str(self.number) in action["content"]
        self.score = max(self.score, float(right))
        state = [{"role": "user", "content": "right" if right else "wrong"}]
        return {"state": state, "reward": 0, "is_terminated": right, "info": {}}

    def evaluate(self, messages: Any, params: dict[str, Any]) -> float:
        return self.score

    def get_info(self, messages: Any, params: dict[str, Any]) -> None:
        return None

    def close(self) -> None: ...


class Arena:
    """As textarena's environments are used."""

    def reset(self, num_players: int, seed: int) -> None:
        self.number, self.told = seed, f"Say {seed}."

    def get_observation(self) -> tuple[int, str]:
        return 0, self.told

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.right = str(self.number) in action
        self.told += " wrong"
        return self.right, {}

    def close(self) -> tuple[dict[int, float], dict[int, Any]]:
        return {0: float(self.right)}, {0: {"reason": "right"}}


class SkyRL:
    """As skyrl-gym's environments are used."""

    def __init__(self, extras: dict[str, Any]) -> None:
        self.number = extras["number"]

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        right = str(self.number) in action
        seen = [] if right else [{"role": "user", "content": "wrong"}]
        return {"observations": seen, "reward": float(right), "done": right, "metadata": {}}

    def close(self) -> None: ...


@contextmanager
def on_a_loop(app: web.Application) -> Iterator[str]:
    """Serve it; gives host:port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


OPENENV_ACTION = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "say": {"type": "string"}},
    "required": ["say"],
    "additionalProperties": False,
}


def openenv_app(answer: Callable[[dict[str, Any]], Any] | None = None) -> web.Application:
    """OpenEnv's protocol as its 0.10 speaks it, written by hand: /health, /schema and /ws. `answer` says what comes
    instead of the answer to a step: a text, or None for a connection that ends."""

    async def schema(request: web.Request) -> web.Response:
        return web.json_response({"action": OPENENV_ACTION, "observation": {"type": "object"}})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket_ = web.WebSocketResponse()
        await socket_.prepare(request)
        number = 0
        async for message in socket_:
            assert message.type is WSMsgType.TEXT
            asked = json.loads(message.data)
            data: dict[str, Any] = {"observation": {}, "reward": None, "done": False}
            if asked["type"] == "reset":
                number = asked["data"]["seed"]
                data["observation"] = {"text": f"Say {number}."}
            elif answer is not None:
                if (told := answer(asked)) is None:
                    break
                await socket_.send_str(told)
                continue
            else:
                right = str(number) in asked["data"]["say"]
                data = {"observation": {"text": "right" if right else "wrong"}, "reward": float(right), "done": right}
            await socket_.send_json({"type": "observation", "data": data})
        return socket_

    app = web.Application()
    app.router.add_get("/schema", schema)
    app.router.add_get("/health", health)
    app.router.add_get("/ws", session)
    return app


SAY = {
    "type": "function",
    "name": "say",
    "description": "Say something.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "strict": True,
}
NEMO_ROWS = {
    str(number): {
        "responses_create_params": {"input": [{"role": "user", "content": f"Say {number}."}], "tools": [SAY]},
        "number": number,
    }
    for number in (1, 2, 3)
}


def says(text: Any, tool: str = "say") -> dict[str, Any]:
    """A call of a tool, as the model of an agent makes it."""
    function = {"name": tool, "arguments": json.dumps({"text": text})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def nemo_gym_app(heard: list[str] | None = None, **answers: Any) -> web.Application:
    """A resource server of NeMo Gym as its 0.7 speaks it, written by hand: /seed_session gives a cookie, each tool is a
    path, /verify takes the row and the response as OpenAI's type has it. `answers` by path are (status, JSON or bytes)
    instead. `heard`: what is told of each request, its path."""
    from openai.types.responses import Response

    sessions: dict[str, dict[str, Any]] = {}

    async def answer(request: web.Request) -> web.Response:
        path, asked = request.path.strip("/"), await request.json()
        if heard is not None:
            heard.append(path)
        if path in answers:
            status, body = answers[path]
            return web.Response(body=body if isinstance(body, bytes) else json.dumps(body).encode(), status=status)
        if path == "seed_session":
            name = str(len(sessions))
            sessions[name] = {"number": asked["number"], "said": False}
            reply = web.json_response({})
            reply.set_cookie("session", name)
            return reply
        session = sessions[request.cookies["session"]]
        if path == "say":
            right = str(session["number"]) in asked["text"]
            session["said"] = session["said"] or right
            return web.json_response({"heard": "right" if right else "wrong"})
        assert path == "verify" and asked["responses_create_params"]["input"]
        items = asked["response"]["output"]
        kept = [item for item in items if item["type"] != "function_call_output"]
        Response.model_validate({**asked["response"], "output": kept})
        texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
        reward = float(session["said"] or any(str(asked["number"]) in text for text in texts))
        return web.json_response({**asked, "reward": reward, "calls": len(items) - len(kept)})

    app = web.Application()
    app.router.add_post("/{path}", answer)
    return app


class Failing:
    """An environment service that answers as told: `answers` by request is bytes of a whole HTTP answer, "hang", or
    "close"; what is not named is answered well. `heard` lists the requests."""

    WELL = {
        "create": {"state": [{"role": "user", "content": "Say 1."}], "reward": 0, "is_terminated": False, "info": {}},
        "step": {"state": [{"role": "user", "content": "on"}], "reward": 0, "is_terminated": False, "info": {}},
        "evaluate": 1.0,
        "get_env_profile": ["1", "2"],
        "get_info": None,
        "release": None,
    }

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.heard: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            raw = b""
            while b"\r\n\r\n" not in raw:
                if not (part := connection.recv(1 << 16)):
                    return
                raw += part
            head, _, body = raw.partition(b"\r\n\r\n")
            length = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))[15:])
            while len(body) < length:
                body += connection.recv(1 << 16)
            name = head.split()[1].decode().strip("/")
            self.heard.append(name)
            answer = self._answers.get(name, self.WELL[name])
            if answer == "hang":
                self._over.wait(600)
            elif answer == "close":
                return
            elif isinstance(answer, bytes):
                try:
                    connection.sendall(answer)
                except OSError:
                    return
            else:
                connection.sendall(whole(json.dumps({"success": True, "data": answer}).encode()))


def whole(body: bytes, status: str = "200 OK") -> bytes:
    """An HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
