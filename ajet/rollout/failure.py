"""From whatever ended an attempt to a `Failure`: classified once, here.

Invariant: the boundary says whose side failed. A `BoundaryError` names its own, wherever the workflow let it through;
a model call that the engine failed is the engine's; what the user's code raises otherwise is the agent's; what
happens outside that code is ajet's. Nothing that passed through the user's code is ajet's `own` failure, whatever class
it has. Only what declares itself retryable is played again. Texts are bounded.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from typing import Literal, get_args

from ajet.client.proxies import explain_problem
from ajet.rollout import bounds
from ajet.rollout.blame import from_outside
from ajet.rollout.unawaited import explain_unawaited
from ajet.schema.advice import advise_on
from ajet.schema.episode import Episode, Failure
from ajet.schema.errors import AjetError, Boundary, BoundaryError, UserError
from ajet.schema.task import Task

_SHARED = (
    "an object of asyncio (a lock, an aiohttp session, a connection) is shared by episodes, each of which has an event "
    "loop of its own: make it in each, or set rollout.isolation: loop"
)
_ADVICE = (
    ("asyncio.run() cannot be called from a running event loop", "write `await` there: an async execute has a loop"),
    (
        "EOF when reading a line",
        "it waits for the keyboard, and an episode has none: take the value from the task, as in "
        '`task.metadata["NAME"]`, or write it in the code',
    ),
    ("coroutine was expected", "an `await` is missing, or one too many"),
    ("this episode has ended", "a client that was kept from another attempt? Make it in each, of that attempt's tuner"),
    *((words, _SHARED) for words in ("bound to a different event loop", "attached to a different loop")),
    *((words, _SHARED) for words in ("Event loop is closed", "Timeout context manager should be used inside a task")),
)
"""What an exception's words most often mean, and what to do."""
Stage = Literal["construct", "open", "execute", "judge"]
"""What an attempt was doing: making the workflow, opening its session, running `execute`, being judged."""


class EpisodeFailed(AjetError):
    """Carries a failure that is classified already (by this process or by the one the workflow ran in)."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failed(
    kind: str,
    message: str,
    *,
    boundary: Literal["agent", "engine", "ajet"] = "agent",
    ended: BaseException | None = None,
) -> EpisodeFailed:
    """A failure that has no exception of its own. `ended`: what ended the user's code, whose lines are in its
    traceback."""
    text = "" if ended is None else "".join(traceback.format_exception(ended))
    own = boundary != "agent"
    return EpisodeFailed(
        bounds.failure(Failure(boundary, kind, message, retryable=boundary == "engine", traceback=text, own=own))
    )


def classify(problem: BaseException, stage: Stage = "execute", task: Task | None = None) -> Failure:
    """The failure that an exception means. `task`: of the attempt, where it is known."""
    if isinstance(problem, EpisodeFailed):
        return problem.failure
    text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
    cause: BaseException | None = problem
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, BoundaryError):
            own = stage == "open" or (stage == "judge" and bool(cause.own))
            told = cause.boundary == "agent" and stage == "execute"
            kind, said = type(cause).__name__, bounds.words_of(cause)
            side = cause.boundary if cause.boundary in get_args(Boundary) else "agent"  # a class of the user's own
            again = bool(cause.retryable)
            return bounds.failure(Failure(side, kind, said, again, text, own=own, policy=told))
        seen.add(id(cause))
        cause = cause.__cause__
    message = bounds.words_of(problem) or "(no message)"
    if stage == "execute":
        advice = next((advice for words, advice in _ADVICE if words in message), "") or advise_on(problem, task)
        if "'coroutine' object" in message:
            advice = explain_unawaited(problem)
        message += f" ({advice})" if advice else ""
    if explained := explain_problem(problem):
        message = f"{explained} ({message})"
    if isinstance(problem, asyncio.CancelledError):
        message = "the workflow's own task was cancelled from within"
    boundary: Boundary = "ajet" if stage == "open" else "agent"
    policy = stage == "execute" and not from_outside(problem)
    kind, own = type(problem).__name__, stage == "open"
    return bounds.failure(Failure(boundary, kind, message, traceback=text, own=own, policy=policy))


def all_failed(episodes: Sequence[Episode]) -> bool:
    """Whether there are some, and none has a reward or ended without a failure."""
    return bool(episodes) and all(episode.failure and not episode.scored for episode in episodes)


def refuse_if_all_failed(episodes: list[Episode], step: int) -> None:
    """Raises UserError when all did and none has a reward for it, with the first one's reason."""
    if not all_failed(episodes):
        return
    first = episodes[0].failure
    assert first is not None, "it failed"
    raise UserError(
        f"All {len(episodes)} episodes of step {step} failed; the first at the {first.boundary}: "
        f"{first.kind}: {first.message}",
        where=f"task {episodes[0].task.task_id}",
        expected="at least one episode that ends with a reward",
        do='run the same with --backbone debug (in Python backbone="debug"): it shows each episode and its traceback',
    )
