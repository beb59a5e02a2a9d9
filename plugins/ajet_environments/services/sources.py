"""Opens an environment by its source string.

Sources: `file.py->MyEnv`, `gymnasium:ID`, `textarena:ID`, `skyrl:ID`, `openenv:ws://HOST:PORT`,
`nemo_gym:http://HOST:PORT`. Settings follow an ID as a query: `gymnasium:FrozenLake-v1?is_slippery=false`. Invariant:
an unusable source is one UserError before any port is opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ajet.config import resolve_reference
from ajet.config.functions import locate_function
from ajet.schema.addresses import require_address
from ajet.schema.bounded_json import load_json
from ajet.schema.commands import format_install
from ajet.schema.errors import ConfigError, UserError
from ajet_environments.services.hosted import (
    AgentJetWorld,
    InitialState,
    Message,
    OwnWorld,
    StepResult,
    World,
    list_seeds,
    parse_reward,
    parse_seed,
    read_text,
    to_messages,
)

PACKAGES = {"gymnasium": "gymnasium", "textarena": "textarena", "skyrl": "skyrl_gym"}
"""Ecosystems and their packages, whose `make(ID)` makes an environment."""
GYMNASIUM = ("reset", "step", "action_space", "observation_space", "close")
TASKS = 1000
"""Training tasks of a world that names none."""


def open_world(source: str, *, base: Path, tasks: int = TASKS, data: Path | None = None) -> World:
    """Open the environment of a source string.

    Args:
        base: folder for relative paths.
        tasks: number of training tasks if the environment lists none.
        data: JSON Lines file of tasks, for skyrl and nemo_gym.

    Raises:
        UserError: the source cannot be used.
    """
    kind, _, location = source.partition(":")
    if kind == "openenv":
        from ajet_environments.services.openenv import OpenEnvWorld

        schemes = ("ws", "wss", "http", "https")
        return OpenEnvWorld(
            require_address(location, source, "an OpenEnv server", "openenv:ws://HOST:PORT", schemes), tasks
        )
    if kind == "nemo_gym":
        from ajet_environments.services.nemo_gym import NemoGymWorld

        return NemoGymWorld(
            require_address(location, source, "a NeMo Gym resource server", "nemo_gym:http://HOST:PORT"),
            None if data is None else _read_rows(data, location),
        )
    if kind in PACKAGES:
        return _open_package_world(kind, location, tasks, data)
    target = resolve_reference(source, base=base, key="the environment")
    name = getattr(target, "__name__", source)
    if not isinstance(target, type):
        if not callable(target):
            raise ConfigError(
                f"{source} is a {type(target).__name__}, not an environment.",
                where=source,
                expected="a class, or a function",
            )
        return _choose_world(target, _close_trial(target()), name, source, tasks, data)
    return _choose_world(target, target, name, source, tasks, data)


def _open_package_world(kind: str, location: str, tasks: int, data: Path | None) -> World:
    """Open an environment of gymnasium, textarena or skyrl-gym.

    Args:
        kind: key of PACKAGES.
        location: ID of the environment, with settings as a query: `FrozenLake-v1?is_slippery=false`.

    Raises:
        UserError: the package is missing, or the environment cannot be created.
    """
    package = PACKAGES[kind]
    distribution = package.replace("_", "-")
    try:
        make: Callable[..., Any] = import_module(package).make
    except ImportError:
        raise UserError(
            f"{kind}:… needs the package {distribution}, which is not installed here.",
            where=f"{kind}:{location}",
            do=format_install(distribution),
        ) from None
    name, _, query = location.partition("?")
    settings = {key: _parse_value(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    if kind == "skyrl":
        rows = _read_rows(data, name)
        return SkyRLWorld(lambda row: make(name, extras=dict(row), **settings), name, rows)

    def make_instance() -> Any:
        """Make one environment with the settings of the query."""
        return make(name, **settings)

    if kind == "textarena":
        _try_making(make_instance, name)
        return TextArenaWorld(make_instance, name, tasks)
    trial_instance = _try_making(make_instance, name)
    # A text rendering is a better observation for a language model than an array.
    if "render_mode" not in settings and "ansi" in (getattr(trial_instance, "metadata", None) or {}).get(
        "render_modes", ()
    ):
        settings["render_mode"] = "ansi"
    return GymnasiumWorld(make_instance, name, tasks)


def _choose_world(
    make_env: Callable[..., Any], like: Any, name: str, source: str, tasks: int, data: Path | None
) -> World:
    """Choose the adapter of a user's class by the methods it has.

    Args:
        make_env: creates an instance.
        like: the class or an instance, searched for methods.
    """

    def has(*names: str) -> bool:
        return all(callable(getattr(like, method, None)) for method in names)

    if has("create", "step"):
        return OwnWorld(make_env, name, tasks)
    if has("get_init_state", "step", "get_query_list"):
        return AgentJetWorld(make_env, name)
    if has("reset", "get_observation", "step"):
        return TextArenaWorld(make_env, name, tasks)
    if has("reset", "step"):
        _require_gymnasium(make_env, like, name, source)
        return GymnasiumWorld(make_env, name, tasks)
    if has("init", "step"):
        return SkyRLWorld(lambda row: make_env(dict(row)), name, _read_rows(data, name))
    raise ConfigError(
        f"{source} is not an environment: it has no `create` and `step`.",
        where=source,
        expected="a class with create(task_id) and step(action), or with the methods of gymnasium, textarena or "
        "skyrl-gym",
        do="write `def create(self, task_id): …` and `def step(self, action): …`, which returns (observation, "
        "reward, done)",
    )


def _require_gymnasium(make_env: Callable[..., Any], like: Any, name: str, source: str) -> None:
    """Raise ConfigError if a class with `reset` and `step` lacks gymnasium's other attributes.

    An instance is made for the check, because a class often sets its spaces only in `__init__`.
    """
    lacks = [attribute for attribute in GYMNASIUM if not hasattr(like, attribute)]
    instance = _try_making(make_env, name) if lacks and isinstance(like, type) else like
    if lacks := [method for method in lacks if not hasattr(instance, method)]:
        has = ", ".join(attribute for attribute in GYMNASIUM if attribute not in lacks)
        raise ConfigError(
            f"{name} lacks attributes of a gymnasium environment: {', '.join(lacks)}.",
            where=locate_function(getattr(like, "reset", None)) or source,
            expected=f"{', '.join(GYMNASIUM)} ({name} has {has}); action_space defines the actions, such as "
            "gymnasium.spaces.Discrete(4)",
            do="add them, or derive the class from gymnasium.Env and set action_space and observation_space; or write "
            "create(task_id) and step(action) instead: docs/environments.md",
        )


def _try_making(make_env: Callable[[], Any], name: str) -> Any:
    """Create one instance and return it, so that a wrong name or setting is reported before any port is opened."""
    try:
        return _close_trial(make_env())
    except Exception as problem:
        raise UserError(
            f"{name} cannot be created: {type(problem).__name__}: {problem}".splitlines()[0],
            where=name,
            expected="an environment of that package, with settings that it accepts",
        ) from problem


def _close_trial(environment: Any) -> Any:
    """Close an environment made only as a trial, and return it."""
    close = getattr(environment, "close", None)
    if callable(close) and not hasattr(
        environment, "get_observation"
    ):  # textarena's close() ends a game and returns its rewards
        close()
    return environment


def _parse_value(text: str) -> Any:
    """Return a setting of the query as JSON value, or as text if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_rows(data: Path | None, name: str) -> Mapping[str, Mapping[str, Any]]:
    """Read a JSON Lines file of tasks, and return its rows by task id.

    The id is a row's `task_id` or `id`, else the number of its line, from 0.

    Args:
        data: the file; None raises UserError, because the environment has no tasks without it.
        name: name of the environment, for the message.

    Raises:
        UserError: the file or a row cannot be used, or two rows have one id.
    """
    if data is None:
        raise UserError(
            f"skyrl-gym's environment {name} has no tasks of its own.",
            where="--data",
            expected='a JSON Lines file, such as {"prompt": "1 + 1?", "reward_spec": {"ground_truth": "2"}}',
            do="pass the file: --data rows.jsonl",
        )
    try:
        text = data.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise UserError(
            f"The file of rows cannot be read: {reason}.", where=str(data), expected="a JSON Lines file"
        ) from None
    rows: dict[str, Mapping[str, Any]] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise UserError(f"A row is not valid JSON: {problem}", where=f"{data}:{line_number}") from None
            if not isinstance(row, dict):
                raise UserError("A row is not a JSON object.", where=f"{data}:{line_number}")
            name = str(row.get("task_id", row.get("id", line_number - 1)))
            if name in rows:
                raise UserError(
                    f"Two rows have the task id {name}.",
                    where=f"{data}:{line_number}",
                    expected="a different `task_id` (or `id`) in each row; a row without one gets the number of its "
                    "line, from 0",
                )
            rows[name] = row
    return rows


