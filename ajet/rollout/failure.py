"""Failures of attempts: classification, bounded texts, and the score of a failed attempt.

Invariants: the boundary names the side at fault. A `BoundaryError` names a boundary of its own, no matter where the
workflow let the error through. A model call failed in the engine belongs to the engine. Any other exception of user
code belongs to the agent, and a failure outside of user code to ajet. A failure raised through user code is never
ajet's `own`, whatever the class. Only failures declared retryable are repeated. Texts are bounded.

In doubt the policy is not to blame. An exception of the network, the file system or a time limit is never the policy's
failure. Neither is time spent in a tool or in a model call, whose length depends on the load. The policy is blamed only
for an episode with sampled tokens.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ajet.client.proxies import explain_problem
from ajet.schema.advice import advise_on
from ajet.schema.call import Call
from ajet.schema.episode import Episode, Failure, Verdict
from ajet.schema.errors import AjetError, Boundary, BoundaryError, UserError
from ajet.schema.task import Task
from ajet.schema.tool_use import EXTERNAL_ERRORS, ToolError, ToolUse

if TYPE_CHECKING:
    from ajet.gateway import Capture

MESSAGE_CHARS = 16_000
"""Characters stored from the start of an error message or of a judge's reason."""
TRACEBACK_CHARS = 20_000
"""Characters stored from the end of a traceback."""
OUTPUT_CHARS = 8_000
"""Characters stored from the end of an attempt's standard output and error."""
_SHARED = (
    "episodes share an asyncio object (a lock, an aiohttp session, a connection), but each episode has its own "
    "event loop: create the object inside each episode, or set rollout.isolation: loop"
)
_ADVICE = (
    (
        "asyncio.run() cannot be called from a running event loop",
        "use `await` there: an async execute already runs in an event loop",
    ),
    (
        "EOF when reading a line",
        (
            "the code waits for keyboard input, which an episode does not have: take the value from the task, as in "
            '`task.metadata["NAME"]`, or write it in the code'
        ),
    ),
    ("coroutine was expected", "an `await` is missing here, or one is too many"),
    (
        "this episode has ended",
        (
            "possibly a client that another attempt created: create the client inside each attempt, from the "
            "attempt's tuner"
        ),
    ),
    *((words, _SHARED) for words in ("bound to a different event loop", "attached to a different loop")),
    *((words, _SHARED) for words in ("Event loop is closed", "Timeout context manager should be used inside a task")),
)
"""Words of an exception, and advice for the most frequent cause of such an exception."""
REFUSALS = frozenset({"context_length_exceeded", "json_schema_not_met"})
"""Refusals of the gateway caused by the policy: a full context, or no reply matching a strict schema."""
_OUTSIDE = (OSError, EOFError, MemoryError, asyncio.CancelledError, asyncio.TimeoutError)
_OUTSIDE_NAMES = ("Timeout", "Connection", "Connect", "Transport", "NetworkError")
_BOUNDARIES: dict[ToolError, Boundary] = {"environment": "environment", "sandbox": "sandbox"}

Stage = Literal["construct", "open", "execute", "judge"]
"""The stage of an attempt: making the workflow, opening the session, running `execute`, judging."""
Culprit = Literal["start", "engine", "tool", "agent"]


class EpisodeError(AjetError):
    """Carries a failure that this process or a worker has already classified."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def make_error(
    kind: str,
    message: str,
    *,
    boundary: Literal["agent", "engine", "ajet"] = "agent",
    ended: BaseException | None = None,
) -> EpisodeError:
    """Return an exception for a failure that ajet found without catching an exception.

    Args:
        kind: Short name of the failure, such as "wrong_type".
        ended: The exception that ended user code. Its lines become the traceback.
    """
    text = "" if ended is None else "".join(traceback.format_exception(ended))
    is_own = boundary != "agent"
    return EpisodeError(
        bound_failure(Failure(boundary, kind, message, retryable=boundary == "engine", traceback=text, own=is_own))
    )


def keep_head(text: str, limit: int = MESSAGE_CHARS) -> str:
    """Return the first `limit` characters, followed by the number of characters cut."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters were cut)"


def keep_tail(text: str, limit: int, *, dropped: int = 0, unit: str = "characters") -> str:
    """Return the last `limit` characters. `dropped` is the amount lost before `text`, in `unit`."""
    removed = max(0, len(text) - limit) + dropped
    return f"({removed} {unit} before this were cut) …\n{text[-limit:]}" if removed else text


