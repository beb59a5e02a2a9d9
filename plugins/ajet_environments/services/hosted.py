"""Protocols of environments behind ajet's server: `World` lists tasks and makes one `WorldInstance` per rollout.

Invariant: every environment behind the server is a `World`. An instance is created once, stepped, scored and released.
An invalid action of the model gets a text reply and changes nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from zlib import crc32

Message = dict[str, Any]
FIRST_VALIDATION_SEED = 1_000_000
"""For worlds made from a seed: the first seed of any split except "train"."""


class InitialState(NamedTuple):
    """The start of an episode: the first messages, and `info` such as tool definitions."""

    state: list[Message]
    info: dict[str, Any]


class StepResult(NamedTuple):
    """The environment's reply to one action: messages, reward of the step, and the end flag."""

    state: list[Message]
    reward: float
    is_terminated: bool
    info: dict[str, Any]


class WorldInstance(Protocol):
    """The environment of one rollout.

    Methods may be async. Other methods run in threads, never two at a time.
    """

    def create(self, task_id: str, params: Mapping[str, Any]) -> Any:
        """Reset the environment to a task and return an `InitialState`.

        Args:
            params: options of the request, passed through from the client.

        Raises:
            ValueError: the task is unknown.
        """
        ...

    def step(self, action: Message, params: Mapping[str, Any]) -> Any:
        """Apply one action of the agent and return a `StepResult`.

        Args:
            action: the agent's message in the form of OpenAI's chat API.
        """
        ...

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> Any:
        """Return the score of the episode so far, a finite number."""
        ...

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        """Return a description of the instance as JSON."""
        ...

    def release(self) -> Any:
        """Release the instance's resources."""
        ...


class World(Protocol):
    """One kind of environment: lists its tasks and makes instances."""

    name: str

    def tasks(self, split: str) -> Sequence[str]:
        """Return the task ids of a split. Raises ValueError for an unknown split."""
        ...

    def instance(self) -> WorldInstance:
        """Make an instance for one rollout."""
        ...


