"""Separates AWorld's global state between concurrent episodes of one process.

By default AWorld shares it: messages in one unlocked file, agents in one table by id (the end of any task closes the
tools of all agents in it), run states in one list of 1,000. Invariant: AWorld's objects belong to the episode of their
context (contextvars), are visible only there, and end with it. Outside of episodes AWorld's state is unchanged.

Imports AWorld: import it only to run an episode.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import aworld.agents.llm_agent  # noqa: F401 - first: other orders of AWorld's modules are circles
from aworld.core.agent.base import AgentFactory
from aworld.core.event.message_future import MessageFuture
from aworld.memory.main import MEMORY_HOLDER, InMemoryMemoryStore, MemoryFactory
from aworld.runners.state_manager import InMemoryStateStorage

_TABLES = ("_cls", "_desc", "_agent_conf", "_agent_instance")
_lock = threading.Lock()


class EpisodeState:
    """The AWorld objects that belong to one episode."""

    def __init__(self) -> None:
        """Create empty tables of agents, and a memory of its own."""
        self.tables: dict[str, dict[str, Any]] = {name: {} for name in _TABLES}
        store = InMemoryMemoryStore()
        self.memory = MemoryFactory.from_config(_CONFIG, memory_store=store)
        self.polls: list[asyncio.Task[None]] = []
        """Tasks that poll for the end of a message."""


class _Memory:
    """Forwards AWorld's memory to the episode's own, or outside of episodes to AWorld's default."""

    _default_memory: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the present episode's memory, or of AWorld's default memory outside of episodes."""
        state = _state.get()
        if state is not None:
            return getattr(state.memory, name)
        with _lock:
            if _Memory._default_memory is None:
                _Memory._default_memory = MemoryFactory.from_config(_CONFIG)
        return getattr(_Memory._default_memory, name)


class _Table(MutableMapping[str, Any]):
    """A table of agents in which the episode's entries hide AWorld's global ones."""

    def __init__(self, name: str, outside: dict[str, Any]) -> None:
        """Store the table's name in `AgentFactory`, and AWorld's own table."""
        self._name, self._outer_table = name, outside

    @property
    def _own_table(self) -> dict[str, Any]:
        """The table that writes go to: the present episode's, or AWorld's own outside of episodes."""
        state = _state.get()
        return self._outer_table if state is None else state.tables[self._name]

    def __getitem__(self, key: str) -> Any:
        """Return an entry of the episode, or else of AWorld's own table. Raises KeyError."""
        own_table = self._own_table
        return own_table[key] if key in own_table else self._outer_table[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._own_table[key] = value

    def __delitem__(self, key: str) -> None:
        del self._own_table[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of both tables, each once."""
        return iter({**self._outer_table, **self._own_table})

    def __len__(self) -> int:
        return len({**self._outer_table, **self._own_table})

    def __contains__(self, key: object) -> bool:
        """True if the episode's or AWorld's own table has the key."""
        return key in self._own_table or key in self._outer_table


_state: ContextVar[EpisodeState | None] = ContextVar("ajet_aworld_kept", default=None)
_CONFIG: Any = None


@contextmanager
def isolate_episode(session: str) -> Iterator[None]:
    """Separate AWorld's objects within the block, and in tasks started there.

    Args:
        session: session id of the episode's AWorld tasks.
    """
    _install_isolation()
    state = EpisodeState()
    token = _state.set(state)
    try:
        yield
    finally:
        for poll in state.polls:
            poll.cancel()  # a poll for a message that was never stored would never end
        _state.reset(token)
        state_storage = InMemoryStateStorage.instance()
        with _lock:
            for node in state_storage._session_nodes.pop(session, ()):
                state_storage._nodes.pop(node.node_id, None)
            if session in state_storage._ordered_session_ids:
                state_storage._ordered_session_ids.remove(session)


def _poll_within_episode(self: Any, timeout: float | None = None) -> None:
    """Replace AWorld's polling for the end of a task: it stops at a known end, and with the episode."""
    if self.future.done():
        return
    poll_task, state = self._task, _state.get()
    _start_polling(self, timeout)
    if state is not None and self._task is not poll_task:
        state.polls.append(self._task)


_start_polling = MessageFuture._start_polling


def _install_isolation() -> None:
    """Install the separation once per process."""
    global _CONFIG
    with _lock:
        if _CONFIG is not None:
            return
        from aworld.core.memory import MemoryConfig

        _CONFIG = MemoryConfig(provider="aworld")
        _Memory._default_memory = MEMORY_HOLDER.get("instance")
        MEMORY_HOLDER["instance"] = _Memory()
        MessageFuture._start_polling = _poll_within_episode
        for name in _TABLES:
            setattr(AgentFactory, name, _Table(name, getattr(AgentFactory, name)))
        InMemoryStateStorage.instance()._max_session = (
            1 << 30
        )  # above its limit it deletes the oldest session, which may still run
