"""The messages between the rollout and a worker, and their bodies: the one protocol of process, sandbox and loops.

    rollout to worker   setup     first message: how to import the workflow, and whether attempts share the worker
                        attempt   an attempt to play
                        stop      cancel the attempt (a worker of one attempt is killed instead)
                        ok, failed, error   the reply to the oldest open request of the attempt
    worker to rollout   open, endpoint, context_full, tool_used, replay, replayed_tools, pin   requests
                        ended     how the attempt ended, and what changes it left in the process
                        printed, warning   output of an attempt, output of no attempt (workers of many attempts only)

The control socket works while the channel is full. LOCATE and the attempt id request the current line of the attempt's
code. CLOSE requests the closing of the attempts' resources. End of file on the control socket means that the other
process is gone. Invariant: everything received from a worker is checked and converted, or raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from ajet.config.view import View
from ajet.environment.pinned import PinnedTools
from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.record.tool_uses import decode_uses, encode_uses
from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError, bound_failure, keep_head, make_error, read_message
from ajet.rollout.isolation.channel import MAX_MESSAGE_BYTES, encode_value
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import Boundary
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse

CLOSE, LOCATE = b"c", b"?"
"""Control signals to a worker."""
ID_BYTES = 8
"""Bytes of the attempt id after LOCATE, big-endian. The reply is a line of text."""
CLOSED = b"\0"
"""The reply to CLOSE once everything is closed."""
GRACE = 2.0
"""Seconds for a cancelled attempt to end, for a worker to close its attempts' resources, and for processes started by a
workflow to end after SIGTERM.
"""
MAX_CHANGES, MAX_CHANGE_CHARS = 16, 2_000
"""Maximum number of changes reported per attempt, and maximum characters per change."""
_TASK_FIELDS = tuple(name for name in WorkflowTask.model_fields if name not in ("task", "gym_env"))
_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """A worker's setup before the first attempt: how to import the workflow, and the ambient endpoint."""

    reference: str
    base: Path
    paths: tuple[str, ...]
    ambient: Endpoint
    """The endpoint for clients without an own endpoint, set in the environment while no attempt is played."""
    shared: bool = False
    """True if attempts share the worker, on one event loop. False if the worker plays one attempt at a time."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, with descriptions of changes left in the process."""

    outcome: WorkflowOutput | Failure
    changes: list[str]


# Messages to a worker.


def encode_setup(setup: WorkerSetup) -> bytes:
    """Encode the body of `setup`."""
    body = {field.name: getattr(setup, field.name) for field in fields(WorkerSetup)}
    return encode_value({**body, "ambient": _encode_endpoint(setup.ambient)})


def decode_setup(body: Any) -> WorkerSetup:
    """Decode the body of `setup`."""
    return WorkerSetup(**{**body, "ambient": Endpoint(**body["ambient"])})


def encode_attempt(task: WorkflowTask, config: View | None, started_at: float) -> bytes:
    """Encode the body of `attempt`.

    Args:
        config: The configuration. None: unchanged since the attempt before.
        started_at: Start of the attempt, in seconds since the epoch.

    Raises:
        TypeError: The task or a setting holds an object that is no data.
    """
    task_fields = {name: getattr(task, name) for name in _TASK_FIELDS}
    env = None if task.gym_env is None else _encode_env(task.gym_env)
    settings = None if config is None else config.to_dict()
    body = {"task": dict(task.task), "of": task_fields, "env": env, "config": settings, "began": started_at}
    return encode_value(body, exact=True)


def pack_attempt(task: WorkflowTask, config: View | None, started_at: float) -> bytes:
    """Encode the body of `attempt`. Raises EpisodeError if the task cannot be encoded."""
    try:
        body = encode_attempt(task, config, started_at)
    except TypeError as problem:
        raise _refuse_task(f"it contains {problem}") from problem
    except Exception as problem:  # objects of user code encode themselves, and may raise anything
        raise _refuse_task(read_message(problem) or type(problem).__name__) from problem
    if len(body) > MAX_MESSAGE_BYTES:
        raise _refuse_task(f"it is {len(body)} bytes long, and the limit is {MAX_MESSAGE_BYTES}")
    return body


def _refuse_task(why: str) -> EpisodeError:
    """Return the error for a task that cannot be sent to a worker. `why` follows a colon in the message."""
    return make_error("no_data", f"the task cannot be sent to the workflow's process: {why}", boundary="ajet")


def decode_attempt(body: Any) -> tuple[WorkflowTask, View | None, float]:
    """Return the arguments of `encode_attempt`."""
    env = None if body["env"] is None else _decode_env(body["env"])
    task = WorkflowTask(task=Task.model_validate(body["task"]), gym_env=env, **body["of"])
    return task, decode_settings(body), body["began"]


def decode_settings(body: Any) -> View | None:
    """Return the configuration in the body of `attempt`."""
    return None if body["config"] is None else View(body["config"])


def encode_reply(kind: str, answer: Any) -> bytes:
    """Encode the body of `ok`, the reply to a request of the given kind."""
    if kind == "endpoint":
        return encode_value(_encode_endpoint(answer))
    if kind == "replay":
        return encode_value(None if answer is None else encode_uses([answer]))
    return encode_value(answer)


