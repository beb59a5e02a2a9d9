"""Errors, classified once, at the boundary where they enter.

Two families. `UserError`: the person can mend it; the CLI shows one screen (what, where, expected, do) and exits 2.
`BoundaryError`: something outside failed during an episode; the rollout turns it into a `Failure` (data) and the
episode is never trained on. Anything else is a bug in ajet: exit 1 with the traceback in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ajet.schema.commands import format_extra_install

Boundary = Literal["engine", "agent", "tool", "environment", "sandbox", "judge", "ajet"]


class AjetError(Exception):
    """Root of every error that ajet raises on purpose, but for what runs where there is no ajet to import: the client
    (`ajet.client`), the inside of a sandbox, the servers of tools for GAIA."""


class UserError(AjetError):
    """Something the person wrote or chose; shown as one screen without a traceback, exit code 2.

    `what` is one sentence; `where` is file:line:column, a key, a task id or a reference; `expected` says what would
    have been right; `do` is the next step to take.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.expected, self.do = what, where, expected, do

    def __str__(self) -> str:
        rows = [self.what]
        rows += [f"  {label}: {text}" for label, text in self.rows()]
        return "\n".join(rows)

    def rows(self) -> list[tuple[str, str]]:
        """The labelled lines under the first one, those that are set, in the order they are shown."""
        pairs = [("where", self.where), ("expected", self.expected), ("do", self.do)]
        return [(label, text) for label, text in pairs if text]


class RunFailed(UserError):
    """Something that ajet stands on ended the run: a process, a node, a library. One screen like its kin, but exit code
    1, and the traceback is in the log."""


class ServiceUnreachableError(RunFailed):
    """Something that the run stands on was out of reach for too long. One screen, exit code 75: the same command goes
    on."""


class ConfigError(UserError):
    """A YAML file, key, value or override that cannot be used."""


class UnresolvedReferenceError(UserError):
    """A `file.py->Class` that does not resolve."""


class TaskError(UserError):
    """A task file, row or data set that cannot be used."""


class MissingExtraError(UserError):
    """An optional package is not installed; names the extra that brings it."""

    def __init__(self, package: str, extra: str, *, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package}, which is not installed.",
            do=format_extra_install(extra),
        )


class BoundaryError(AjetError):
    """A failure at one of the borders of an episode; becomes a `Failure` in its record."""

    boundary: Boundary = "ajet"
    retryable: bool = False
    own: bool = False
    """Raised by ajet's own side of the border, whatever the user's code did: see `Failure.own`."""

    def __init__(self, message: str, *, retryable: bool | None = None, own: bool = False) -> None:
        super().__init__(message)
        self.own = own
        if retryable is not None:
            self.retryable = retryable


class EngineFailure(BoundaryError):
    """The engine died, refused or timed out."""

    boundary, retryable = "engine", True


class EngineHangs(EngineFailure):
    """A server took a request and sent nothing for as long as it may: to ask it again at once would be to wait as long
    again."""


class AgentFailure(BoundaryError):
    """The user's workflow raised, hung, or returned something that is no WorkflowOutput."""

    boundary = "agent"


class RewardFailure(AgentFailure):
    """The user's workflow set a reward that is none."""


class ToolFailure(BoundaryError):
    """A tool outside the agent's own code failed."""

    boundary, retryable = "tool", True


class EnvironmentFailure(BoundaryError):
    """An environment could not be created, stepped or evaluated."""

    boundary, retryable = "environment", True


class SandboxFailure(BoundaryError):
    """A sandbox could not be made, or was lost."""

    boundary, retryable = "sandbox", True


class TeacherFailure(BoundaryError):
    """A teacher that is asked for log-probabilities did not answer, or not with what was asked for."""

    boundary, retryable = "judge", True


class JudgeFailure(BoundaryError):
    """The judge raised or returned something that is no verdict."""

    boundary = "judge"


State = Literal["ok", "note", "warning", "problem"]
"""`note`: good to know; `warning`: it works, at a cost; `problem`: a run would fail or learn from wrong tokens."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` is one sentence about `topic`; `do` the next step where there is one to take."""

    topic: str
    state: State
    text: str
    do: str = ""
