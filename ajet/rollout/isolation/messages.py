"""The messages between the rollout and a worker, and their bodies: the one protocol of process, sandbox and loops.

    rollout to worker   home      first message: where the workflow class is, how many attempts are played at a time
                        attempt   an attempt to play
                        stop      cancel the attempt (a worker of one attempt is killed instead)
                        ok, failed, error   the reply to the oldest open request of the attempt
    worker to rollout   open, endpoint, context_full, tool_used, replay, replayed_tools, pin   requests
                        ended     how the attempt ended, and what it left changed
                        printed, warning   output of an attempt, of no attempt (from a worker of many attempts)

Besides the channel there is the control socket, which works while the channel is full: LOCATE and the attempt id ask
for the line where the attempt's code is, CLOSE asks to close what attempts opened. Its end of file means that the other
process is gone. Invariant: what comes from a worker is checked and converted, or is a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from ajet.config.view import View
from ajet.environment.pinned import Pinned
from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.record.tool_uses import decode_uses, encode_uses
from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError, bound_failure, keep_head, make_error, read_message
from ajet.rollout.isolation.channel import LONGEST, encoded
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import Boundary
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse

CLOSE, LOCATE = b"c", b"?"
"""Control signals to a worker."""
ID_BYTES = 8
"""Bytes of the attempt id after LOCATE, big-endian; the reply is a line of text."""
CLOSED = b"\0"
"""The reply to CLOSE once everything is closed."""
GRACE = 2.0
"""Seconds that an attempt gets to end after it was cancelled, a worker to close what its attempts opened, and what a
workflow started to end when it is asked to."""
MOST_CHANGES, LONGEST_CHANGE = 16, 2_000
"""Most changes that a worker reports of an attempt, and characters of each."""
_TASK_FIELDS = tuple(name for name in WorkflowTask.model_fields if name not in ("task", "gym_env"))
_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class Home:
    """What a worker must know before its first attempt."""

    reference: str
    base: Path
    paths: tuple[str, ...]
    ambient: Endpoint
    """The endpoint for clients that are given none; in the environment while no attempt is played."""
    shared: bool = False
    """True if attempts share the worker, on one event loop; False if it plays one at a time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt, and descriptions of what it left changed in its process."""

    outcome: WorkflowOutput | Failure
    left: list[str]


# ---- to a worker


def encode_home(home: Home) -> bytes:
    """Encode the body of `home`."""
    body = {each.name: getattr(home, each.name) for each in fields(Home)}
    return encoded({**body, "ambient": _endpoint_fields(home.ambient)})


def decode_home(body: Any) -> Home:
    """Decode the body of `home`."""
    return Home(**{**body, "ambient": Endpoint(**body["ambient"])})


def encode_attempt(task: WorkflowTask, config: View | None, began: float) -> bytes:
    """Encode the body of `attempt`.

    Args:
        config: None for the configuration of the attempt before.
        began: Seconds since the epoch at which the attempt's time began.

    Raises:
        TypeError: The task or a setting holds an object that is no data.
    """
    told = {name: getattr(task, name) for name in _TASK_FIELDS}
    env = None if task.gym_env is None else _env_fields(task.gym_env)
    settings = None if config is None else config.to_dict()
    body = {"task": dict(task.task), "of": told, "env": env, "config": settings, "began": began}
    return encoded(body, exact=True)


def pack_attempt(task: WorkflowTask, config: View | None, began: float) -> bytes:
    """Return what `encode_attempt` does. Raises EpisodeError for a task that cannot be sent."""
    try:
        body = encode_attempt(task, config, began)
    except TypeError as problem:
        raise _refuse_task(f"it holds {problem}") from problem
    except Exception as problem:  # the border where user code runs: its objects encode themselves
        raise _refuse_task(read_message(problem) or type(problem).__name__) from problem
    if len(body) > LONGEST:
        raise _refuse_task(f"it is {len(body)} bytes long, of at most {LONGEST}")
    return body


def _refuse_task(why: str) -> EpisodeError:
    return make_error("no_data", f"the task cannot be handed to another process: {why}", boundary="ajet")


def decode_attempt(body: Any) -> tuple[WorkflowTask, View | None, float]:
    """Return the arguments of `encode_attempt`."""
    env = None if body["env"] is None else _make_env(body["env"])
    task = WorkflowTask(task=Task.model_validate(body["task"]), gym_env=env, **body["of"])
    return task, decode_settings(body), body["began"]


def decode_settings(body: Any) -> View | None:
    """Return the configuration in the body of `attempt`."""
    return None if body["config"] is None else View(body["config"])


def encode_answer(kind: str, answer: Any) -> bytes:
    """Encode the body of `ok`, the reply to a request of that kind."""
    if kind == "endpoint":
        return encoded(_endpoint_fields(answer))
    if kind == "replay":
        return encoded(None if answer is None else encode_uses([answer]))
    return encoded(answer)


def decode_answer(kind: str, body: Any) -> Any:
    """Decode the body of `ok`, the reply to a request of that kind."""
    if kind == "endpoint":
        return Endpoint(**body)
    if kind == "replay":
        return None if body is None else decode_uses(body)[0]
    return body


# ---- from a worker


def encode_question(kind: str, asked: Any) -> bytes:
    """Encode the body of a request. Raises TypeError for names that are no strings."""
    named = asked[:1] if kind == "replay" else asked or () if kind in ("endpoint", "open") else ()
    if not all(isinstance(name, str) for name in named if name is not None):
        raise TypeError(f"an agent, its target, its debug model and a tool are named by texts, not by {asked!r:.200}")
    return encoded(encode_uses([asked]) if kind == "tool_used" else asked)


def decode_question(kind: str, body: Any) -> Any:
    """Decode the body of a request. Raises ValueError."""
    try:
        return _decode_request(kind, body)
    except _PARSE_ERRORS as problem:
        raise ValueError(f"no {kind[:40]}: {problem}") from problem


def _decode_request(kind: str, body: Any) -> Any:
    if kind == "open":
        return None if body is None else _check_texts(body)
    if kind == "endpoint":
        agent, target, model = body
        return _check_texts([agent, target]) + ([None] if model is None else _check_texts([model]))
    if kind == "context_full":
        return None
    if kind == "tool_used":
        (use,) = decode_uses(body)
        checked: ToolUse = use
        return checked
    if kind == "replay":
        name, arguments = body
        if not isinstance(arguments, dict):
            raise ValueError("its arguments are no mapping")
        return [*_check_texts([name]), arguments]
    if kind == "replayed_tools":
        return None
    if kind == "pin":
        Pinned.of(body)
        return body
    raise ValueError("no such message")


def decode_printed(body: Any) -> tuple[str, int]:
    """Return the end of what was printed, and how many characters before it were cut. Raises ValueError."""
    try:
        text, cut = body
        (text,) = _check_texts([text])
        if type(cut) is not int or cut < 0:
            raise ValueError("its number of characters is none")
    except _PARSE_ERRORS as problem:
        raise ValueError(f"nothing printed: {problem}") from problem
    kept = text[-OUTPUT_CHARS:]
    return kept, cut + len(text) - len(kept)


def encode_output(output: WorkflowOutput, left: list[str]) -> bytes:
    """Encode the body of `ended` for an output. Raises ValueError, and whatever objects in the output raise."""
    values: dict[str, Any] = dict(output)
    for name in ("metadata", "log_metrics"):
        if isinstance(values[name], Mapping):
            values[name] = {str(key): value for key, value in values[name].items()}
    checked = WorkflowOutput.model_validate(values)  # it may have been changed since it was made
    return encoded({"output": dict(checked), "left": _bound_changes(left)})


def encode_failure(failure: Failure, left: list[str]) -> bytes:
    """Encode the body of `ended` for a failure, and that of `failed` (`decode_failure`)."""
    values = {each.name: getattr(failure, each.name) for each in fields(Failure)}
    return encoded({"failure": values, "left": _bound_changes(left)})


def decode_ended(body: Any) -> Ended:
    """Decode the body of `ended`. Raises ValueError."""
    try:
        left = _bound_changes(_check_texts(body["left"]))
        if "failure" in body:
            return Ended(decode_failure(body), left)
        return Ended(WorkflowOutput.model_validate(body["output"]), left)
    except _PARSE_ERRORS as problem:
        raise ValueError(f"no end of an attempt: {problem}") from problem


def decode_failure(body: Any) -> Failure:
    """Return the failure with texts of bounded length. Raises ValueError, TypeError or KeyError."""
    values = body["failure"]
    texts = _check_texts([values[name] for name in ("kind", "message", "traceback")])
    flags = [values[name] for name in ("retryable", "own", "policy")]
    if values["boundary"] not in get_args(Boundary) or not all(isinstance(flag, bool) for flag in flags):
        raise ValueError("no failure")
    return bound_failure(Failure(values["boundary"], keep_head(texts[0], 200), texts[1], flags[0], texts[2],
                                  own=flags[1], policy=flags[2]))  # fmt: skip


def _check_texts(values: Any) -> list[Any]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError("no texts")
    return list(values)


def _bound_changes(left: list[str]) -> list[str]:
    return [keep_head(each, LONGEST_CHANGE) for each in left[:MOST_CHANGES]]


def _endpoint_fields(endpoint: Endpoint) -> dict[str, str]:
    return {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "model": endpoint.model}


def _env_fields(env: Any) -> dict[str, Any]:
    if not isinstance(env, GymEnv):
        raise TypeError(f"workflow_task.gym_env is a {type(env).__qualname__}, which is no data")
    service = {each.name: getattr(env.service, each.name) for each in fields(EnvService)}
    return {"service": service, "task_id": env.task_id, "instance_id": env.instance_id, "over_at": env.over_at}


def _make_env(body: Any) -> GymEnv:
    env = GymEnv(EnvService(**body["service"]), body["task_id"])
    env.instance_id, env.over_at = body["instance_id"], body["over_at"]
    return env