def bound_failure(failure: Failure) -> Failure:
    """Return the failure with bounded texts. Texts of user code may have any size."""
    if len(failure.message) <= MESSAGE_CHARS and len(failure.traceback) <= TRACEBACK_CHARS:
        return failure
    traceback_end = keep_tail(failure.traceback, TRACEBACK_CHARS)
    return replace(failure, message=keep_head(failure.message), traceback=traceback_end)


def read_message(problem: BaseException) -> str:
    """Return the message of an exception, also if the exception's `__str__` raises."""
    try:
        return str(problem)
    except Exception as error:  # noqa: BLE001 - user code, too
        return f"(the error's text could not be read: {type(error).__name__})"


def classify_exception(problem: BaseException, stage: Stage = "execute", task: Task | None = None) -> Failure:
    """Return the failure for an exception, with the boundary at fault.

    Args:
        stage: The work that raised the exception, such as "execute" or "judge".
        task: The attempt's task, if known.
    """
    if isinstance(problem, EpisodeError):
        return problem.failure
    text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
    cause: BaseException | None = problem
    visited: set[int] = set()
    while cause is not None and id(cause) not in visited:
        # The outermost BoundaryError in the chain of causes decides, even if user code wrapped it in another
        # exception.
        if isinstance(cause, BoundaryError):
            is_own = stage == "open" or (stage == "judge" and bool(cause.own))
            policy = cause.boundary == "agent" and stage == "execute"
            kind, message = type(cause).__name__, read_message(cause)
            side = cause.boundary if cause.boundary in get_args(Boundary) else "agent"  # a class of the user's own
            retryable = bool(cause.retryable)
            return bound_failure(Failure(side, kind, message, retryable, text, own=is_own, policy=policy))
        visited.add(id(cause))
        cause = cause.__cause__
    message = read_message(problem) or "(no message)"
    if stage == "execute":
        advice = next((advice for words, advice in _ADVICE if words in message), "") or advise_on(problem, task)
        if "'coroutine' object" in message:
            advice = _explain_unawaited(problem)
        message += f" ({advice})" if advice else ""
    if explained := explain_problem(problem):
        message = f"{explained} ({message})"
    if isinstance(problem, asyncio.CancelledError):
        message = "code of the workflow cancelled the workflow's own asyncio task"
    boundary: Boundary = "ajet" if stage == "open" else "agent"
    policy = stage == "execute" and not _is_from_outside(problem)
    kind, is_own = type(problem).__name__, stage == "open"
    return bound_failure(Failure(boundary, kind, message, traceback=text, own=is_own, policy=policy))


def _is_from_outside(problem: BaseException) -> bool:
    """True if an exception of the agent's code, or a cause of the exception, comes from outside the agent."""
    visited: set[int] = set()
    cause: BaseException | None = problem
    while cause is not None and id(cause) not in visited:
        names = [base.__name__ for base in type(cause).__mro__]
        if isinstance(cause, _OUTSIDE) or any(word in name for word in _OUTSIDE_NAMES for name in names):
            return True
        if isinstance(
            getattr(cause, "status_code", None), int
        ):  # an HTTP client's error; the gateway records errors of the run's own calls
            return True
        visited.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def find_failure(capture: Capture | None, failure: Failure | None) -> Failure | None:
    """Return the failure of an attempt, judged by its code's failure and by the captured calls and tool uses.

    A failed last model call comes first, then an attempt without any model call, then a tool lost to its environment,
    then the code's own failure. None: the attempt succeeded, or a check of the output ended it.

    Args:
        capture: The attempt's calls and tool uses. None: no session was opened.
        failure: The failure of the attempt's code. None: the code returned an output.
    """
    if capture is not None and capture.terminated is not None:
        return None
    if capture is not None and capture.calls and capture.calls[-1].finish == "error":
        last = capture.calls[-1]
        text = failure.traceback if failure else ""
        message = last.error or "the model call failed"
        return Failure("engine", "model_call", message, capture.may_engine_recover, text, own=True)
    if failure is None and (capture is None or not capture.calls):
        refusals = capture.refusals if capture is not None else []
        if refusals:
            refusal_list = "; ".join(f"{message} ({code})" if code else message for code, message in refusals)
            return make_error(
                "calls_refused",
                "the workflow ended without a reply of the model, because the gateway refused its model "
                f"calls: {refusal_list}",
            ).failure
        return make_error(
            "no_model_call",
            ("the workflow ended without a model call: call the model at the base URL and key that the tuner returns"),
        ).failure
    if (
        capture is not None
        and (failure is None or failure.policy)
        and (lost_tool := _find_lost_tool(capture.tool_uses))
    ):
        return lost_tool if failure is None else replace(lost_tool, traceback=failure.traceback)
    return failure if failure is None or capture is None else _add_refusal(failure, capture)


