"""Who plays: a model behind an OpenAI client, or rules. Both get the same texts and answer them."""

import random
import re
from typing import Any

from game import NOBODY


class Talking:
    """A model. It remembers the game as a conversation; `call` are further arguments of each request."""

    def __init__(self, client: Any, introduction: str, **call: Any) -> None:
        self._client, self._call = client, call
        self.messages: list[dict[str, str]] = [{"role": "system", "content": introduction}]

    async def answer(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        reply = await self._client.chat.completions.create(messages=self.messages, **self._call)
        said = reply.choices[0].message.content or ""
        self.messages.append({"role": "assistant", "content": said})
        return said


class Scripted:
    """Rules: whom the seer tells of is voted out, poisoned or shot; without one, a vote goes to anybody, or to whom
    the one before voted for. It never lies, and never votes for itself."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._wolves: list[str] = []

    async def answer(self, text: str) -> str:
        self._wolves += re.findall(r"(\d+) is a werewolf\.", text)
        if "Heal?" in text:
            return "yes" if self._draw.random() < 0.5 else "no"
        if "tell it?" in text:
            return "yes"
        others = re.findall(r"\d+", text.partition("alive:")[2].partition(".")[0])
        known = [wolf for wolf in self._wolves if wolf in others]
        if f"Or {NOBODY}." in text:
            return known[0] if known else NOBODY
        before = [each for each in re.findall(r"votes (\d+)\.", text) if each in others]
        if known and "look at?" not in text:
            return known[0]
        return before[-1] if before and self._draw.random() < 0.5 else self._draw.choice(others)
