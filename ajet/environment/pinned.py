"""Pinned: a run's tools as its first attempt found them.

Invariant: within a run every attempt is offered the same tools: same names, descriptions and schemas, in the same
order, whichever process plays it and however often the run was resumed. An attempt that finds others does not begin,
and says what changed. The run folder has them, written once; a replay needs nothing else to know its tools.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import EnvironmentFailure, UserError

FILE = "tools.json"
"""In the run folder."""
LINES = 60
"""Of a diff that an error shows."""
ToolList = Sequence[Mapping[str, Any]]
"""As a request's `tools`."""
Pin = Callable[[ToolList], list[dict[str, Any]]]
"""Takes what an attempt found, answers it in the run's order. Raises ToolsChangedError."""


class ToolsChangedError(EnvironmentFailure):
    """The servers offer other tools than when the run began."""

    retryable = False


@dataclass(frozen=True, slots=True)
class PinnedTools:
    """Tools as models are told of them."""

    tools: Mapping[str, str]
    """Offered name to its description and schema, as JSON."""

    @classmethod
    def of(cls, tools: ToolList) -> PinnedTools:
        """The pinned tool of an entry in a request's `tools`. Raises ValueError and kin for what is none."""
        return cls({each["function"]["name"]: _spell_function(each["function"]) for each in tools})

    @property
    def digest(self) -> str:
        """SHA-256 of all of them, in hexadecimal."""
        return hashlib.sha256(json.dumps(dict(self.tools), sort_keys=True).encode()).hexdigest()

    def require(self, found: PinnedTools) -> None:
        """Raises ToolsChangedError, with a diff."""
        if found.tools == self.tools:
            return
        lines = [
            line
            for name in sorted({*self.tools, *found.tools})
            for line in difflib.unified_diff(
                self.tools.get(name, "").splitlines(), found.tools.get(name, "").splitlines(),
                f"{name}, as the run began", f"{name}, now", n=1, lineterm="",
            )
        ]  # fmt: skip
        more = f"\n… and {len(lines) - LINES} lines more" if len(lines) > LINES else ""
        raise ToolsChangedError(
            f"the tools have changed since the run began; bring the old ones back, or {FRESH_ADVICE}:\n"
            + "\n".join(lines[:LINES])
            + more
        )


class ToolPins:
    """The pinned answers of one run, for one process that plays it. Thread-safe."""

    def __init__(
        self,
        first: Callable[[list[Any]], list[Any]] | None = None,
        redact: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """`first`: hands in what the first attempt here found, and answers what the run's first found; without it, that
        is the same, and known to this process alone. `redact`: takes secrets out of what is kept, and compared."""
        self._first, self._redact, self._lock = first, redact, threading.Lock()
        self._pinned: PinnedTools | None = None

    def __call__(self, found: ToolList) -> list[dict[str, Any]]:
        """See `Pin`."""
        by_name = {each["function"]["name"]: dict(each) for each in found}
        plain = self._redact([*found]) if self._redact is not None else [*found]
        with self._lock:
            if self._pinned is None:
                self._pinned = PinnedTools.of(self._first(plain) if self._first is not None else plain)
        self._pinned.require(PinnedTools.of(plain))
        return [by_name[name] for name in self._pinned.tools]


class PinnedFile:
    """A run's tools in its folder: for the process that writes there."""

    def __init__(self, folder: Path, *, goes_on: bool = True) -> None:
        """`goes_on`: the run does, with the tools that it had. Raises UserError for a damaged file."""
        self._file = folder / FILE
        self.tools = read_pinned(folder) if goes_on else None

    def first(self, found: list[Any]) -> list[Any]:
        """The answer that the run's first attempt found: `found` is kept, if this is the first."""
        if self.tools is None:
            write_atomically(self._file, json.dumps({"tools": found}, indent=1, ensure_ascii=False) + "\n")
            self.tools = found
        return self.tools


def read_pinned(folder: Path) -> list[Any] | None:
    """The tools of the run in `folder`, as a request's `tools`; None where it pinned none. Raises UserError."""
    try:
        tools = read_json(folder / FILE)["tools"]
        PinnedTools.of(tools)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"What tells the tools of this run is damaged ({type(error).__name__}: {error}).",
            where=str(folder / FILE),
            expected='the JSON object that ajet wrote there: {"tools": [...]}',
            do="restore the file from a copy, or remove it: the next attempt pins the tools as they are then",
        ) from error
    return list(tools)


def _spell_function(function: Mapping[str, Any]) -> str:
    return json.dumps(function, sort_keys=True, indent=1, ensure_ascii=False)
