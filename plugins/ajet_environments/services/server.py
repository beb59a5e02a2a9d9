"""ajet's environment server: serves one environment over HTTP to many concurrent rollouts.

Invariants: an instance handles one request at a time, and none after a failure. At most `instances` exist, including
those being released (a hanging release stops counting after 2 CLOSE_S). Idle instances are released. Every reply is
JSON, and an error has a sentence with the reason. A request passes checks of Host (on loopback, against DNS rebinding),
Origin and token (compared in constant time) before its body is read. A repeated create request under the same instance
id returns the first reply. The task that creates an instance owns it until then: a release waits for that task, so no
instance leaks when a client disconnects.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ajet.schema.addresses import is_loopback, list_loopback_hosts, parse_netloc
from ajet.schema.bounded_json import LONG_BYTES, load_json
from ajet.schema.errors import AjetError
from ajet_environments.services.hosted import InitialState, StepResult, World, WorldInstance, call_world

REQUESTS = ("get_env_profile", "create", "step", "evaluate", "get_info", "release")
"""The requests of the protocol, each a path."""
MAX_REQUEST_BYTES = 16 << 20
"""Largest request, in bytes."""
INSTANCES, IDLE_S = 256, 900.0
REAP_INTERVAL_S = 5.0
"""Seconds between two searches for idle instances."""
CLOSE_S = 5.0
"""Seconds for a release before its slot is freed, and for the running request before the release."""
SLOT_S = 2 * CLOSE_S + 2.0
"""Seconds that a new instance waits for the slot of one being released."""
_HANDLERS_S = 1.0
"""Seconds for running requests when the server ends."""
END_S = _HANDLERS_S + 2 * CLOSE_S + 2.0
"""Longest time of `close`, unless the event loop is blocked."""


class RequestRefusedError(AjetError):
    """Refuses a request with an HTTP status and a reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class _HostedInstance:
    """One instance with its task id, lock, age and failure."""

    name: str
    task_id: str
    instance: WorldInstance | None = None
    """The environment instance, or None while it is being created."""
    opened: InitialState | None = None
    failure: str = ""
    last_used: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    making: asyncio.Task[None] | None = None
    """Task that creates the instance."""

    @property
    def is_busy(self) -> bool:
        """True while the instance is being created or handles a request."""
        return self.lock.locked() or self.making is None or not self.making.done()


