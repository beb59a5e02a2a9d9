"""Pin the tools of a run to the tools of its first attempt.

Invariant: every attempt of a run is offered the same tools (names, descriptions, schemas, order) in every process and
after every resume. An attempt with other tools fails with the difference. The run folder stores the tools once, and a
replay reads the stored tools.
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

from ajet.record.files import read_json, write_atomically
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import EnvironmentFailure, UserError

FILE = "tools.json"
"""Name of the file in the run folder."""
LINES = 60
"""Maximum lines of a diff in an error."""
ToolList = Sequence[Mapping[str, Any]]
"""Tools in the form of a request's `tools`."""
Pin = Callable[[ToolList], list[dict[str, Any]]]
"""Returns the found tools in the run's order. Raises ToolsChangedError."""


class ToolsChangedError(EnvironmentFailure):
    """The servers offer other tools than when the run began."""

    retryable = False


@dataclass(frozen=True, slots=True)
class PinnedTools:
    """Tools as described to models."""

    tools: Mapping[str, str]
    """Offered name to its description and schema, as JSON."""

    @classmethod
    def of(cls, tools: ToolList) -> PinnedTools:
        """Build from a request's `tools`, by name.

        Raises:
            ValueError, KeyError, TypeError: an entry is no tool.
        """
        functions = [tool["function"] for tool in tools]
        return cls(
            {
                function["name"]: json.dumps(function, sort_keys=True, indent=1, ensure_ascii=False)
                for function in functions
            }
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all tools, in hexadecimal."""
        return hashlib.sha256(json.dumps(dict(self.tools), sort_keys=True).encode()).hexdigest()

    def require(self, tools: PinnedTools) -> None:
        """Raise ToolsChangedError with a diff if `tools` differ from these tools in name, description or schema."""
        if tools.tools == self.tools:
            return
        diff_lines = [
            line
            for name in sorted({*self.tools, *tools.tools})
            for line in difflib.unified_diff(
                self.tools.get(name, "").splitlines(), tools.tools.get(name, "").splitlines(),
                f"{name} at the start of the run", f"{name}, now", n=1, lineterm="",
            )
        ]  # fmt: skip
        cut_notice = f"\n… and {len(diff_lines) - LINES} lines more" if len(diff_lines) > LINES else ""
        raise ToolsChangedError(
            f"the tools have changed since the start of the run; restore the old tools, or {FRESH_ADVICE}:\n"
            + "\n".join(diff_lines[:LINES])
            + cut_notice
        )


class ToolPins:
    """Checks in one process that every attempt has the tools of the run's first attempt. Thread-safe."""

    def __init__(
        self,
        first: Callable[[list[Any]], list[Any]] | None = None,
        redact: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """Create the pins.

        Args:
            first: receives the tools of the process's first attempt, returns the tools of the run's first attempt. None
                compares within the process only.
            redact: removes secrets before storing and comparing.
        """
        self._load_first_tools = first
        self._redact = redact
        self._lock = threading.Lock()
        self._pinned_tools: PinnedTools | None = None

    def __call__(self, tools: ToolList) -> list[dict[str, Any]]:
        """Return an attempt's tools in the order of the run's first attempt.

        Raises ToolsChangedError for other tools.
        """
        tool_by_name = {tool["function"]["name"]: dict(tool) for tool in tools}
        redacted_tools = self._redact([*tools]) if self._redact is not None else [*tools]
        with self._lock:
            if self._pinned_tools is None:
                self._pinned_tools = PinnedTools.of(
                    self._load_first_tools(redacted_tools) if self._load_first_tools is not None else redacted_tools
                )
        self._pinned_tools.require(PinnedTools.of(redacted_tools))
        return [tool_by_name[name] for name in self._pinned_tools.tools]


class PinnedFile:
    """The tools file in a run's folder, for the writing process."""

    def __init__(self, folder: Path, *, goes_on: bool = True) -> None:
        """Read the stored tools.

        Args:
            folder: Folder of the run.
            goes_on: True if the run continues with its stored tools, False to store those of the next attempt.

        Raises:
            UserError: the file is damaged.
        """
        self._file = folder / FILE
        self.tools = read_pinned(folder) if goes_on else None

    def first(self, found: list[Any]) -> list[Any]:
        """Return the tools of the run's first attempt; if none are stored, this attempt is the first: store `found`."""
        if self.tools is None:
            write_atomically(self._file, json.dumps({"tools": found}, indent=1, ensure_ascii=False) + "\n")
            self.tools = found
        return self.tools


def read_pinned(folder: Path) -> list[Any] | None:
    """Return the stored tools of the run in `folder` as a request's `tools`, or None without the file.

    Raises:
        UserError: the file is damaged.
    """
    try:
        tools = read_json(folder / FILE)["tools"]
        PinnedTools.of(tools)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"The tools file of this run is damaged ({type(error).__name__}: {error}).",
            where=str(folder / FILE),
            expected='the JSON object that ajet wrote there: {"tools": [...]}',
            do="restore the file from a copy, or delete it: the next attempt then records the current tools",
        ) from error
    return list(tools)