# Adapters for gymnasium, textarena and skyrl-gym as worlds, chosen by their methods.
# Invariant: none of the packages is imported unless an environment is named; any object with the methods works. An
# invalid action gets a reply that explains actions, and the world stays unchanged.
_BOXED = re.compile(r"\\boxed\{\s*([^{}]*?)\s*\}|<action>\s*(.*?)\s*</action>", re.S)
_NUMBER = re.compile(r"-?\d+")
_MARKED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.S)
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_LONGEST_DOC = 1500
"""Characters of a section of an environment's description shown to the agent."""


class GymnasiumWorld:
    """Adapts an environment of gymnasium. Tasks are seeds, and its text rendering is the observation if it has one."""

    def __init__(self, make_env: Callable[[], Any], name: str, count: int) -> None:
        self._make_env = make_env
        self.name = name
        self._task_count = count

    def tasks(self, split: str) -> Sequence[str]:
        return list_seeds(self._task_count, split)

    def instance(self) -> GymnasiumInstance:
        return GymnasiumInstance(self._make_env())


class GymnasiumInstance:
    """One gymnasium environment, for one rollout."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._action_space = env.action_space
        self._reward_sum = 0.0
        self._is_over = False

    def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        """Reset the environment with the task's seed, and return its rules and first observation.

        The rules are the environment's own description, and the form in which actions are expected.
        """
        observation, _ = self._env.reset(seed=parse_seed(task_id) % 2**31)
        rules = "\n\n".join(
            section
            for section in (
                self._read_doc_section("Description"),
                self._read_doc_section("Action Space"),
                self._describe_action(),
            )
            if section
        )
        return InitialState(
            [{"role": "system", "content": rules}, *to_messages(self._render_observation(observation))], {}
        )

    def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Apply the action in the agent's message. An invalid one gets a reply with the rules and changes nothing."""
        if self._is_over:
            return StepResult(to_messages("The episode is over."), 0.0, True, {})
        parsed_action = self._parse_action(read_text(action))
        if parsed_action is None:
            return StepResult(
                to_messages(f"That was no action. {self._describe_action()}"), 0.0, False, {"invalid_action": True}
            )
        observation, reward, is_terminated, is_truncated, _ = self._env.step(parsed_action)
        step_reward = parse_reward(reward, "the reward")
        self._reward_sum += step_reward
        self._is_over = bool(is_terminated or is_truncated)
        return StepResult(
            to_messages(self._render_observation(observation)),
            step_reward,
            self._is_over,
            {"truncated": bool(is_truncated)},
        )

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """Return the score of the episode so far: the sum of its rewards."""
        return self._reward_sum

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {"action_space": str(self._action_space), "observation_space": str(self._env.observation_space)}

    def release(self) -> None:
        self._env.close()

    def _render_observation(self, observation: Any) -> str:
        """Return an observation as text: the environment's text rendering if it has one, else the value.

        Highlighted text, such as the player's position, is put in square brackets, because color codes are removed.
        """
        if getattr(self._env, "render_mode", None) == "ansi":
            return _ESCAPE.sub("", _MARKED.sub(r"[\1]", str(self._env.render()))).strip("\n")
        return (
            observation
            if isinstance(observation, str)
            else str(observation.tolist() if hasattr(observation, "tolist") else observation)
        )

    def _read_doc_section(self, section: str) -> str:
        """Return the section under a `## ` heading of the environment's docstring, or ""."""
        text = getattr(self._env.unwrapped if hasattr(self._env, "unwrapped") else self._env, "__doc__", "") or ""
        match = re.search(rf"^\s*## {section}\s*\n(.*?)(?=^\s*## |\Z)", text, re.S | re.M)
        lines = [line.strip() for line in match[1].strip().splitlines()] if match else []
        return "\n".join(lines)[:_LONGEST_DOC]

    def _describe_action(self) -> str:
        """Return a sentence that tells the agent in which form to write its action, by the kind of action space."""
        size, start = getattr(self._action_space, "n", None), int(getattr(self._action_space, "start", 0))
        if size is not None:
            return f"End your answer with \\boxed{{N}}, where N is an action from {start} to {start + int(size) - 1}."
        if getattr(self._action_space, "shape", None):
            return f"End your answer with \\boxed{{[…]}}, a JSON list of numbers: {self._action_space}."
        return "End your answer with \\boxed{…}, your action."

    def _parse_action(self, text: str) -> Any:
        r"""Return the action of the last \boxed{…} or <action> tag, or None if it is illegal.

        Without such a tag the complete text, or its last number, is the action.
        """
        boxes = [boxed or tagged for boxed, tagged in _BOXED.findall(text)]
        answer = boxes[-1] if boxes else text.strip()
        if hasattr(self._action_space, "n"):
            numbers = _NUMBER.findall(answer)
            action: Any = int(numbers[-1]) if numbers else None
        elif getattr(self._action_space, "shape", None):
            action = _parse_array(answer, self._action_space)
        else:
            action = answer
        return action if action is not None and self._action_space.contains(action) else None


