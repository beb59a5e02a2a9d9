"""GymEnv: an attempt's instance of an environment, for its workflow and judge.

Invariants: each attempt has a single instance with an unguessable name. Errors are stored in `lost`, and an attempt
with a lost environment has failed whatever its code did. A missing score is never 0. A pickled copy in another process
refers to the same instance.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ajet.environment.services.wire import EnvService
from ajet.schema.errors import EnvironmentFailure
from ajet.schema.tool_use import ToolError, ToolUse, compute_digest

Message = dict[str, Any]
ACTION = "step"
"""The name of an action in the record, where it is no tool call."""


class Step(NamedTuple):
    """The environment's answer to an action."""

    observation: Any
    """Content for the agent: text of the messages, if they have text."""
    reward: float
    """Reward of the step, or 0 if the environment scores at the end."""
    is_terminated: bool
    info: dict[str, Any]


class GymEnv:
    """An environment instance, created and released by the rollout. Workflows use `workflow_task.gym_env`.

    Methods block, except `astep`, and raise EnvironmentFailure.
    """

    def __init__(self, service: EnvService, task_id: str) -> None:
        """Describe an attempt's instance without creating it.

        Args:
            service: The environment service.
            task_id: Id of the task within the environment.
        """
        self.service, self.task_id = service, task_id
        self.instance_id = ""  # "" without an instance
        self.lost: EnvironmentFailure | None = None
        """The unrecovered failure, if any."""
        self.on_use: Callable[[ToolUse], None] | None = None
        """Receives every action as a ToolUse."""
        self.until: float | None = None
        """When the episode is over, by this process's monotonic clock: no action waits longer."""
        self._is_lost = False

    @property
    def service_url(self) -> str:
        """The address of the service."""
        return self.service.url

    @property
    def env_type(self) -> str:
        """The name of the environment that the service plays; "" for its default."""
        return self.service.env_type

    def create(self, messages: Any = None, params: Mapping[str, Any] | None = None) -> list[Message]:
        """Create a new instance, releasing an old one, and return the opening messages.

        The rollout has done this once and stored the messages in `workflow_task.task.init_messages`.
        """
        if self.instance_id:
            self.release()
        with self._note_loss():
            self.instance_id = secrets.token_hex(16)
            answer = self._request_service("create", task_id=self.task_id, messages=messages, params=params)
            return self._read_messages("create", self._require_data("create", answer))

    def reset(self) -> list[Message]:
        """Create a new instance and return the opening messages: `create` under gymnasium's name."""
        return self.create()

    def step(self, action: Any, params: Mapping[str, Any] | None = None) -> Step:
        """Send an action once and return the result. Raises EnvironmentFailure.

        The action is recorded as a tool use, also a failed one.

        Args:
            action: A text, or a message such as the model's reply with tool calls.
            params: Further values for the environment.
        """
        message, started = as_message(action), time.time()
        try:
            with self._note_loss():
                data = self._require_data(
                    "step", self._request_service("step", messages=message, params=params, within=self._time_left())
                )
                observation = _join_contents(self._read_messages("step", data))
                reward = self._read_number("step", data.get("reward"))
        except EnvironmentFailure as error:
            self._record_use(message, str(error), started, "environment")
            raise
        info = data.get("info")
        step = Step(observation, reward, bool(data.get("is_terminated")), info if isinstance(info, dict) else {})
        self._record_use(message, str(observation), started, "arguments" if step.info.get("invalid_action") else "")
        return step

    async def astep(self, action: Any, params: Mapping[str, Any] | None = None) -> Step:
        """Run `step` in a thread, for code on an event loop."""
        return await asyncio.to_thread(self.step, action, params)

    def evaluate(
        self, instance_id: str | None = None, params: Mapping[str, Any] | None = None, messages: Any = None
    ) -> float:
        """Return the environment's score of the instance so far.

        Args:
            instance_id: Not used; AgentJet's signature has it.

        Raises:
            EnvironmentFailure: no answer, or one without a score. The attempt has failed unless a later call succeeds.
        """
        try:
            answer = self._request_service("evaluate", messages=messages, params=params)
            score = answer.get("data")
            if isinstance(score, Mapping):
                score = score.get("score", score.get("reward"))
            if score is None:
                raise self.service.wrong("evaluate", f"contains no score: {answer!r:.200}")
            number = self._read_number("evaluate", score)
        except EnvironmentFailure as error:
            self.lost = self.lost or error
            raise
        self.lost = None  # the environment answers again, so the attempt has not failed
        return number

    def get_info(self, messages: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        """Return the environment's answer to `get_info`, mostly a list of its tools. Raises EnvironmentFailure."""
        return self._request_service("get_info", messages=messages, params=params).get("data")

    def release(self) -> bool:
        """Release the instance, usually by the rollout after the episode. Return True if the instance existed."""
        instance, self.instance_id = self.instance_id, ""
        if not instance:
            return False
        return self.service.ask("release", instance_id=instance, task_id=self.task_id).get("success") is not False

    def _time_left(self) -> float | None:
        """Return the seconds until the end of the episode; None for no limit."""
        return None if self.until is None else self.until - time.monotonic()

    @property
    def over_at(self) -> float | None:
        """`until` as seconds since the epoch, for another process."""
        return None if self.until is None else self.until - time.monotonic() + time.time()

    @over_at.setter
    def over_at(self, at: float | None) -> None:
        self.until = None if at is None else at - time.time() + time.monotonic()

    @contextmanager
    def _note_loss(self) -> Iterator[None]:
        """Store an EnvironmentFailure of the block: the environment is lost, and further requests fail at once."""
        try:
            yield
        except EnvironmentFailure as error:
            self._is_lost, self.lost = True, self.lost or error
            raise

    def _request_service(self, request: str, **more: Any) -> dict[str, Any]:
        """Send a request about this instance and return the answer. Raises EnvironmentFailure, also after a loss."""
        if self._is_lost:
            raise EnvironmentFailure(f"the connection to the environment is lost: {self.lost}")
        if not self.instance_id:
            raise EnvironmentFailure("the environment was closed, because the episode has ended")
        return self.service.ask(request, instance_id=self.instance_id, **more)

    def _require_data(self, request: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field `data` of an answer. Raises EnvironmentFailure unless it is an object."""
        data = answer.get("data")
        if not isinstance(data, dict):
            raise self.service.wrong(request, f"contains no data: {answer!r:.200}")
        return data

    def _read_messages(self, request: str, data: Mapping[str, Any]) -> list[Message]:
        """Return the messages in an answer's data; the role is user if missing.

        Raises:
            EnvironmentFailure: the state is not a message or a list of messages with content.
        """
        state = data.get("state")
        messages = [state] if isinstance(state, dict) else state
        if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
            raise self.service.wrong(request, f"contains no state, which must be a list of messages: {data!r:.200}")
        if invalid_message := next((message for message in messages if "content" not in message), None):
            raise self.service.wrong(request, f"contains a message without content: {invalid_message!r:.200}")
        return [{"role": "user", **message} for message in messages]

    def _read_number(self, request: str, value: Any) -> float:
        """Return a number of an answer; 0 for None. Raises EnvironmentFailure unless it is finite."""
        if value is None:
            return 0.0
        if isinstance(value, (bool, int, float)) and math.isfinite(value):
            return float(value)
        raise self.service.wrong(request, f"contains {value!r:.100} instead of a finite number")

    def _record_use(self, message: Message, result: str, started_at: float, error: ToolError) -> None:
        """Pass an action to `on_use` as a tool use.

        Args:
            message: The action.
            result: The observation, or the text of the failure.
            started_at: Seconds since the epoch.
            error: Error class; "" for none.
        """
        if self.on_use is None:
            return
        name, arguments, call_id = _as_call(message)
        service_url = self.service.url
        self.on_use(
            ToolUse(
                name, arguments, result, compute_digest(result), started_at, time.time(), error, service_url, call_id
            )
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, where the monotonic clock differs: the time limit since the epoch."""
        return {**self.__dict__, "on_use": None, "until": self.over_at}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state from another process, with the time limit by this process's clock."""
        self.__dict__.update(state)
        self.over_at = state["until"]

    def __repr__(self) -> str:
        return f"<GymEnv {self.env_type or 'environment'} {self.task_id} at {self.service.url}>"


def as_message(action: Any) -> Message:
    """Return an action as a message with text content; the role is assistant unless the action has one.

    Text blocks are joined, and the original stays unchanged.
    """
    if not isinstance(action, Mapping):
        return {"role": "assistant", "content": action if isinstance(action, str) else str(action)}
    content = action.get("content")
    if isinstance(content, (list, tuple)):
        texts = [block.get("text") for block in content if isinstance(block, Mapping)]
        content = "".join(text for text in texts if isinstance(text, str)) if any(texts) else str(content)
    return {"role": "assistant", **action, **({} if content is None else {"content": content})}


def _as_call(message: Message) -> tuple[str, dict[str, Any], str]:
    """Return (name, arguments, call id) of an action for the record, from its tool call if present."""
    # Values without a JSON form become text.
    json_message = json.loads(json.dumps(message, default=str))
    calls = json_message.get("tool_calls")
    call = calls[0] if isinstance(calls, list) and calls and isinstance(calls[0], dict) else {}
    function = call.get("function") if isinstance(call.get("function"), dict) else {}
    if not function:
        return ACTION, {"content": json_message.get("content")}, ""
    return str(function.get("name") or ACTION), {"arguments": function.get("arguments")}, str(call.get("id") or "")


def _join_contents(state: list[Message]) -> Any:
    """Return the content of a single message unchanged, or the contents of several as one text."""
    contents = [message["content"] for message in state]
    if len(contents) == 1:
        return contents[0]
    return "\n".join(str(content) for content in contents)
