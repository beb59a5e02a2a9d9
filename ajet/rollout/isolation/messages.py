"""What the rollout and a worker tell each other, from values to bytes and back: every kind of message, and no other.

Invariant: what came from a worker is made into the types it must be of, or is a ValueError; it is never believed to be
an object. To a worker: its home, an attempt, answers; where it plays several, that one of them is to be stopped. From
it: questions, uses of tools, how its attempt ended; where it plays several, what one of them printed.
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
from ajet.rollout import bounds
from ajet.rollout.isolation.values import encoded
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import Boundary
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse

MOST_LEFT, LONGEST_LEFT = 16, 2_000
"""Of what an attempt left changed: sentences, and characters of each."""
_OF_TASK = tuple(name for name in WorkflowTask.model_fields if name not in ("task", "gym_env"))
_WRONG = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class Home:
    """The place of the workflow class, for another process."""

    reference: str
    base: Path
    paths: tuple[str, ...]
    ambient: Endpoint
    """What clients that are given nothing find in its environment while no attempt is played."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt, and what it left otherwise than it found it, in words."""

    outcome: WorkflowOutput | Failure
    left: list[str]


# ---- to a worker


def encode_home(home: Home) -> bytes:
    """Read by `decode_home`."""
    return encoded(
        {
            "reference": home.reference,
            "base": home.base,
            "paths": home.paths,
            "ambient": _of_endpoint(home.ambient),
        }
    )


def decode_home(body: Any) -> Home:
    """The home."""
    return Home(body["reference"], body["base"], body["paths"], Endpoint(**body["ambient"]))


def encode_attempt(task: WorkflowTask, config: View | None, began: float) -> bytes:
    """Read by `decode_attempt`. `config`: None for that of the attempt before. Raises TypeError for a task or a
    setting that is no data."""
    told = {name: getattr(task, name) for name in _OF_TASK}
    env = None if task.gym_env is None else _of_env(task.gym_env)
    settings = None if config is None else config.to_dict()
    body = {"task": dict(task.task), "of": told, "env": env, "config": settings, "began": began}
    return encoded(body, exact=True)


def decode_attempt(body: Any) -> tuple[WorkflowTask, View | None, float]:
    """The task, the configuration (None: that of the attempt before), and when its time began, in seconds
    since the epoch."""
    env = None if body["env"] is None else _env(body["env"])
    task = WorkflowTask(task=Task.model_validate(body["task"]), gym_env=env, **body["of"])
    return task, decode_settings(body), body["began"]


def decode_settings(body: Any) -> View | None:
    """The configuration of an attempt alone."""
    return None if body["config"] is None else View(body["config"])


def encode_answer(kind: str, answer: Any) -> bytes:
    """To a question of that kind; read by `decode_answer`."""
    if kind == "endpoint":
        return encoded(_of_endpoint(answer))
    if kind == "replay":
        return encoded(None if answer is None else encode_uses([answer]))
    return encoded(answer)


def decode_answer(kind: str, body: Any) -> Any:
    """The answer."""
    if kind == "endpoint":
        return Endpoint(**body)
    if kind == "replay":
        return None if body is None else decode_uses(body)[0]
    return body


# ---- from a worker


def encode_question(kind: str, asked: Any) -> bytes:
    """Read by `decode_question`. Raises TypeError for names that are no texts."""
    named = asked[:1] if kind == "replay" else asked or () if kind in ("endpoint", "open") else ()
    if not all(isinstance(name, str) for name in named if name is not None):
        raise TypeError(f"an agent, its target, its debug model and a tool are named by texts, not by {asked!r:.200}")
    return encoded(encode_uses([asked]) if kind == "tool_used" else asked)


def decode_question(kind: str, body: Any) -> Any:
    """The question or the message of that kind. Raises ValueError."""
    try:
        return _question(kind, body)
    except _WRONG as problem:
        raise ValueError(f"no {kind[:40]}: {problem}") from problem