def _parse_array(text: str, space: Any) -> Any:
    """Parse a JSON list as an array of the space's type and shape, or return None."""
    import numpy

    try:
        return numpy.asarray(load_json(text), dtype=space.dtype).reshape(space.shape)
    except (ValueError, TypeError):
        return None


class TextArenaWorld:
    """Adapts single-player games of TextArena. Tasks are seeds."""

    def __init__(self, make_env: Callable[[], Any], name: str, count: int) -> None:
        self._make_env = make_env
        self.name = name
        self._task_count = count

    def tasks(self, split: str) -> Sequence[str]:
        return list_seeds(self._task_count, split)

    def instance(self) -> TextArenaInstance:
        return TextArenaInstance(self._make_env())


class TextArenaInstance:
    """One single-player game of TextArena, for one rollout."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._score = 0.0
        self._is_over = False

    def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        self._env.reset(num_players=1, seed=parse_seed(task_id))
        return InitialState(to_messages(self._env.get_observation()[1]), {})

    def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Play one move. The reward comes only with the end of the game."""
        if self._is_over:
            return StepResult(to_messages("The game is over."), 0.0, True, {})
        is_terminated, info = self._env.step(read_text(action))
        if not is_terminated:
            return StepResult(to_messages(self._env.get_observation()[1]), 0.0, False, dict(info or {}))
        rewards, info_by_player = self._env.close()  # both by player number; the agent is player 0
        self._is_over, self._score = True, parse_reward((rewards or {}).get(0), "the reward")
        player_info = (info_by_player or {}).get(0, {})
        return StepResult(
            to_messages(player_info.get("reason", "The game is over.")),
            self._score,
            True,
            {"reason": player_info.get("reason")},
        )

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        return self._score

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {}

    def release(self) -> None:
        if not self._is_over and hasattr(self._env, "close"):
            self._env.close()


