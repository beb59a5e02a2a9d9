"""Episodes of an environment, each with its server instances, running calls and failures.

Invariants: an episode's id is 128 random bits. There are at most `capacity` episodes. An episode ends after `idle`
seconds without a call. After an exclusive server of an episode dies, every further call of the episode fails with that
reason, since its state is lost. Ending an episode waits for its running calls.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.schema.errors import AjetError, BoundaryError, EnvironmentFailure, UserError
from ajet_environments.front.servers import InstancePool, Json

if TYPE_CHECKING:
    from ajet_environments.deployment.instances import McpInstance

MAX_TABLES = 256
"""Server selections with a cached tool table."""
SEPARATOR = "__"
"""Between server and tool, if two servers share a tool's name."""


class EnvironmentFullError(AjetError):
    """The environment accepts no further episode, because it is full or shutting down."""


class EpisodeLostError(EnvironmentFailure):
    """A server of the episode died, and the episode's state there is lost."""

    retryable = False


class UnknownToolError(AjetError):
    """The model called a tool or server unknown to the environment."""


@dataclass(slots=True)
class FrontEpisode:
    """The state of one episode: selected servers, their instances, and the number of running calls."""

    name: str
    servers: tuple[str, ...] | None = None
    """The selected servers; None: all."""
    is_stateless: bool = False
    """True for a client without an episode: only shared servers answer."""
    last_used: float = 0.0
    instances: dict[str, McpInstance] = field(default_factory=dict)
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    running: int = 0
    ended: asyncio.Event | None = None
    """Created when the episode ends; set once no call runs."""
    lost: str = ""