def _question(kind: str, body: Any) -> Any:
    if kind == "open":
        return None if body is None else _texts(body)
    if kind == "endpoint":
        agent, target, model = body
        return _texts([agent, target]) + ([None] if model is None else _texts([model]))
    if kind == "context_full":
        return None
    if kind == "tool_used":
        return _use(body)
    if kind == "replay":
        name, arguments = body
        if not isinstance(arguments, dict):
            raise ValueError("its arguments are no mapping")
        return [*_texts([name]), arguments]
    if kind == "replayed_tools":
        return None
    if kind == "pin":
        Pinned.of(body)
        return body
    raise ValueError("no such message")


def decode_printed(body: Any) -> tuple[str, int]:
    """The end of what was printed, and how many characters before it were cut. Raises ValueError."""
    try:
        text, cut = body
        (text,) = _texts([text])
        if type(cut) is not int or cut < 0:
            raise ValueError("its number of characters is none")
    except _WRONG as problem:
        raise ValueError(f"nothing printed: {problem}") from problem
    kept = text[-bounds.PRINTED :]
    return kept, cut + len(text) - len(kept)


def encode_output(output: WorkflowOutput, left: list[str]) -> bytes:
    """Read by `decode_ended`. Raises ValueError, and whatever the output's own objects raise, for what is no output."""
    told: dict[str, Any] = dict(output)
    for name in ("metadata", "log_metrics"):
        if isinstance(told[name], Mapping):
            told[name] = {str(key): value for key, value in told[name].items()}
    checked = WorkflowOutput.model_validate(told)  # it may have been changed since it was made
    return encoded({"output": dict(checked), "left": _short(left)})


def encode_failure(failure: Failure, left: list[str]) -> bytes:
    """Read by `decode_ended` and, as the answer to a question, by `decode_failure`."""
    told = {each.name: getattr(failure, each.name) for each in fields(Failure)}
    return encoded({"failure": told, "left": _short(left)})


def decode_ended(body: Any) -> Ended:
    """The end of the attempt. Raises ValueError."""
    try:
        left = _short(_texts(body["left"]))
        if "failure" in body:
            return Ended(decode_failure(body), left)
        return Ended(WorkflowOutput.model_validate(body["output"]), left)
    except _WRONG as problem:
        raise ValueError(f"no end of an attempt: {problem}") from problem


def decode_failure(body: Any) -> Failure:
    """The failure, with texts of bounded length. Raises ValueError and kin."""
    told = body["failure"]
    texts = _texts([told[name] for name in ("kind", "message", "traceback")])
    flags = [told[name] for name in ("retryable", "own", "policy")]
    if told["boundary"] not in get_args(Boundary) or not all(isinstance(flag, bool) for flag in flags):
        raise ValueError("no failure")
    return bounds.failure(Failure(told["boundary"], bounds.beginning(texts[0], 200), texts[1], flags[0], texts[2],
                                  own=flags[1], policy=flags[2]))  # fmt: skip


def _use(rows: Any) -> ToolUse:
    (use,) = decode_uses(rows)
    return use


def _texts(values: Any) -> list[Any]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError("no texts")
    return list(values)


def _short(left: list[str]) -> list[str]:
    return [bounds.beginning(each, LONGEST_LEFT) for each in left[:MOST_LEFT]]


def _of_endpoint(endpoint: Endpoint) -> dict[str, str]:
    return {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "model": endpoint.model}


def _of_env(env: Any) -> dict[str, Any]:
    if not isinstance(env, GymEnv):
        raise TypeError(f"workflow_task.gym_env is a {type(env).__qualname__}, which is no data")
    service = {each.name: getattr(env.service, each.name) for each in fields(EnvService)}
    return {"service": service, "task_id": env.task_id, "instance_id": env.instance_id, "over_at": env.over_at}


def _env(told: Any) -> GymEnv:
    env = GymEnv(EnvService(**told["service"]), told["task_id"])
    env.instance_id, env.over_at = told["instance_id"], told["over_at"]
    return env
