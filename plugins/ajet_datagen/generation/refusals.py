"""PromptRefusals: counts prompts that models refuse for their content (too long, or filtered).

Invariant: a refused prompt is left out and the others continue. After IN_A_ROW refusals without an answer or a running
request, the models get the prompt HARMLESS. If all refuse it too, the account is at fault and generation ends. A prompt
that every model refused is stored and not sent again, once a later answer or a successful end shows that the prompt was
at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ajet.record.console import counted
from ajet.schema.errors import AjetError
from ajet_datagen.generation.kept import GenerationStore

STATUSES = (400, 413, 422)
"""Statuses of refused content. Some servers refuse an account with them too, and then every prompt."""
IN_A_ROW = 10
HARMLESS = "Reply with the word yes."
"""A short prompt which no filter refuses."""
NAMED = 3
"""Maximum prompts named in a message."""
REFUSED = "refused"
"""Key of the reason in a stored row."""


class PromptRefusedError(AjetError):
    """No model answered this prompt, because of its content."""

    def __init__(self, why: str, *, by_all: bool) -> None:
        """Create the error.

        Args:
            by_all: True if every model refused the prompt. Otherwise some models did not answer.
        """
        super().__init__(why)
        self.by_all = by_all


class PromptRefusals:
    """The refused prompts of one generation.

    Args:
        rows: stored values by name, in which earlier refusals are found.
    """

    def __init__(self, store: GenerationStore, rows: dict[str, Any]) -> None:
        self._store, self._rows = store, rows
        self._reason_of_prompt: dict[str, str] = {}
        self._new_reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._reason_of_prompt)

    def is_refused(self, name: str, title: str) -> bool:
        """True if an earlier generation left this prompt out. `title` is its name in messages."""
        row = self._rows.get(name)
        if not isinstance(row, Mapping):
            return False
        self._reason_of_prompt[title] = str(row[REFUSED])
        return True

    def note_refusal(self, name: str, title: str, refusal: PromptRefusedError) -> None:
        """Remember a refused prompt for this generation."""
        self._reason_of_prompt[title] = str(refusal)
        if refusal.by_all:
            self._new_reasons[name] = str(refusal)

    async def save_refusals(self) -> None:
        """Store the recorded refusals, so that these prompts are not sent again."""
        new, self._new_reasons = self._new_reasons, {}
        for name, reason in new.items():
            self._rows[name] = {REFUSED: reason}
            await asyncio.to_thread(self._store.append_row, name, self._rows[name])

    def describe_refusals(self) -> str:
        """Return number, names and last reason of the refusals."""
        titles = list(self._reason_of_prompt)
        title_list = ", ".join(titles[:NAMED]) + (" …" if len(titles) > NAMED else "")
        return f"{counted(len(titles), 'prompt')} refused: {title_list}; the last: {self._reason_of_prompt[titles[-1]]}"
