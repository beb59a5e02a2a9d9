"""Gateway: the server thread and its event loop.

Invariant: only the gateway and the engine's dispatch run on the loop, never user code. The server listens on loopback
unless `host` is set, on a free port unless `port` is set.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import httpx
from starlette.routing import BaseRoute

from ajet.engine.adapters import Adapters
from ajet.engine.contract import ChatEngine, Sampling, TokenEngine
from ajet.gateway.app import build_app
from ajet.gateway.context import GatewayAddress, GatewayContext
from ajet.gateway.ignored_fields import IgnoredFieldLog, RequestFilter
from ajet.gateway.inflight_call import CallLimit
from ajet.gateway.keys import Grant, Keys
from ajet.gateway.limits import ServerLimits
from ajet.gateway.listener import Listener, listen
from ajet.gateway.prompt import RenderThreadPool
from ajet.gateway.server_thread import start_server
from ajet.gateway.session import Inspect, Session
from ajet.gateway.stream_pacing import StreamPacing
from ajet.gateway.transport import GatewayLoop, GatewayTransport, loop_calls_of
from ajet.schema.addresses import find_own_address
from ajet.schema.call import Ids
from ajet.schema.endpoint import Endpoint
from ajet.tokens import Renderer

T = TypeVar("T")
NAMED: Mapping[str, str] = {"name": "gateway", "where": "ajet.gateway.host, ajet.gateway.port"}
"""Name of the server and its configuration keys, for "cannot listen" errors."""


class Gateway:
    """Serves one engine to the clients of many episodes.

    `max_model_len` bounds prompt and reply together, `max_response_tokens` one reply, `max_calls` the concurrent calls
    (more are refused with status 429). `chat_engine_for` finds the chat engine of a debug model by name; without it,
    agents with a debug model use the engine, untrained. `limits` bounds the resources of clients. `adapters` are the
    adapters of the engine's model, each with its agents. `leave_out_tools` (types) and `leave_out_fields` are removed
    from requests. `opens_later` announces routes added while the gateway serves.
    """

    def __init__(
        self,
        engine: TokenEngine | ChatEngine,
        renderer: Renderer | None,
        *,
        host: str | None = None,
        port: int = 0,
        advertise: str = "auto",
        max_model_len: int,
        max_response_tokens: int,
        max_calls: int = 16384,
        force_disable_toolcalls: bool = False,
        chat_engine_for: Callable[[str], ChatEngine] | None = None,
        limits: ServerLimits | None = None,
        adapters: Adapters | None = None,
        leave_out_tools: Collection[str] = (),
        leave_out_fields: Collection[str] = (),
        opens_later: bool = False,
    ) -> None:
        if isinstance(engine, TokenEngine) and renderer is None:
            raise ValueError("a TokenEngine needs a Renderer")
        self.context = GatewayContext(
            engine,
            renderer,
            max_model_len,
            max_response_tokens,
            force_disable_toolcalls,
            chat_engine_for,
            keys=Keys(),
            call_limit=CallLimit(max_calls),
            pacing=StreamPacing(),
            render_threads=RenderThreadPool(),
            ignored_fields=IgnoredFieldLog(),
            adapters=adapters or Adapters([]),
            request_filter=RequestFilter(leave_out_tools, leave_out_fields)
            if leave_out_tools or leave_out_fields
            else None,
        )
        self.app = build_app(self.context, opens_later=opens_later)
        self._host = host or "127.0.0.1"
        self._port = port
        self._advertised_host = advertise
        self._base_url = ""
        self._limits = limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared_loop = GatewayLoop()
        self._server: Listener | None = None
        self._thread: threading.Thread | None = None
        self.gate, self._has_ended = threading.Lock(), False
        """Held while work is handed to the loop. Work handed over before the loop's last run still takes part in
        that run."""

    @property
    def engine(self) -> TokenEngine | ChatEngine:
        """The engine that samples replies."""
        return self.context.engine

    @property
    def decode(self) -> Callable[[Ids], str] | None:
        """Function that decodes sampled ids to text, special tokens included. None if the engine returns no ids."""
        return self.context.renderer.decode if self.context.renderer is not None else None

    @property
    def base_url(self) -> str:
        """The URL for clients, ending in /v1."""
        return self._base_url

    @property
    def ambient(self) -> Endpoint:
        """The gateway's address with the run's own key, set as environment variables for clients without an endpoint.

        See `ajet.workflow.ambient`.
        """
        return Endpoint(self._base_url, self.context.keys.fallback_key)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The gateway's event loop, while it runs."""
        assert self._loop is not None, "the gateway is not started"
        return self._loop

    def start(self) -> Gateway:
        """Bind, start the thread, and return once requests are answered."""
        listening = listen(self._host, self._port, **NAMED)
        self._base_url = build_base_url(self._advertised_host, self._host, listening.getsockname()[1])
        self._thread = start_server(partial(self._run_server, listening), name="ajet-gateway")
        return self

    def close(self) -> None:
        """Stop serving. Running calls are cancelled. Idempotent."""
        thread = self._thread
        if thread is None or self._server is None:
            return
        self._server.stop()
        thread.join()
        self._thread = None
        self.context.render_threads.close()

    def open(
        self,
        episode: str,
        *,
        key: tuple[int, int, int],
        sampling: Sampling,
        trainable: Collection[str] | None,
        model_name: str = "ajet",
        inspect: Inspect | None = None,
        terminate_on_inspect: bool = False,
        started_at: float | None = None,
        models: Mapping[str, str | None] | None = None,
    ) -> Session:
        """Open the session of one episode. Thread-safe.

        Args:
            key: (seed, task order, repeat); names the episode's random numbers.
            inspect: Returns the abnormal-output checks fired by a reply.
            terminate_on_inspect: The first fired check ends the episode.
            started_at: Start of the episode in seconds since the epoch, `None` for now. Templates that write a date
                use this day.
            models: Names of models for clients, each with its adapter or `None`, instead of one adapter per agent.
        """
        return Session(
            self.context,
            GatewayAddress(self._base_url, self.transport, self.on_loop),
            episode,
            key=key,
            sampling=sampling,
            trainable=trainable,
            model_name=model_name,
            inspect=inspect,
            terminate_on_inspect=terminate_on_inspect,
            started_at=time.time() if started_at is None else started_at,
            models=models,
        )

    def admit(self, secret: str, session: Session, agent: str = "agent") -> None:
        """Let a key chosen by the caller open `session`, instead of the session that it opened before. Thread-safe."""
        self.context.keys.admit(secret, Grant(session, agent, agent, None))

    def call(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the gateway's loop. Thread-safe. Raises RuntimeError if the loop has ended."""
        with self.gate:
            if not self._has_ended:
                return asyncio.run_coroutine_threadsafe(coro, self.loop)
        coro.close()
        raise RuntimeError("the gateway is closed")

    def on_loop(self, function: Callable[[], None]) -> None:
        """Run a function on the gateway's thread, wait for the end, and raise its error.

        In the gateway's own thread, or after the thread has ended, the function runs at once in the caller's thread.
        """
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            function()
            return
        result_future: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            """Run the function, and pass its end or its error to the waiting thread."""
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
                result_future.set_exception(error)
            else:
                result_future.set_result(None)

        with self.gate:
            is_ended = self._has_ended
            if not is_ended:
                self.loop.call_soon_threadsafe(run)
        if is_ended:
            thread.join()  # after the thread has ended, its state is safe to use here
            function()
        else:
            result_future.result()

    def add_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Serve further routes on the gateway's loop, without blocking it. Call this before clients come."""
        self.app.add_routes(routes)

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return an in-process transport for httpx clients, usable on any event loop."""
        return GatewayTransport(self.app, self._shared_loop)

    def _run_server(self, listening: socket.socket, started: Callable[[], None]) -> None:
        """Serve on the listening socket in this thread until the gateway closes. `started` is called by the
        running loop.
        """
        with closing(listening), closing(new_loop()) as loop:
            # Headers of proxies have no effect: clients are known by their keys.
            self._server = Listener(self.app, self._limits, timeout_graceful_shutdown=1, proxy_headers=False)
            self._loop, self._has_ended = loop, False
            self._shared_loop.calls = loop_calls_of(loop)
            try:
                loop.call_soon(started)
                loop.run_until_complete(self._server.serve(sockets=[listening]))
            finally:
                with self.gate:
                    self._has_ended = True
                self._shared_loop.calls = None
                loop.run_until_complete(cancel_all())
                loop.run_until_complete(loop.shutdown_asyncgens())


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if installed, which needs a fifth less time for a request over a socket."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


async def cancel_all() -> None:
    """Cancel all other tasks of the running loop, and wait until they have ended."""
    await asyncio.sleep(0)  # lets the work handed over last begin
    unfinished = asyncio.all_tasks() - {asyncio.current_task()}
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)


def build_base_url(advertise: str, host: str, port: int) -> str:
    """Return the URL for clients.

    Args:
        advertise: "auto", an address, or a URL.
        host: The address on which the server listens.
        port: The port of the server.
    """
    if advertise == "auto":
        address = find_own_address() if host in ("0.0.0.0", "::") else host
    elif "://" in advertise:
        return advertise.rstrip("/") + ("" if advertise.rstrip("/").endswith("/v1") else "/v1")
    else:
        address = advertise
    if address.count(":") > 1 and not address.startswith("["):
        address = f"[{address}]"
    # The user's address may have a port of its own, such as a proxy's.
    authority = address if address.rpartition(":")[2].isdigit() and not address.endswith("]") else f"{address}:{port}"
    return f"http://{authority}/v1"