def decode_reply(kind: str, body: Any) -> Any:
    """Decode the body of `ok`, the reply to a request of the given kind."""
    if kind == "endpoint":
        return Endpoint(**body)
    if kind == "replay":
        return None if body is None else decode_uses(body)[0]
    return body


# Messages from a worker.


def encode_request(kind: str, value: Any) -> bytes:
    """Encode the body of a request. Raises TypeError for non-string names."""
    # User code chooses these names, and a name of another type would be refused as invalid by the rollout's process.
    names = value[:1] if kind == "replay" else value or () if kind in ("endpoint", "open") else ()
    if not all(isinstance(name, str) for name in names if name is not None):
        raise TypeError(
            f"an agent's name, target and debug model and a tool's name must be strings, not {value!r:.200}"
        )
    return encode_value(encode_uses([value]) if kind == "tool_used" else value)


def decode_request(kind: str, body: Any) -> Any:
    """Decode the body of a request of the given kind. Raises ValueError for an invalid body."""
    try:
        return _parse_request(kind, body)
    except _PARSE_ERRORS as problem:
        raise ValueError(f"it is not a valid message of the kind {kind[:40]}: {problem}") from problem


def _parse_request(kind: str, body: Any) -> Any:
    """Return the checked arguments of a worker's request. Raises ValueError or TypeError."""
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
            raise ValueError("its arguments are not a mapping")
        return [*_check_texts([name]), arguments]
    if kind == "replayed_tools":
        return None
    if kind == "pin":
        PinnedTools.of(body)
        return body
    raise ValueError("there is no message of this kind")


def decode_printed(body: Any) -> tuple[str, int]:
    """Return the end of the output, and the number of characters cut before the end. Raises ValueError."""
    try:
        text, removed = body
        (text,) = _check_texts([text])
        if type(removed) is not int or removed < 0:
            raise ValueError("the number of characters is invalid")
    except _PARSE_ERRORS as problem:
        raise ValueError(f"the output is invalid: {problem}") from problem
    end = text[-OUTPUT_CHARS:]
    return end, removed + len(text) - len(end)


def encode_output(output: WorkflowOutput, changes: list[str]) -> bytes:
    """Encode the body of the message `ended` for an output.

    Args:
        changes: Descriptions of what the attempt left changed in its process.

    Raises:
        ValueError: The output is invalid. Exceptions of objects in the output are raised unchanged.
    """
    values: dict[str, Any] = dict(output)
    for name in ("metadata", "log_metrics"):
        if isinstance(values[name], Mapping):
            values[name] = {str(key): value for key, value in values[name].items()}
    checked = WorkflowOutput.model_validate(values)  # user code may have changed the output after creation
    return encode_value({"output": dict(checked), "left": _bound_changes(changes)})


def encode_failure(failure: Failure, changes: list[str]) -> bytes:
    """Encode the body of `ended` for a failure, and the body of `failed` (`decode_failure`)."""
    values = {field.name: getattr(failure, field.name) for field in fields(Failure)}
    return encode_value({"failure": values, "left": _bound_changes(changes)})


def decode_end(body: Any) -> AttemptEnd:
    """Decode the body of the message `ended`. Raises ValueError.

    Its key `left` lists what the attempt left changed in its process, such as environment variables.
    """
    try:
        changes = _bound_changes(_check_texts(body["left"]))
        if "failure" in body:
            return AttemptEnd(decode_failure(body), changes)
        return AttemptEnd(WorkflowOutput.model_validate(body["output"]), changes)
    except _PARSE_ERRORS as problem:
        raise ValueError(f"the message of the attempt's end is invalid: {problem}") from problem


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
    """Return the values as a list. Raises ValueError unless they are a list or tuple of strings."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError("no texts")
    return list(values)


def _bound_changes(changes: list[str]) -> list[str]:
    """Return at most MAX_CHANGES descriptions, each of at most MAX_CHANGE_CHARS characters and a note of the cut."""
    return [keep_head(change, MAX_CHANGE_CHARS) for change in changes[:MAX_CHANGES]]


def _encode_endpoint(endpoint: Endpoint) -> dict[str, str]:
    return {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "model": endpoint.model}


def _encode_env(env: Any) -> dict[str, Any]:
    """Return the JSON form of an environment instance, by which a worker reaches the same instance. Raises TypeError
    for others.
    """
    if not isinstance(env, GymEnv):
        raise TypeError(
            f"workflow_task.gym_env is an object of the class {type(env).__qualname__}, which cannot be encoded as JSON"
        )
    service = {field.name: getattr(env.service, field.name) for field in fields(EnvService)}
    return {"service": service, "task_id": env.task_id, "instance_id": env.instance_id, "over_at": env.over_at}


def _decode_env(body: Any) -> GymEnv:
    """Return a client of the environment instance that `_encode_env` described. It creates no new instance."""
    env = GymEnv(EnvService(**body["service"]), body["task_id"])
    env.instance_id, env.over_at = body["instance_id"], body["over_at"]
    return env
