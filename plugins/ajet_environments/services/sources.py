"""Worlds by name: `file.py->MyEnv`, `gymnasium:ID`, `textarena:ID`, `skyrl:ID`, `openenv:ws://HOST:PORT`,
`nemo_gym:http://HOST:PORT`.

Invariant: an unusable source is one UserError before anything listens. The name of an ecosystem's environment may carry
settings: `gymnasium:FrozenLake-v1?is_slippery=false`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ajet.config import resolve_reference
from ajet.config.functions import locate_function
from ajet.schema.addresses import require_address
from ajet.schema.commands import format_install
from ajet.schema.errors import ConfigError, UserError
from ajet_environments.services.ecosystems import GymnasiumWorld, SkyRLWorld, TextArenaWorld
from ajet_environments.services.hosted import AgentJetWorld, OwnWorld, World

PACKAGES = {"gymnasium": "gymnasium", "textarena": "textarena", "skyrl": "skyrl_gym"}
"""Ecosystems and their packages, whose `make(ID)` makes an environment."""
GYMNASIUM = ("reset", "step", "action_space", "observation_space", "close")
TASKS = 1000
"""Training tasks of a world that names none."""


def open_world(source: str, *, base: Path, tasks: int = TASKS, data: Path | None = None) -> World:
    """Open the world of a source. Raises UserError.

    `tasks`: their number, if the world names none. `data`: rows of tasks, for skyrl-gym and NeMo Gym.
    """
    kind, _, rest = source.partition(":")
    if kind == "openenv":
        from ajet_environments.services.openenv import OpenEnvWorld

        schemes = ("ws", "wss", "http", "https")
        return OpenEnvWorld(
            require_address(rest, source, "an OpenEnv server", "openenv:ws://HOST:PORT", schemes), tasks
        )
    if kind == "nemo_gym":
        from ajet_environments.services.nemo_gym import NemoGymWorld

        return NemoGymWorld(
            require_address(rest, source, "a NeMo Gym resource server", "nemo_gym:http://HOST:PORT"),
            None if data is None else _read_rows(data, rest),
        )
    if kind in PACKAGES:
        return _open_package_world(kind, rest, tasks, data)
    found = resolve_reference(source, base=base, what="the environment")
    name = getattr(found, "__name__", source)
    if not isinstance(found, type):
        if not callable(found):
            raise ConfigError(
                f"{source} is a {type(found).__name__}, not an environment.",
                where=source,
                expected="a class, or a function",
            )
        return _choose_world(found, _close_trial(found()), name, source, tasks, data)
    return _choose_world(found, found, name, source, tasks, data)


def _open_package_world(kind: str, rest: str, tasks: int, data: Path | None) -> World:
    package = PACKAGES[kind]
    installed = package.replace("_", "-")
    try:
        make: Callable[..., Any] = import_module(package).make
    except ImportError:
        raise UserError(
            f"{kind}:… needs the package {installed}, which is not installed here.",
            where=f"{kind}:{rest}",
            do=format_install(installed),
        ) from None
    name, _, query = rest.partition("?")
    settings = {key: _parse_value(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    if kind == "skyrl":
        rows = _read_rows(data, name)
        return SkyRLWorld(lambda row: make(name, extras=dict(row), **settings), name, rows)

    def made() -> Any:
        return make(name, **settings)

    if kind == "textarena":
        _try_making(made, name)
        return TextArenaWorld(made, name, tasks)
    tried = _try_making(made, name)
    if "render_mode" not in settings and "ansi" in (getattr(tried, "metadata", None) or {}).get("render_modes", ()):
        settings["render_mode"] = "ansi"
    return GymnasiumWorld(made, name, tasks)


def _choose_world(make: Callable[..., Any], like: Any, name: str, source: str, tasks: int, data: Path | None) -> World:
    """Choose the adapter of a class by its methods. `like`: the class, or an instance."""

    def has(*names: str) -> bool:
        return all(callable(getattr(like, each, None)) for each in names)

    if has("create", "step"):
        return OwnWorld(make, name, tasks)
    if has("get_init_state", "step", "get_query_list"):
        return AgentJetWorld(make, name)
    if has("reset", "get_observation", "step"):
        return TextArenaWorld(make, name, tasks)
    if has("reset", "step"):
        _require_gymnasium(make, like, name, source)
        return GymnasiumWorld(make, name, tasks)
    if has("init", "step"):
        return SkyRLWorld(lambda row: make(dict(row)), name, _read_rows(data, name))
    raise ConfigError(
        f"{source} is not an environment: it has no `create` and `step`.",
        where=source,
        expected="a class with create(task_id) and step(action), or with the methods of gymnasium, textarena or "
        "skyrl-gym",
        do="write `def create(self, task_id): …` and `def step(self, action): …`, which returns (observation, "
        "reward, done)",
    )


def _require_gymnasium(make: Callable[..., Any], like: Any, name: str, source: str) -> None:
    """Raise ConfigError for a class with gymnasium's `reset` and `step` that lacks the other attributes."""
    lacks = [each for each in GYMNASIUM if not hasattr(like, each)]
    made = _try_making(make, name) if lacks and isinstance(like, type) else like
    if lacks := [each for each in lacks if not hasattr(made, each)]:
        has = ", ".join(each for each in GYMNASIUM if each not in lacks)
        raise ConfigError(
            f"{name} lacks attributes of a gymnasium environment: {', '.join(lacks)}.",
            where=locate_function(getattr(like, "reset", None)) or source,
            expected=f"{', '.join(GYMNASIUM)} ({name} has {has}); action_space defines the actions, such as "
            "gymnasium.spaces.Discrete(4)",
            do="add them, or derive the class from gymnasium.Env and set action_space and observation_space; or write "
            "create(task_id) and step(action) instead: docs/environments.md",
        )


def _try_making(make: Callable[[], Any], name: str) -> Any:
    """Make one instance, to report a wrong name or setting before anything listens."""
    try:
        return _close_trial(make())
    except Exception as problem:
        raise UserError(
            f"{name} cannot be created: {type(problem).__name__}: {problem}".splitlines()[0],
            where=name,
            expected="an environment of that package, with settings that it accepts",
        ) from problem


def _close_trial(made: Any) -> Any:
    close = getattr(made, "close", None)
    if callable(close) and not hasattr(made, "get_observation"):  # textarena's close() answers rewards of a game
        close()
    return made


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_rows(data: Path | None, name: str) -> Mapping[str, Mapping[str, Any]]:
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
        why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise UserError(
            f"The file of rows cannot be read: {why}.", where=str(data), expected="a JSON Lines file"
        ) from None
    rows: dict[str, Mapping[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise UserError(f"A row is not valid JSON: {problem}", where=f"{data}:{number}") from None
            if not isinstance(row, dict):
                raise UserError("A row is not a JSON object.", where=f"{data}:{number}")
            name = str(row.get("task_id", row.get("id", number - 1)))
            if name in rows:
                raise UserError(
                    f"Two rows have the task id {name}.",
                    where=f"{data}:{number}",
                    expected="a different `task_id` (or `id`) in each row; a row without one gets the number of its "
                    "line, from 0",
                )
            rows[name] = row
    return rows