class FrontEpisodes:
    """Creates, looks up and ends all episodes of an environment, on one event loop."""

    def __init__(
        self,
        servers: Iterable[InstancePool],
        *,
        capacity: int,
        idle: float,
        tools: Iterable[str] = (),
        on_ended: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Create the store of episodes over one instance pool per server.

        Args:
            capacity: largest number of open episodes.
            idle: seconds without a call after which an episode ends.
            tools: names of the tools visible to clients; empty for all.
            on_ended: called in a thread with the episode's id after its servers are released.
        """
        self.servers: Mapping[str, InstancePool] = {server.name: server for server in servers}
        self.capacity, self.idle = capacity, idle
        self.is_draining = False
        self._shown_tools, self.on_ended = tuple(tools), on_ended
        self.counts: Counter[str] = Counter()
        self._episodes: dict[str, FrontEpisode] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._tables: dict[tuple[tuple[str, ...], bool], dict[str, tuple[InstancePool, Json]]] = {}

    async def open(self) -> None:
        """Start the spare instances of all servers, and check the visible tools.

        Raises:
            BoundaryError: a server does not start.
            UserError: a visible tool belongs to no server.
        """
        await asyncio.gather(*(server.open() for server in self.servers.values()))
        tool_names = [tool["name"] for server in self.servers.values() for tool in server.tools]
        if unknown_tools := [name for name in self._shown_tools if name not in tool_names]:
            raise UserError(
                f"No server of this environment has the tool {unknown_tools[0]}.",
                where="tools",
                expected=", ".join(dict.fromkeys(tool_names)) or "there is none",
            )

    def __len__(self) -> int:
        return len(self._episodes)

    def create(self, servers: Sequence[str] | None = None) -> FrontEpisode:
        """Create an episode with the given servers (None: all).

        Raises:
            EnvironmentFullError: `capacity` is reached, or the environment shuts down.
            UnknownToolError: a server name is unknown.
        """
        if self.is_draining:
            raise EnvironmentFullError("the environment is shutting down and opens no new episode")
        if len(self._episodes) >= self.capacity:
            raise EnvironmentFullError(f"{self.capacity} episodes are open, as many as `capacity` allows")
        server_names = self.check_servers(servers)
        episode = FrontEpisode(secrets.token_hex(16), server_names, last_used=time.monotonic())
        self._episodes[episode.name] = episode
        self.counts["episodes"] += 1
        return episode

    def find(self, name: str) -> FrontEpisode | None:
        """Return the episode with this id and reset its idle time, or return None."""
        episode = self._episodes.get(name)
        if episode is not None:
            episode.last_used = time.monotonic()
        return episode

    async def end(self, name: str) -> bool:
        """End an episode: wait for its running calls, then release its servers.

        Return False if no such episode is open.
        """
        episode = self._episodes.pop(name, None)
        if episode is None:
            return False
        episode.ended = asyncio.Event()  # set by the last running call; `_release_instances` waits for it
        # Shielded: the release finishes even if the client disconnects.
        await asyncio.shield(self._run_in_background(self._release_instances(episode)))
        return True

    async def reap(self) -> int:
        """End all episodes without a call for `idle` seconds, and return how many."""
        last_allowed_use, ended_count = time.monotonic() - self.idle, 0
        for episode in list(self._episodes.values()):
            # Checked now, since it may have been used while the episode before was ended.
            if episode.last_used < last_allowed_use and not episode.running:
                ended_count += await self.end(episode.name)
        self.counts["reaped"] += ended_count
        return ended_count

    async def close(self) -> None:
        """Stop creating episodes, wait for running calls, and end all servers."""
        self.is_draining = True
        await asyncio.gather(*(self.end(name) for name in list(self._episodes)))
        while self._background_tasks:
            await asyncio.gather(*self._background_tasks)
        await asyncio.gather(*(server.close() for server in self.servers.values()))

    def check_servers(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        """Validate server names and return them as a tuple. None (all servers) stays None.

        Raises:
            UnknownToolError: a name is unknown.
        """
        if names is None:
            return None
        unknown = [name for name in names if name not in self.servers]
        if unknown:
            raise UnknownToolError(f"there is no server {unknown[0]!r}; the servers are: {', '.join(self.servers)}")
        return tuple(names)

    def list_tools(self, episode: FrontEpisode, servers: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the MCP tool listings visible to the episode.

        A name used by two servers gets its server's name as prefix.

        Args:
            servers: restricts the listing to these servers; None for the episode's selection.
        """
        return [{**tool, "name": name} for name, (_, tool) in self._find_tools(episode, servers).items()]

    async def call(
        self, episode: FrontEpisode, name: str, arguments: Json, servers: Sequence[str] | None = None
    ) -> Mapping[str, Any]:
        """Call a tool in an episode and return the MCP result.

        Raises:
            UnknownToolError: no selected server has the tool.
            EpisodeLostError: a server of the episode died earlier.
            BoundaryError: the call failed outside the tool.
        """
        server_and_tool = self._find_tools(episode, servers).get(name)
        if server_and_tool is None:
            raise UnknownToolError(self._explain_unknown(episode, name))
        server, tool = server_and_tool
        if server.off:
            return {"content": [{"type": "text", "text": f"the server {name} is off: {server.off}"}], "isError": True}
        episode.running += 1
        self.counts["calls"] += 1
        try:
            instance = await self._take_instance(episode, server)
            try:
                return await instance.call(tool["name"], arguments)
            except BoundaryError as problem:
                raise self._record_lost_instance(episode, server, instance, problem) from problem
        finally:
            episode.running -= 1
            episode.last_used = time.monotonic()
            if episode.ended is not None and not episode.running:
                episode.ended.set()

    async def _take_instance(self, episode: FrontEpisode, server: InstancePool) -> McpInstance:
        """Return the instance that answers the episode's call, and start one on the first call.

        A lock per episode and server lets concurrent first calls get the same instance.

        Raises:
            EpisodeLostError: the episode has ended, or its instance has died.
            BoundaryError: no instance can be had.
        """
        _require_open(episode)
        if server.per == "shared":
            return await server.take()
        async with episode.locks.setdefault(server.name, asyncio.Lock()):
            _require_open(episode)  # checked again, because the episode may have ended during the wait for the lock
            instance = episode.instances.get(server.name)
            if instance is not None and not instance.is_alive:
                raise self._record_lost_instance(episode, server, instance, EnvironmentFailure("the server has ended"))
            if instance is None:
                instance = await server.take(episode.name)
                if episode.ended is not None:  # the episode ended during the wait for an instance
                    await server.give_back(instance)
                    raise EpisodeLostError("the episode has ended")
                episode.instances[server.name] = instance
            return instance

    def _record_lost_instance(
        self, episode: FrontEpisode, server: InstancePool, instance: McpInstance, problem: BoundaryError
    ) -> BoundaryError:
        """Mark the episode as lost if its exclusive instance died, and return the error to raise.

        A shared server holds no state of an episode, so the next call simply gets a new instance.
        """
        self.counts["lost"] += 1
        logger.warning("{}: {}", server.name, problem)
        reason = f"{server.name}: {str(problem).splitlines()[0]}"
        if server.per == "shared":
            return EnvironmentFailure(reason)
        if episode.instances.get(server.name) is instance:
            del episode.instances[server.name]
            self._run_in_background(server.give_back(instance))  # no caller waits for the lost instance
        episode.lost = reason
        return EpisodeLostError(episode.lost)

    def _run_in_background(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task that survives a disconnecting client. `close` awaits the task."""
        task = asyncio.get_running_loop().create_task(ending)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def _release_instances(self, episode: FrontEpisode) -> None:
        """Wait for the episode's running calls, give its instances back, and call `on_ended`."""
        if episode.running and episode.ended is not None:
            await episode.ended.wait()
        instances, episode.instances = episode.instances, {}
        await asyncio.gather(*(self.servers[name].give_back(instance) for name, instance in instances.items()))
        # In a thread, because the model may have written many files, whose deletion takes long.
        await asyncio.to_thread(self.on_ended, episode.name)

    def _find_tools(self, episode: FrontEpisode, servers: Sequence[str] | None) -> dict[str, tuple[InstancePool, Json]]:
        """Map visible tool names to (pool, MCP listing), cached per selection of servers."""
        server_names = self.check_servers(servers) or episode.servers or tuple(self.servers)
        table_key = (server_names, episode.is_stateless)
        if table_key not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            self._tables[table_key] = self._build_tool_table(*table_key)
        return self._tables[table_key]

    def _build_tool_table(self, server_names: tuple[str, ...], stateless: bool) -> dict[str, tuple[InstancePool, Json]]:
        """Map each visible tool name to (pool, MCP listing).

        A name that two servers have gets the prefix SERVER__. Without an episode, only shared servers are visible.
        """
        server_tools = [
            (server, tool)
            for name in server_names
            if (server := self.servers[name]).per == "shared" or not stateless
            for tool in server.tools
            if not self._shown_tools or tool["name"] in self._shown_tools
        ]
        name_counts = Counter(tool["name"] for _, tool in server_tools)
        return {
            tool["name"] if name_counts[tool["name"]] == 1 else f"{server.name}{SEPARATOR}{tool['name']}": (
                server,
                tool,
            )
            for server, tool in server_tools
        }

    def _explain_unknown(self, episode: FrontEpisode, name: str) -> str:
        """Return the error message for an unknown tool.

        A tool of a server with state per episode exists, but needs an episode; the message then says how to open one.
        """
        stateful_servers = [
            server.name for server in self.servers.values() if any(tool["name"] == name for tool in server.tools)
        ]
        if episode.is_stateless and stateful_servers:
            return (
                f"the server {stateful_servers[0]} keeps state for each episode, but this client uses no episode: "
                "open one by POST /episodes, and use the address that it returns"
            )
        return f"Unknown tool: {name}"


def _require_open(episode: FrontEpisode) -> None:
    """Raise EpisodeLostError if the episode has ended, or if one of its servers was lost."""
    if episode.ended is not None:
        raise EpisodeLostError("the episode has ended")
    if episode.lost:
        raise EpisodeLostError(episode.lost)
