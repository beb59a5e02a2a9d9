"""`ajet env check URI`: run one episode against a service and print which requests work.

Invariant: the check uses the rollout's own client (`EnvService`, `GymEnv`), so a passing check means a working rollout.
Each request of the protocol is printed. The exit code depends on the requests that an episode needs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ajet.environment.services.chosen import is_service_url, service_at
from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.schema.errors import EnvironmentFailure
from ajet_environments.services.serving import LocalWorldService
from ajet_environments.services.sources import TASKS, open_world

T = TypeVar("T")
MAX_CHARACTERS = 300
"""Characters of a printed text."""
BOX = re.compile(r"an action from (-?\d+) to (-?\d+)")


def run_check(
    uri: str, *, env_type: str, split: str, actions: Sequence[str], steps: int, data: Path | None = None
) -> int:
    """Run one episode and return the exit code: 0 if it was completed, else 1.

    Args:
        uri: URL of a service, or a source that `ajet env serve` accepts.
        split: its first task is run.
        actions: texts of the agent's actions; empty to make actions from the schema.
        steps: largest number of steps.
        data: JSON Lines file of tasks, for skyrl and nemo_gym.

    Raises:
        UserError: the URI is unknown.
    """
    with ExitStack() as stack:
        if is_service_url(uri):
            service = service_at(uri.rstrip("/"), "URI", env_type)
        else:
            local = LocalWorldService(open_world(uri, base=Path.cwd(), tasks=TASKS, data=data))
            stack.callback(local.close)
            service = local.service
        return ServiceCheck(service, split, actions, steps).run()


class ServiceCheck:
    """Runs the requests of one episode and collects those that fail."""

    def __init__(self, service: EnvService, split: str, actions: Sequence[str], steps: int) -> None:
        self._service = service
        self._split = split
        self._actions = actions
        self._steps = steps
        self._missing: list[str] = []
        self._is_broken = False

    def run(self) -> int:
        """Run the episode, print one line per request, and return the exit code."""
        task_ids = self._try_request("get_env_profile", lambda: self._service.task_ids(self._split), needed=False) or []
        if task_ids:
            _print_row("get_env_profile", f"{len(task_ids)} tasks in {self._split!r}, the first is {task_ids[0]!r}")
        elif not self._missing:
            self._missing.append(
                f"the split {self._split!r} lists no tasks, so the reader env_service has no task to run"
            )
        env = GymEnv(self._service, task_ids[0] if task_ids else "0")
        state = self._try_request("create", env.create, needed=True)
        if state is not None:
            _print_row(
                "create", " | ".join(f"{message['role']}: {_shorten_text(message['content'])}" for message in state)
            )
            self._play_steps(env, state)
            score = self._try_request("evaluate", lambda: env.evaluate(params={"sparse": False}), needed=False)
            if score is not None:
                _print_row("evaluate", f"{score:g}")
        if state is not None and (was_found := self._try_request("release", env.release, needed=False)) is not None:
            _print_row(
                "release", "the instance was there" if was_found else "the service does not know the instance any more"
            )
        return self._print_verdict()

    def _play_steps(self, env: GymEnv, state: list[dict[str, Any]]) -> None:
        """Run steps until the episode ends or the step limit is reached, and print each.

        Args:
            env: a created episode.
            state: its first messages, from which actions are made up if the user gave none.
        """
        info = self._try_request("get_info", env.get_info, needed=False)
        if info is not None:
            _print_row("get_info", _shorten_text(json.dumps(info, default=str)))
        reward_sum, is_terminated = 0.0, False
        for step_number in range(1, self._steps + 1):
            action = (
                self._actions[(step_number - 1) % len(self._actions)]
                if self._actions
                else make_action(state, info, step_number)
            )
            step = self._try_request("step", partial(env.step, action), needed=True)
            if step is None:
                return
            reward_sum += step.reward
            action_text, observation = _shorten_text(_describe_action(action)), _shorten_text(str(step.observation))
            _print_row(f"step {step_number}", f"{action_text!r} → {observation!r}, reward {step.reward:g}")
            if is_terminated := step.is_terminated:
                break
        _print_row(
            "episode",
            f"{'ended' if is_terminated else 'not ended'} after {step_number} steps, rewards {reward_sum:g} in total",
        )
        if not is_terminated and not self._actions:
            self._missing.append(
                f"the episode did not end within {self._steps} steps of made-up actions; pass real actions with "
                "--action"
            )

    def _try_request(self, name: str, ask: Callable[[], T], *, needed: bool) -> T | None:
        """Send one request and return its result, or record the failure and return None.

        Args:
            name: name of the request in the protocol.
            ask: sends the request.
            needed: True if no episode can run without the request.
        """
        try:
            return ask()
        except EnvironmentFailure as problem:
            self._is_broken = self._is_broken or needed
            self._missing.append(f"{name}: {problem}")
            return None

    def _print_verdict(self) -> int:
        """Print the failed requests and whether an episode can be run. Return the exit code."""
        for problem in self._missing:
            print(f"missing          {problem}")
        print("An episode could not be run." if self._is_broken else "An episode was run successfully.")
        return int(self._is_broken)


def make_action(state: Sequence[Any], info: Any, number: int) -> str | dict[str, Any]:
    """Make up the action of a step: a value of the action schema, a tool call, a number in a described range, or a
    word.

    Args:
        state: messages of the environment, searched for "an action from LOW to HIGH".
        info: the environment's info, with its `tools` or the schema `action`.
        number: number of the step, from 1; selects the tool and the value.
    """
    schema, tools = (info.get("action"), info.get("tools")) if isinstance(info, dict) else (None, None)
    if isinstance(schema, dict):
        return json.dumps(make_value(schema, number, schema))
    if isinstance(tools, list) and number <= len(tools):
        function = tools[number - 1].get("function") or {}
        parameters = function.get("parameters") or {"type": "object"}
        call = {"name": function.get("name"), "arguments": json.dumps(make_value(parameters, number, parameters))}
        return {"content": "", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}]}
    text = " ".join(str(message.get("content")) for message in state)
    if match := BOX.search(text):
        low, high = int(match[1]), int(match[2])
        return f"\\boxed{{{low + (number - 1) % (high - low + 1)}}}"
    return f"[{number}]"


def make_value(schema: dict[str, Any], number: int, root: dict[str, Any]) -> Any:
    """Make up a value that fits a JSON schema.

    Args:
        number: index of the step; selects among the values of an enumeration.
        root: the complete schema, for `$ref`.
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return make_value(root.get("$defs", {}).get(name, {}), number, root)
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return make_value(schema[choice][0], number, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][number % len(schema["enum"])]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        required = schema.get("required") or [name for name in schema.get("properties", {}) if name != "metadata"]
        return {name: make_value(schema.get("properties", {}).get(name, {}), number, root) for name in required}
    if kind == "array":
        return [make_value(schema.get("items", {}), number, root)] * max(1, int(schema.get("minItems", 0)))
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", math.inf)
        return int(min(low + number - 1, high))
    return {"boolean": number % 2 == 0, "null": None}.get(str(kind), f"{number}")


def _describe_action(action: str | dict[str, Any]) -> str:
    """Return the text of an action, or its tool call."""
    if isinstance(action, str):
        return action
    (call,) = action["tool_calls"]
    return f"{call['function']['name']} {call['function']['arguments']}"


def _shorten_text(text: Any) -> str:
    """Return the text on one line, cut to MAX_CHARACTERS."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= MAX_CHARACTERS else flat[:MAX_CHARACTERS] + "…"


def _print_row(name: str, text: str) -> None:
    """Print one line of the report, in two columns."""
    print(f"{name:<16} {text}")