def list_seeds(count: int, split: str) -> list[str]:
    """Return random seeds as task ids: `count` for "train", a tenth of that for another split.

    Training seeds count from 0, others from FIRST_VALIDATION_SEED, so they share none.
    """
    first_seed = 0 if split == "train" else FIRST_VALIDATION_SEED
    return [str(first_seed + offset) for offset in range(count if split == "train" else max(1, count // 10))]


def parse_seed(task_id: str) -> int:
    """Return the seed of a task id: its number if it is one, else a stable hash (CRC-32) of its text."""
    return int(task_id) if task_id.isdecimal() else crc32(task_id.encode())


def to_messages(observation: Any) -> list[Message]:
    """Convert an observation to chat messages.

    A text becomes one user message, messages stay as they are (role "user" if they have none), and any other value is
    converted by `str`. An empty observation becomes a message with empty content.
    """
    if isinstance(observation, Mapping) and "content" in observation:
        return [{"role": "user", **observation}]
    if (
        isinstance(observation, (list, tuple))
        and observation
        and all(isinstance(message, Mapping) and "content" in message for message in observation)
    ):
        return [{"role": "user", **message} for message in observation]
    return [
        {
            "role": "user",
            "content": observation
            if isinstance(observation, str)
            else ""
            if observation in (None, [], ())
            else str(observation),
        }
    ]


def parse_reward(value: Any, what: str) -> float:
    """Return a reward as float, and 0 for None.

    Args:
        what: name of the value in the error message.

    Raises:
        TypeError: the value is no finite number.
    """
    try:
        reward = 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise TypeError(f"{what} is {value!r:.100}, expected a finite number")
    return reward


def read_text(action: Message) -> str:
    """Return the text of the agent's message."""
    content = action.get("content", "")
    return content if isinstance(content, str) else str(content)


class OwnWorld:
    """Adapts a user's class with `create(task_id)` and `step(action)`.

    Optional members of the class: `evaluate()`, `release()`, `get_info()`, and `tasks` (a list, or a function of the
    split). Methods that accept `params` get the request's options.
    """

    def __init__(self, factory: Callable[[], Any], name: str, count: int) -> None:
        """Adapt a class, or a function that returns an instance.

        Args:
            count: number of training tasks if the class lists none.
        """
        self._factory = factory
        self.name = name
        self._task_count = count

    def tasks(self, split: str) -> Sequence[str]:
        """Return the task ids of a split from the class's `tasks`, or random seeds if the class has none.

        `tasks` may be a function of the split, a mapping of splits, or one list for all splits. Raises ValueError.
        """
        own_tasks = getattr(self._factory, "tasks", None)
        if callable(own_tasks):
            needs_no_instance = isinstance(inspect.getattr_static(self._factory, "tasks"), (staticmethod, classmethod))
            # An ordinary method needs an instance; a static or class method does not.
            return [str(task) for task in (own_tasks if needs_no_instance else self._factory().tasks)(split)]
        if isinstance(own_tasks, Mapping):
            if split not in own_tasks:
                raise ValueError(f"there is no split {split!r}; the splits are {', '.join(map(repr, own_tasks))}")
            return [str(task) for task in own_tasks[split]]
        return list_seeds(self._task_count, split) if own_tasks is None else [str(task) for task in own_tasks]

    def instance(self) -> OwnInstance:
        return OwnInstance(self._factory())


class OwnInstance:
    """One instance of a user's class with `create` and `step`, for one rollout."""

    def __init__(self, own: Any) -> None:
        self._environment = own
        self._reward_sum = 0.0

    async def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        """Call the user's `create`, which returns an observation or a pair (observation, info)."""
        first_result = await call_world(self._environment.create, task_id, params)
        if isinstance(first_result, tuple) and len(first_result) == 2 and isinstance(first_result[1], Mapping):
            return InitialState(to_messages(first_result[0]), dict(first_result[1]))
        return InitialState(to_messages(first_result), {})

    async def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Call the user's `step` with the text of the agent's message, and add its reward to the episode's score.

        Raises:
            TypeError: the result has no reward, and the class has no `evaluate` to give a score.
        """
        outcome = await call_world(self._environment.step, read_text(action), params)
        if not isinstance(outcome, (tuple, Mapping)) and not hasattr(self._environment, "evaluate"):
            raise TypeError(
                f"step() returned {outcome!r:.100}, expected (observation, reward, done), or add evaluate()"
            )
        observation, reward, is_terminated, info = _parse_step(outcome)
        step_reward = parse_reward(reward, "the reward of step()")
        self._reward_sum += step_reward
        return StepResult(to_messages(observation), step_reward, is_terminated, info)

    async def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """Return the score of the user's class, or the sum of its rewards without `evaluate()`."""
        if not hasattr(self._environment, "evaluate"):
            return self._reward_sum
        return parse_reward(await call_world(self._environment.evaluate, params), "the score of evaluate()")

    async def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return await call_world(self._environment.get_info, params) if hasattr(self._environment, "get_info") else {}

    async def release(self) -> None:
        for name in ("release", "close"):  # the first that exists is called
            if hasattr(self._environment, name):
                await call_world(getattr(self._environment, name))
                return


def _parse_step(outcome: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
    """Split the return value of a user's `step` into (observation, reward, is terminated, info).

    Accepted are a mapping, a tuple of 3 to 5 values as in gymnasium, or the bare observation. A missing reward is None.

    Raises:
        TypeError: a tuple has another length.
    """
    if isinstance(outcome, Mapping) and "content" not in outcome:
        observation = outcome.get("observation", outcome.get("state", ""))
        return (
            observation,
            outcome.get("reward"),
            bool(outcome.get("done", outcome.get("is_terminated"))),
            dict(outcome.get("info") or {}),
        )
    if not isinstance(outcome, tuple):
        return outcome, None, False, {}
    if len(outcome) == 5:  # gymnasium's: observation, reward, terminated, truncated, info
        return outcome[0], outcome[1], bool(outcome[2] or outcome[3]), dict(outcome[4] or {})
    if len(outcome) not in (3, 4):
        raise TypeError(
            f"step() returned {len(outcome)} values, expected (observation, reward, done), optionally with info"
        )
    return outcome[0], outcome[1], bool(outcome[2]), dict(outcome[3] or {}) if len(outcome) == 4 else {}


class AgentJetWorld:
    """Adapts a class written for AgentJet's environment service.

    Its methods are `get_init_state`, `step`, `evaluate`, `close`, and the static `get_query_list(split)`.
    """

    def __init__(self, kind: Any, name: str) -> None:
        self._kind, self.name = kind, name

    def tasks(self, split: str) -> Sequence[str]:
        return [str(each) for each in self._kind.get_query_list(split)]

    def instance(self) -> AgentJetInstance:
        return AgentJetInstance(self._kind)


class AgentJetInstance:
    """One environment of a class written for AgentJet, for one rollout."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._env: Any = None

    async def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        """Create the environment for the task and return its initial state."""
        self._env = await call_world(self._kind, task_id, f"{self._kind.__name__}-{id(self)}", dict(params))
        first_result = await call_world(self._env.get_init_state, dict(params))
        return InitialState(to_messages(first_result["state"]), dict(first_result.get("info") or {}))

    async def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Call the environment's `step` with the agent's message, and convert its result."""
        outcome = await call_world(self._env.step, action, dict(params))
        reward = parse_reward(outcome.get("reward"), "the reward of step()")
        return StepResult(
            to_messages(outcome["state"]), reward, bool(outcome.get("is_terminated")), dict(outcome.get("info") or {})
        )

    async def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        return parse_reward(await call_world(self._env.evaluate, messages, dict(params)), "the score of evaluate()")

    async def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return await call_world(self._env.get_info, messages, dict(params))

    async def release(self) -> None:
        if self._env is not None and hasattr(self._env, "close"):
            await call_world(self._env.close)


async def call_world(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the environment with as many of the arguments as its signature accepts, and return its result.

    Async functions are awaited. Others run in a thread of their own, so a hanging call blocks no other instance.
    """
    from ajet.environment.loop import in_thread

    accepted = arguments[: _count_arguments(function, len(arguments))]
    if inspect.iscoroutinefunction(function):
        return await function(*accepted)
    result = await in_thread(function, *accepted)
    return await result if inspect.isawaitable(result) else result


def _count_arguments(function: Callable[..., Any], limit: int) -> int:
    """Return how many positional arguments the function accepts, at most `limit`.

    Raises:
        TypeError: the function requires more, or keyword arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C may have no signature
        return limit
    for count in range(limit, -1, -1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise TypeError(
        f"the signature of {function!r} is {signature}, but ajet calls it with at most {limit} positional arguments"
    )
