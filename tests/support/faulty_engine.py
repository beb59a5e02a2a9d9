"""An engine whose calls fail, break off and hang, and whose weights come late, by one seed.

It keeps what it said, token by token, with the weights that said it: what a record says of versions is held to that.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.engine.scripted import ScriptedEngine, ScriptedReply
from tests.support.rollouts import renderer
from tests.support.store_world import Faults

DIGITS = 6
"""Tokens at the beginning of a reply by which it is known."""


@dataclass
class Said:
    """A reply, by the engine itself."""

    versions: list[int] = field(default_factory=list)
    """Of each token."""
    whole: bool = False


class World(Protocol):
    """What an engine is in."""

    draw: random.Random
    calm: bool
    """Nothing goes wrong any more."""
    step: int
    """The newest policy."""
    names: int
    """Replies so far."""
    said: dict[tuple[int, ...], Said]

    @property
    def faults(self) -> Faults: ...

    def hung(self) -> None:
        """A call will get no answer. From any thread."""


class Engine(ScriptedEngine):
    """Some calls fail before a token or after some, some hang, and weights come late, within a reply too."""

    def __init__(self, world: World) -> None:
        words = renderer()
        super().__init__(self._scripted, encode=words.encode, end_id=words.end_ids[0], chunk=4, version=world.step)
        self._world = world
        self._owed = world.step

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """See TokenEngine."""
        ids, said = list[int](), Said()
        async with aclosing(cast(Any, super().generate(request))) as chunks:
            async for chunk in chunks:
                ids += chunk.ids
                said.versions += [chunk.version] * len(chunk.ids)
                if len(ids) >= DIGITS:
                    self._world.said[tuple(ids[:DIGITS])] = said
                if self._owed > self.version and self._world.draw.random() < 0.3:
                    self._world.faults.counts["weights came within a reply"] += 1
                    self.weights_changed(self._owed)
                yield chunk
        said.whole = True

    def load(self, version: int) -> None:
        """At once, or later."""
        self._owed = version
        if self._world.calm or self._world.draw.random() < 0.6:
            self.weights_changed(version)
        else:
            self._world.faults.counts["weights came late"] += 1

    def _scripted(self, _: TokenRequest) -> ScriptedReply:
        world = self._world
        world.names += 1
        kinds = ["", "call fails", "call breaks off", "call hangs"]
        kind = "" if world.calm else world.draw.choices(kinds, [9, 1, 1, 1])[0]
        if kind:
            world.faults.counts[kind] += 1
        if kind == "call hangs":
            world.hung()
        fails = {"call fails": 0, "call breaks off": DIGITS + 1}.get(kind)
        latency = 1e6 if kind == "call hangs" else 0.0
        return ScriptedReply(f"{world.names:0{DIGITS}} yes", fail_after=fails, latency=latency)