def _add_refusal(failure: Failure, capture: Capture) -> Failure:
    """Add to a failure the reason why the gateway refused the last request.

    An agent that does not check the HTTP status raises only later, at a field missing from the reply.
    """
    if failure.boundary != "agent" or not capture.unanswered:
        return failure
    if capture.unanswered in failure.message:
        return failure
    message = f"{failure.message} (the gateway refused its last model call: {capture.unanswered})"
    return bound_failure(replace(failure, message=message))


def _find_lost_tool(uses: Sequence[ToolUse]) -> Failure | None:
    """Return the failure of a tool that failed from outside and never answered successfully afterwards.

    The attempt's reward then does not measure the model, whatever the agent did afterwards.
    """
    answered: set[str] = set()
    for use in reversed(uses):
        if use.error in EXTERNAL_ERRORS and use.name not in answered:
            boundary: Boundary = _BOUNDARIES.get(use.error, "tool")
            message = f"the tool {use.name} failed ({use.error}) and returned no result afterwards: {use.result}"
            return Failure(boundary, f"tool_{use.error}", keep_head(message), retryable=True)
        answered.add(use.name)
    return None


def score_failure(failure: Failure, capture: Capture | None, reward: float | None) -> Verdict | None:
    """Return the verdict on a failed attempt: `reward` if the policy is to blame, else None.

    Args:
        reward: The setting `rollout.policy_failure_reward`.
    """
    if reward is None or not _is_policy_failure(failure, capture):
        return None
    return Verdict(reward, False, f"the agent's own code or the model caused the failure {failure.kind}")


def _is_policy_failure(failure: Failure, capture: Capture | None) -> bool:
    """True if the context was full, the agent's code raised at a reply, or a reply took the time."""
    if failure.boundary != "agent" or capture is None:
        return False
    if not any(call.trained and len(call.response_ids) for call in capture.calls):
        return False
    refused = capture.refused in REFUSALS and failure.kind not in ("timeout", "process_died")
    return refused or failure.policy


def classify_timeout(
    seconds: float | None,
    capture: Capture | None,
    started_at: float,
    ended_at: float,
    *,
    shared_loop: bool,
    stood: str = "",
) -> Failure:
    """Return the failure of an attempt that exceeded `seconds`.

    The place at the end of the attempt (see `measure_places`) is to blame if it is the engine or a tool. Otherwise the
    place with the longest time is to blame.

    Args:
        seconds: The time limit.
        started_at: Start of the attempt, in seconds since the epoch, like `ended_at`.
        shared_loop: True if episodes may delay each other. An episode is then not to blame for the time.
        stood: The line of user code at the timeout, as file:line.
    """
    message = f"the workflow did not end within {seconds:g} seconds (rollout.episode_timeout)" if seconds else ""
    message += f"; it was last at {stood}" if stood else ""
    if capture is None or not capture.calls:
        return Failure("agent", "timeout", message)
    spent, at_end = measure_places(capture.calls, capture.messages, started_at, ended_at)
    longest: Culprit = max(spent, key=lambda place: spent[place])
    shares = ", ".join(f"{value:.1f} s in the {place}" for place, value in spent.items() if value >= 0.05)
    message += f"; {shares}; at the end it was in the {at_end}" if shares else ""
    blamed = at_end if at_end in ("engine", "tool") else longest
    if blamed == "engine" and (earlier := _find_engine_error(capture.calls)):
        return Failure("engine", "timeout", f"{message}; the model call before had failed: {earlier}", own=True)
    if blamed == "engine" or blamed == "tool":
        return Failure(blamed, "timeout", message)
    return Failure("agent", "timeout", message, policy=blamed == "agent" and not shared_loop)