class WorldServer:
    """Serves one environment on one event loop. Blocking calls run in threads.

    The constructor takes the environment, the largest number of instances, seconds of idleness before an instance is
    released, and the bearer token (None: none is required).
    """

    def __init__(
        self, world: World, *, instances: int = INSTANCES, idle_s: float = IDLE_S, token: str | None = None
    ) -> None:
        self.world = world
        self._max_instances = instances
        self.idle_s = idle_s
        self._token = token
        self.hosted: dict[str, _HostedInstance] = {}
        """Instances by name, open for requests."""
        self._live_instances: set[_HostedInstance] = set()
        """Instances with a slot: from before their making until after their release."""
        self._slots = asyncio.Semaphore(instances)
        self._hosts: frozenset[str] | None = None
        """Accepted Host headers; None: any."""
        self._making_tasks: set[asyncio.Task[None]] = set()
        self._release_tasks: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None

    @property
    def instances(self) -> int:
        """Return the number of instances, including those being created or released."""
        return len(self._live_instances)

    async def start(self, host: str, port: int) -> int:
        """Listen on the address and return the port, a free one for 0. Raises OSError if the port is in use."""
        self._runner = web.AppRunner(self._build_app(), access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, shutdown_timeout=_HANDLERS_S)
        await site.start()
        self._reaper = asyncio.create_task(self._reap_idle())
        bound = int(self._runner.addresses[0][1])
        self._hosts = list_loopback_hosts(host, bound) if is_loopback(host) else None
        return bound

    async def close(self) -> None:
        """Release all instances and stop. Idempotent."""
        if self._reaper is not None:
            self._reaper.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        released = [asyncio.ensure_future(self.answer_release(instance)) for instance in list(self.hosted.values())]
        if ending := {*released, *self._making_tasks, *self._release_tasks}:
            await asyncio.wait(ending, timeout=2 * CLOSE_S)

    def _build_app(self) -> web.Application:
        """Build the HTTP application: two health paths, and one path per request of the protocol."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[self._guard_request])
        app.router.add_get("/healthz", self.answer_health)
        app.router.add_get("/health", self.answer_health)
        for name in REQUESTS:
            app.router.add_post(f"/{name}", self._make_handler(getattr(self, f"answer_{name}")))
        return app

    @web.middleware
    async def _guard_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check Host, Origin and token of a request before its body is read, then pass it on.

        HTTP errors of the framework become JSON replies.
        """
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if self._hosts is not None and host.lower() not in self._hosts:
            return _build_refusal(
                421,
                f"the Host header {host!r} is not an address of this service, which has "
                f"{' or '.join(sorted(self._hosts))}",
            )
        if origin is not None and parse_netloc(origin) != host:
            return _build_refusal(403, "a web page of another origin may not use environments")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        is_health = request.path in ("/healthz", "/health")
        if self._token and not is_health and not hmac.compare_digest(token, self._token.encode()):
            return _build_refusal(401, "the bearer token is missing or wrong (ENV_SERVICE_TOKEN)")
        try:
            return await handler(request)
        except web.HTTPException as problem:
            message = (
                f"there is no {request.method} {request.path} here" if problem.status in (404, 405) else problem.reason
            )
            response = _build_refusal(problem.status, message)
            if allow := problem.headers.get("Allow"):
                response.headers["Allow"] = allow
            return response

    async def answer_health(self, request: web.Request) -> web.Response:
        """Report the environment's name and the number of instances. The path needs no token."""
        return web.json_response(
            {
                "status": "ok",
                "environment": self.world.name,
                "instances": self.instances,
                "capacity": self._max_instances,
            }
        )

    def _make_handler(
        self, verb: Callable[[Mapping[str, Any]], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return an HTTP handler that parses the JSON body, calls `verb`, and turns its errors into replies.

        Statuses: 400 for an invalid request, 415 for another content type, 500 for an error of the environment's code.
        """

        async def answer(request: web.Request) -> web.Response:
            """Answer one request of the protocol with JSON."""
            # A page of another site can send other content types without a preflight request.
            if request.content_type != "application/json":
                return _build_refusal(415, "the request's content type is not application/json")
            try:
                body = await request.read()
                parsed = await asyncio.to_thread(load_json, body) if len(body) > LONG_BYTES else load_json(body)
            except (ValueError, RecursionError):
                return _build_refusal(400, "the request is not valid JSON")
            if not isinstance(parsed, dict):
                return _build_refusal(400, "the request is not a JSON object")
            try:
                result = await verb(parsed)
                return web.Response(text=json.dumps(result, default=_to_plain), content_type="application/json")
            except RequestRefusedError as problem:
                return _build_refusal(problem.status, str(problem))
            except ValueError as problem:
                return _build_refusal(400, str(problem))
            except Exception as problem:  # noqa: BLE001 - the border where a world's own code fails
                return _build_refusal(500, f"{type(problem).__name__}: {problem}", where=_find_raising_line(problem))

        return answer

    async def answer_get_env_profile(self, request: Mapping[str, Any]) -> Any:
        """Return the task ids of the split in `params`."""
        split = str(_read_params(request).get("split", "train"))
        return {"success": True, "data": list(await call_world(self.world.tasks, split))}

    async def answer_create(self, request: Mapping[str, Any]) -> Any:
        """Create an instance under the client's id and return its initial state.

        A repeated request under the same id waits for the same instance and gets the same reply.

        Raises:
            RequestRefusedError: no instance is free, or the id belongs to another task.
        """
        name, task_id, params = (
            _read_name(request, "instance_id"),
            _read_name(request, "task_id"),
            _read_params(request),
        )
        hosted = self.hosted.get(name)
        if hosted is None:
            if len(self.hosted) >= self._max_instances:
                idle_s = time.monotonic() - min(hosted_instance.last_used for hosted_instance in self.hosted.values())
                raise RequestRefusedError(
                    503,
                    f"all {self._max_instances} instances are in use; the one that is idle longest was used "
                    f"{idle_s:.0f} s ago",
                )
            hosted = self.hosted[name] = _HostedInstance(name, task_id)
            hosted.making = asyncio.create_task(self._make_instance(hosted, params))
            self._making_tasks.add(hosted.making)
            hosted.making.add_done_callback(self._making_tasks.discard)
        elif hosted.task_id != task_id:
            raise RequestRefusedError(409, f"the instance runs task {hosted.task_id!r} already")
        assert hosted.making is not None
        # Shielded: the creating task continues if this client disconnects, and a repeated request gets its result.
        await asyncio.shield(hosted.making)
        initial_state = hosted.opened
        assert initial_state is not None, "the task that creates the instance has ended without an error"
        hosted.last_used = time.monotonic()
        info = {"instance_id": name, "task_id": task_id, **initial_state.info}
        data = {"state": initial_state.state, "reward": 0.0, "is_terminated": False, "info": info}
        return {"success": True, "data": data}

    async def _make_instance(self, hosted: _HostedInstance, params: dict[str, Any]) -> None:
        """Create the instance in a slot, and reset it to its task.

        Raises:
            RequestRefusedError: no slot became free, or the instance was released meanwhile.
            Exception: any error of the environment.
        """
        try:
            await self._acquire_slot(hosted)
            hosted.instance = await call_world(self.world.instance)
            if not hosted.failure:
                hosted.opened = await call_world(hosted.instance.create, hosted.task_id, params)
            if hosted.failure:
                raise RequestRefusedError(410, f"the instance could not be created: {hosted.failure}")
        except BaseException:
            if self.hosted.get(hosted.name) is hosted:
                del self.hosted[hosted.name]
            await self._end_instance(hosted)
            raise

    async def _acquire_slot(self, hosted: _HostedInstance) -> None:
        """Wait for one of the `instances` slots. Raises RequestRefusedError if none becomes free in time."""
        try:
            await asyncio.wait_for(self._slots.acquire(), SLOT_S)
        except TimeoutError:
            raise RequestRefusedError(503, f"all {self._max_instances} instances are in use or being closed") from None
        self._live_instances.add(hosted)
        if hosted.failure:
            raise RequestRefusedError(410, f"the instance could not be created: {hosted.failure}")

    async def answer_step(self, request: Mapping[str, Any]) -> Any:
        """Apply the agent's action, the last of `messages`, and return the new state and reward.

        Raises:
            ValueError: the request contains no action.
            RequestRefusedError: the instance is missing, busy or failed.
        """
        action = request.get("messages")
        if isinstance(action, list) and action:
            action = action[-1]
        if isinstance(action, str):
            action = {"role": "assistant", "content": action}
        if not isinstance(action, dict) or not ("content" in action or action.get("tool_calls")):
            raise ValueError('`messages` contains no action, such as {"role": "assistant", "content": "…"}')
        hosted, instance = self._find_ready(request)
        outcome: StepResult = await self._run_method(hosted, instance.step, action, _read_params(request))
        info = {"instance_id": hosted.name, "task_id": hosted.task_id, **outcome.info}
        data = {"state": outcome.state, "reward": outcome.reward, "is_terminated": outcome.is_terminated, "info": info}
        return {"success": True, "data": data}

    async def answer_evaluate(self, request: Mapping[str, Any]) -> Any:
        """Return the score of an instance's episode so far."""
        hosted, instance = self._find_ready(request)
        messages = request.get("messages")
        return {
            "success": True,
            "data": await self._run_method(hosted, instance.evaluate, messages, _read_params(request)),
        }

    async def answer_get_info(self, request: Mapping[str, Any]) -> Any:
        """Return the description of an instance, such as its tools."""
        hosted, instance = self._find_ready(request)
        messages = request.get("messages")
        return {
            "success": True,
            "data": await self._run_method(hosted, instance.get_info, messages, _read_params(request)),
        }

    async def answer_release(self, request: Mapping[str, Any] | _HostedInstance) -> Any:
        """Release an instance. `success` is False if no such instance exists.

        Args:
            request: the client's request, or the instance if the server itself releases it.
        """
        name = request.name if isinstance(request, _HostedInstance) else _read_name(request, "instance_id")
        hosted = self.hosted.pop(name, None)
        if hosted is None:
            return {"success": False, "data": None}
        await self._end_when_made(hosted)
        return {"success": True, "data": None}

    async def _end_when_made(self, hosted: _HostedInstance) -> None:
        """Release an instance now, or mark it as failed while it is being created.

        The creating task sees the mark and then releases the instance itself.
        """
        hosted.failure = hosted.failure or "it was released"
        if hosted.making is not None and hosted.making.done():
            ending = asyncio.create_task(self._end_instance(hosted))
            self._release_tasks.add(ending)
            ending.add_done_callback(self._release_tasks.discard)
            await asyncio.shield(ending)  # the client may disconnect before the release has finished

    async def _end_instance(self, hosted: _HostedInstance) -> None:
        """Release the environment of an instance and free its slot, even if the environment's code fails."""
        try:
            if hosted.instance is not None:
                with suppress(asyncio.TimeoutError):  # the instance's current call may hang
                    await asyncio.wait_for(hosted.lock.acquire(), CLOSE_S)
                await asyncio.wait_for(call_world(hosted.instance.release), CLOSE_S)
        except Exception as problem:  # noqa: BLE001 - the world's code may fail; its slot is freed anyway
            print(
                f"{self.world.name}: an instance could not be closed: {type(problem).__name__}: {problem}", flush=True
            )
        finally:
            if hosted in self._live_instances:
                self._live_instances.remove(hosted)
                self._slots.release()

    def _find_ready(self, request: Mapping[str, Any]) -> tuple[_HostedInstance, WorldInstance]:
        """Return the instance named in the request, with its environment.

        Raises:
            RequestRefusedError: it is unknown (404), failed before (410), or is busy (409).
        """
        name = _read_name(request, "instance_id")
        hosted = self.hosted.get(name)
        if hosted is None:
            raise RequestRefusedError(
                404, "there is no such instance: it was never created, was closed, or was idle too long"
            )
        if hosted.failure:
            raise RequestRefusedError(410, f"the instance failed before: {hosted.failure}")
        if hosted.is_busy or hosted.instance is None:
            raise RequestRefusedError(409, "the instance is busy with an earlier request")
        return hosted, hosted.instance

    async def _run_method(self, hosted: _HostedInstance, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the environment under the instance's lock. A failed `step` makes the instance unusable."""
        async with hosted.lock:
            hosted.last_used = time.monotonic()
            try:
                return await call_world(function, *arguments)
            except BaseException as problem:
                # A failed step leaves an unknown state, so the instance accepts no further request.
                if function.__name__ == "step":
                    hosted.failure = f"{type(problem).__name__}: {problem}"
                raise
            finally:
                hosted.last_used = time.monotonic()

    async def _reap_idle(self) -> None:
        """Release idle instances periodically until the server closes."""
        while True:
            await asyncio.sleep(min(REAP_INTERVAL_S, self.idle_s))
            await self.release_idle()

    async def release_idle(self) -> None:
        """Release all instances without a request for `idle_s` seconds."""
        oldest = time.monotonic() - self.idle_s
        idle = [hosted for hosted in self.hosted.values() if hosted.last_used < oldest and not hosted.is_busy]
        for hosted in idle:  # all are removed first, so no request finds an instance being released
            del self.hosted[hosted.name]
        await asyncio.gather(*map(self._end_when_made, idle))


def _build_refusal(status: int, message: str, where: str = "") -> web.Response:
    """Build the JSON reply of a refused request. `where` is the line of the environment's code that failed."""
    error = {"message": message, **({"where": where} if where else {})}
    return web.json_response({"success": False, "error": error, "detail": message}, status=status)


def _find_raising_line(problem: BaseException) -> str:
    """Return file:line of the environment's code that raised an exception."""
    frames = traceback.extract_tb(problem.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _read_name(request: Mapping[str, Any], name: str) -> str:
    """Return a required field of the request as text. Raises ValueError if it is missing."""
    value = request.get(name)
    if not isinstance(value, (str, int)) or value == "":
        raise ValueError(f"`{name}` is missing")
    return str(value)


def _read_params(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's `params`, {} without them. Raises ValueError if they are no mapping."""
    params = request.get("params") or {}
    if not isinstance(params, dict):
        raise ValueError("`params` is not a mapping")
    return params


def _to_plain(value: Any) -> Any:
    """Convert a value that `json` cannot encode: an array to lists, anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
