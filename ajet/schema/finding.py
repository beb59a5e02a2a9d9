"""Finding: one thing that a check looked at, and what it saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warning", "problem"]
"""`note`: good to know; `warning`: it works, at a cost; `problem`: a run would fail or learn from wrong tokens."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` is one sentence about `topic`; `do` the next step where there is one to take."""

    topic: str
    state: State
    text: str
    do: str = ""