def measure_places(
    calls: Sequence[Call], messages: Sequence[Mapping[str, Any]], started_at: float, ended_at: float
) -> tuple[dict[Culprit, float], Culprit]:
    """Return the seconds spent in each place (such as engine or tool), and the place at the end.

    Times are from the record, by the system clock. The start lasts until the first call. After a reply with tool calls
    the place is the tool until the agent sends the next request. Other time between calls belongs to the agent's own
    code.
    """
    spent: dict[Culprit, float] = {"start": 0.0, "engine": 0.0, "tool": 0.0, "agent": 0.0}
    place: Culprit = "start"
    waiting: dict[str, bool] = {}
    cursor = started_at
    for call in sorted(calls, key=lambda call: call.started):
        start, end = max(call.started, started_at), min(call.ended or ended_at, ended_at)
        spent[place] += max(0.0, start - cursor)
        spent["engine"] += max(0.0, end - max(start, cursor))
        reply = messages[call.reply] if call.reply is not None else {}
        # One agent of several may wait for a tool while another one calls the model.
        waiting[call.agent] = bool(reply.get("tool_calls"))
        cursor = max(cursor, end)
        place = "tool" if any(waiting.values()) else "agent"
    spent[place] += max(0.0, ended_at - cursor)
    # A call that ended within the last 0.05 s was cut off by the end of the attempt.
    unfinished = any(not call.is_delivered and (call.ended or ended_at) >= ended_at - 0.05 for call in calls)
    return spent, "engine" if unfinished else place


def _find_engine_error(calls: Sequence[Call]) -> str:
    """Return the error of the call before the last, if the last never ended: the engine failed until the timeout."""
    *earlier_calls, last = sorted(calls, key=lambda call: call.started)
    error = earlier_calls[-1].error if earlier_calls and earlier_calls[-1].finish == "error" else None
    return error or "" if last.finish == "aborted" else ""


def have_all_failed(episodes: Sequence[Episode]) -> bool:
    """True if there are episodes and every episode failed without a reward."""
    return bool(episodes) and all(episode.failure and not episode.scored for episode in episodes)


def refuse_if_all_failed(episodes: list[Episode], step: int) -> None:
    """Raise UserError with the first failure if all episodes of a step failed and no failure has a reward."""
    if not have_all_failed(episodes):
        return
    first = episodes[0].failure
    assert first is not None, "the caller passes failed attempts only"
    raise UserError(
        f"All {len(episodes)} episodes of step {step} failed. The first failed because of the {first.boundary}: "
        f"{first.kind}: {first.message}",
        where=f"task {episodes[0].task.task_id}",
        expected="at least one episode that ends with a reward",
        do='run the same command with --backbone debug (in Python: backbone="debug"): it prints each episode '
        f"and its traceback{_ADVICE_ON_POLICY if any(_was_raised_at_reply(episode) for episode in episodes) else ''}",
    )


_ADVICE_ON_POLICY = (
    ". If the agent's code is right and the model's replies are not in the form that it expects, set "
    "ajet.rollout.policy_failure_reward: 0 (such an episode then counts as a bad one), or teach the form first by "
    "`ajet sft` with a few demonstrations"
)


def _was_raised_at_reply(episode: Episode) -> bool:
    """True if the episode failed in the agent's own code, as with a reply in an unexpected form."""
    return episode.failure is not None and episode.failure.policy


def _explain_unawaited(problem: BaseException) -> str:
    """Return advice for an unawaited coroutine: the line without the `await`, and how to write the call.

    The coroutine is closed. Python would otherwise warn later and name a line of Python's own code.
    """
    frame, name = None, ""
    for local_frame, variable in _close_unstarted(problem.__traceback__):
        frame, name = local_frame, variable
    if frame is None:
        return "an `await` is missing at the call that created it"
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    line = _find_assignment(file, name, frame.f_lineno)
    missing = f"an `await` is missing {(f'at {Path(file).name}:{line}' if line else 'at the call that created it')}"
    # In an `async def` the await alone is missing. A plain function must first become one, or use the blocking client.
    if frame.f_code.co_flags & inspect.CO_COROUTINE:
        return missing
    return (
        f"{missing}: write `async def {function}(…):` and `await` the call; or keep `def` and use "
        "`openai.OpenAI(base_url=…, api_key=…)` with `tuner.as_oai_baseurl_apikey()`"
    )


def _close_unstarted(trace: TracebackType | None) -> Iterator[tuple[FrameType, str]]:
    """Close the unstarted coroutines in local variables of the frames. Yield each frame and variable."""
    while trace is not None:
        for name, value in list(trace.tb_frame.f_locals.items()):
            if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                value.close()
                yield trace.tb_frame, name
        trace = trace.tb_next


def _find_assignment(file: str, name: str, before: int) -> int:
    """Return the last line up to `before` that assigns to the variable `name`, or 0 without source code."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return 0
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name and node.lineno <= before
    ]
    return max(lines, default=0)