class SkyRLWorld:
    """Adapts environments of skyrl-gym.

    Tasks are rows `{prompt, …}` of a data set. The other columns configure the environment.
    """

    def __init__(
        self, make_env: Callable[[Mapping[str, Any]], Any], name: str, rows: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._make_env = make_env
        self.name = name
        self._rows = rows

    def tasks(self, split: str) -> Sequence[str]:
        """Return the task ids of the split. Rows without the key `split` belong to every split."""
        return [name for name, row in self._rows.items() if row.get("split", split) == split]

    def instance(self) -> SkyRLInstance:
        return SkyRLInstance(self._make_env, self._rows)


class SkyRLInstance:
    """One environment of skyrl-gym, for one rollout."""

    def __init__(self, make_env: Callable[[Mapping[str, Any]], Any], rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._make_env, self._rows = make_env, rows
        self._env: Any = None
        self._reward_sum = 0.0

    def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        """Make the environment for the task's data row and return its first messages.

        Raises ValueError for an unknown task.
        """
        row = self._rows.get(task_id)
        if row is None:
            raise ValueError(f"there is no task {task_id!r}")
        self._env = self._make_env(row)
        state, info = self._env.init(to_messages(row.get("prompt", "")))
        return InitialState(to_messages(state), dict(info or {}))

    def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Pass the text of the agent's message to the environment, and convert its result."""
        outcome = self._env.step(read_text(action))
        step_reward = parse_reward(outcome["reward"], "the reward")
        self._reward_sum += step_reward
        return StepResult(
            to_messages(outcome["observations"]),
            step_reward,
            bool(outcome["done"]),
            dict(outcome.get("metadata") or {}),
        )

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """Return the score of the episode so far: the sum of its rewards."""
        return self._reward_sum

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {}

    def release(self) -> None:
        if self._env is not None:
            self._env.close()
