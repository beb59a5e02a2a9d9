"""The game: nine players, of whom three are werewolves. All that a player gets is text, and all that it gives: who it
is, a question, and what happened since it was asked last. An answer that names nobody who may be named counts as none.

A round is a night and a day. At night the werewolves name a victim, each hearing those before it, the witch may heal
it once and may poison once, the seer looks at somebody; in the day the seer may tell whom it found, and all vote, in
the order of their seats, each hearing those before it. Who dies, and as what, all hear. Who dies as a hunter may take
somebody along. The werewolves win when they are as many as the others; the others win when no werewolf is left, or when
the rounds are over.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

ROLES = ("werewolf",) * 3 + ("villager",) * 3 + ("seer", "witch", "hunter")
NOBODY = "nobody"


class Player(Protocol):
    """Whoever answers: a model, or rules."""

    async def answer(self, text: str) -> str: ...


@dataclass
class Part:
    """A night or a day."""

    name: str
    """"night" or "day"."""
    asked: list[int] = field(default_factory=list)
    """Who was asked something, in order; a player as often as it was."""
    dead: list[int] = field(default_factory=list)


@dataclass
class Game:
    """One game. `players` are by their number, from 1; `roles` too."""

    players: dict[int, Player]
    roles: dict[int, str]
    alive: list[int] = field(default_factory=list)
    heard: dict[int, list[str]] = field(default_factory=dict)
    """What each was told and has not been shown yet."""
    seen: set[int] = field(default_factory=set)
    """Whom the seer has looked at."""
    potions: set[str] = field(default_factory=lambda: {"heal", "poison"})
    unclear: int = 0
    """Answers that named nobody who could be named."""
    parts: list[Part] = field(default_factory=list)
    """So far; the last is being played."""

    async def play(self, rounds: int) -> str:
        """Who wins: "werewolves" or "others"."""
        self.alive = sorted(self.players)
        self.heard = {number: [] for number in self.alive}
        for number in range(1, rounds + 1):
            for name, part in (("night", self._night), ("day", self._day)):
                self.parts.append(Part(name))
                await self._die(await part(number))
                wolves = len(self._living("werewolf"))
                if wolves == 0:
                    return "others"
                if wolves >= len(self.alive) - wolves:
                    return "werewolves"
        return "others"

    async def _night(self, number: int) -> list[int]:
        wolves = self._living("werewolf")
        named: list[int | None] = []
        for wolf in wolves:
            named.append(await self.ask_target(wolf, f"Night {number}.", "Whom do you kill?"))
            self._tell((other for other in wolves if other > wolf), f"{wolf} wants {named[-1] or NOBODY}.")
        victim = _most(named)
        for seer in self._living("seer"):
            if (chosen := await self.ask_target(seer, f"Night {number}.", "Whom do you look at?")) is not None:
                self.seen.add(chosen)
                self._tell([seer], f"{chosen} is a {self.roles[chosen]}.")
        poisoned = None
        for witch in self._living("witch"):
            if victim is not None and "heal" in self.potions and await self._yes(witch, f"{victim} dies. Heal?"):
                self.potions.discard("heal")
                victim = None
            elif "poison" in self.potions:
                poisoned = await self.ask_target(
                    witch, f"Night {number}.", f"Whom do you poison? Or {NOBODY}.", may=True
                )
                self.potions -= {"poison"} if poisoned else set()
        return [each for each in dict.fromkeys((victim, poisoned)) if each is not None]

    async def _day(self, number: int) -> list[int]:
        for seer in self._living("seer"):
            found = [each for each in sorted(self.seen) if each in self._living("werewolf")]
            if found and await self._yes(seer, "Do you tell it?"):
                self._tell(
                    (each for each in self.alive if each != seer), f"{seer}, the seer: {found[0]} is a werewolf."
                )
        votes: list[int | None] = []
        for voter in self.alive:
            votes.append(await self.ask_target(voter, f"Day {number}.", "Whom do you vote out?"))
            self._tell((other for other in self.alive if other > voter), f"{voter} votes {votes[-1] or NOBODY}.")
        out = _most(votes)
        return [] if out is None else [out]

    async def _die(self, dead: list[int]) -> None:
        for each in dead:
            if each not in self.alive:
                continue
            self.alive.remove(each)
            self.parts[-1].dead.append(each)
            self._tell(self.alive, f"{each} is dead, a {self.roles[each]}.")
            if self.roles[each] == "hunter":
                shot = await self.ask_target(each, "You die.", f"Whom do you shoot? Or {NOBODY}.", may=True)
                await self._die([] if shot is None else [shot])

    async def ask_target(self, player: int, when: str, question: str, *, may: bool = False) -> int | None:
        """The living player, not itself, that its answer names. `may`: nobody is an answer."""
        others = " ".join(str(each) for each in self.alive if each != player)
        answer = await self._asked(player, f"{when} Others alive: {others}. {question}")
        numbers = re.findall(r"\d+", answer)
        if numbers and (number := int(numbers[0][:3])) in self.alive and number != player:
            return number
        self.unclear += not (may and NOBODY in answer.lower())
        return None

    async def _yes(self, player: int, question: str) -> bool:
        return "yes" in (await self._asked(player, question)).lower()

    async def _asked(self, player: int, question: str) -> str:
        news, self.heard[player] = self.heard[player], []
        self.parts[-1].asked.append(player)
        return await self.players[player].answer(" ".join((question, *news)))

    def _tell(self, players: Iterable[int], text: str) -> None:
        for each in players:
            self.heard[each].append(text)

    def _living(self, role: str) -> list[int]:
        return [each for each in self.alive if self.roles[each] == role]


def seated(draw: random.Random) -> dict[int, str]:
    """The roles in the order of the seats."""
    return dict(enumerate(draw.sample(ROLES, len(ROLES)), start=1))


def introduction(number: int, roles: dict[int, str]) -> str:
    """What a player knows before the game, for a system message."""
    role = roles[number]
    friends = [str(other) for other in roles if other != number and role == "werewolf" == roles[other]]
    return f"You are {number}, a {role}{' with ' if friends else ''}{' and '.join(friends)}. Answer with a number."


def _most(named: Iterable[int | None]) -> int | None:
    """Whom most have named; nobody if that is more than one."""
    most = Counter(each for each in named if each is not None).most_common(2)
    return most[0][0] if most and (len(most) == 1 or most[0][1] > most[1][1]) else None
