"""Prompts that models refuse for what they say: too long for them, or filtered.

Invariant: such a refusal says nothing of the next prompt, so the prompt is left out and the others are asked. After
IN_A_ROW of them with no answer between, nor one on its way, the models are asked HARMLESS; the reading ends only where
none answers that either, for then it is the account. One that every model refused is kept with what was written, and
not asked again, once an answer after it or the reading's good end shows that it was the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ajet.record.console import counted
from ajet.schema.errors import AjetError
from ajet_datagen.generation.kept import GenerationStore

STATUSES = (400, 413, 422)
"""By which a server refuses what it was sent. A few refuse an account by them, too, and each prompt then."""
IN_A_ROW = 10
HARMLESS = "Reply with the word yes."
"""What no filter refuses, and no model finds too long."""
NAMED = 3
"""Prompts that are named."""
REFUSED = "refused"
"""In a kept row: why."""


class PromptRefusedError(AjetError):
    """Why no model answered it."""

    def __init__(self, why: str, *, by_all: bool) -> None:
        """`by_all`: each refused it, so that no other day is better; else some did not answer at all."""
        super().__init__(why)
        self.by_all = by_all


class PromptRefusals:
    """The refusals of one reading. `rows`: what is kept, by name."""

    def __init__(self, store: GenerationStore, rows: dict[str, Any]) -> None:
        self._store, self._rows = store, rows
        self._why: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._why)

    def is_refused(self, name: str, title: str) -> bool:
        """Whether an earlier reading left the prompt out; `title`: as it is told."""
        row = self._rows.get(name)
        if not isinstance(row, Mapping):
            return False
        self._why[title] = str(row[REFUSED])
        return True

    def note_refusal(self, name: str, title: str, refusal: PromptRefusedError) -> None:
        """A prompt is left out."""
        self._why[title] = str(refusal)
        if refusal.by_all:
            self._new[name] = str(refusal)

    async def save_refusals(self) -> None:
        """Keep what was noted: it was the prompts that were refused: those noted so far are not asked again."""
        new, self._new = self._new, {}
        for name, why in new.items():
            self._rows[name] = {REFUSED: why}
            await asyncio.to_thread(self._store.append_row, name, self._rows[name])

    def describe_refusals(self) -> str:
        """How many, which and why."""
        titles = list(self._why)
        named = ", ".join(titles[:NAMED]) + (" …" if len(titles) > NAMED else "")
        return f"{counted(len(titles), 'prompt')} refused: {named}; the last: {self._why[titles[-1]]}"
