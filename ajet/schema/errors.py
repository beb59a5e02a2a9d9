"""Errors, classified once at the boundary of their origin.

Two families. `UserError`: the user can fix the problem; the CLI shows a screen (what, where, expected, do) and exits
with the class's `exit_code`. `BoundaryError`: an external component failed during an episode; the rollout records a
`Failure` (data), and the episode is never trained. Any other exception is a bug in ajet: exit 1 with the traceback in
the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal

from ajet.schema.commands import explain_python_bound, format_extra_install

Boundary = Literal["engine", "agent", "tool", "environment", "sandbox", "judge", "ajet"]
NO_COMPLETION = "the answer is not a chat completion of the OpenAI API"
"""The reason if a model's server answers anything else."""


class AjetError(Exception):
    """Root of all errors of ajet.

    Code that runs without ajet has separate errors: the client (`ajet.client`), the inside of a sandbox, GAIA's tool
    servers.
    """


class UserError(AjetError):
    """A mistake of the user: a single screen without a traceback.

    `what` is a sentence; `where` is file:line:column, a key, a task id or a reference; `expected` is the correct form;
    `do` is the next step.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, *, where: str = "", expected: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.do = do

    def __str__(self) -> str:
        rows = [self.what]
        rows += [f"  {label}: {text}" for label, text in self.rows()]
        return "\n".join(rows)

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) of those of where, expected and do that are set, in the order of display."""
        pairs = [("where", self.where), ("expected", self.expected), ("do", self.do)]
        return [(label, text) for label, text in pairs if text]


class RunFailed(UserError):
    """A process, node or library ended the run: one screen, the traceback in the log."""

    exit_code: ClassVar[int] = 1


class ServiceUnreachableError(RunFailed):
    """A required service was out of reach for too long. The same command resumes the run."""

    exit_code: ClassVar[int] = 75


class ConfigError(UserError):
    """A YAML file, key, value or override that cannot be used."""


class UnresolvedReferenceError(UserError):
    """A reference `file.py->Class` that does not resolve."""


class TaskError(UserError):
    """A task file, row or data set that cannot be used."""


class MissingExtraError(UserError):
    """An optional package is not installed. The message names the extra to install, or why this Python has none."""

    def __init__(self, package: str, extra: str, *, needed_for: str) -> None:
        bound = explain_python_bound(extra)
        super().__init__(
            f"{needed_for} needs the package {package}, which is not installed{f': {bound}' if bound else ''}.",
            do="make an environment with an older Python" if bound else format_extra_install(extra),
        )


def require_packages(*packages: str, extra: str, needed_for: str) -> None:
    """Raise MissingExtraError if a package is not installed. Imports no package."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package, extra, needed_for=needed_for)


class BoundaryError(AjetError):
    """An external component failed during an episode. The rollout records it as a `Failure`."""

    boundary: Boundary = "ajet"
    retryable: bool = False
    own: bool = False
    """True if raised by ajet's own side of the boundary (`Failure.own`)."""

    def __init__(self, message: str, *, retryable: bool | None = None, own: bool = False) -> None:
        super().__init__(message)
        self.own = own
        if retryable is not None:
            self.retryable = retryable


class EngineFailure(BoundaryError):
    """The engine, which samples the replies, died, refused a request or timed out."""

    boundary, retryable = "engine", True


class EngineHangs(EngineFailure):
    """A server accepted a request and sent no data until the timeout. A retry would wait equally long."""


class AgentFailure(BoundaryError):
    """The user's workflow raised an exception, hung, or returned no WorkflowOutput."""

    boundary = "agent"


class RewardFailure(AgentFailure):
    """The user's workflow set an invalid reward."""


class ToolFailure(BoundaryError):
    """A tool outside the agent's own code failed."""

    boundary, retryable = "tool", True


class EnvironmentFailure(BoundaryError):
    """An environment could not be created, stepped or evaluated."""

    boundary, retryable = "environment", True


class SandboxFailure(BoundaryError):
    """A sandbox could not be made or was lost."""

    boundary, retryable = "sandbox", True


class TeacherFailure(BoundaryError):
    """A teacher did not return the requested log-probabilities."""

    boundary, retryable = "judge", True


class JudgeFailure(BoundaryError):
    """The judge raised or returned no verdict."""

    boundary = "judge"


State = Literal["ok", "note", "warning", "problem"]
"""`note`: information; `warning`: works at a cost; `problem`: a run would fail or train on wrong tokens."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `ajet doctor`: `text` is a sentence about `topic`, and `do` the next step or ""."""

    topic: str
    state: State
    text: str
    do: str = ""
