"""Adapters for gymnasium, textarena and skyrl-gym as worlds, chosen by their methods.

Invariant: none of the packages is imported unless an environment is named; any object with the methods works. An
invalid action gets a reply that explains actions, and the world stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ajet.schema.bounded_json import load_json
from ajet_environments.services.hosted import (
    InitialState,
    Message,
    StepResult,
    list_seeds,
    parse_reward,
    parse_seed,
    read_text,
    to_messages,
)

_BOXED = re.compile(r"\\boxed\{\s*([^{}]*?)\s*\}|<action>\s*(.*?)\s*</action>", re.S)
_NUMBER = re.compile(r"-?\d+")
_MARKED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.S)
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_LONGEST_DOC = 1500
"""Characters of a section of an environment's description shown to the agent."""


class GymnasiumWorld:
    """`reset(seed=)` and `step(action)`; tasks are seeds. The text rendering, if any, is the observation."""

    def __init__(self, make: Callable[[], Any], name: str, count: int) -> None:
        self._make, self.name, self._count = make, name, count

    def tasks(self, split: str) -> Sequence[str]:
        return list_seeds(self._count, split)

    def instance(self) -> GymnasiumInstance:
        return GymnasiumInstance(self._make())


class GymnasiumInstance:
    def __init__(self, env: Any) -> None:
        self._env = env
        self._space = env.action_space
        self._total = 0.0
        self._is_over = False

    def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        seen, _ = self._env.reset(seed=parse_seed(task_id) % 2**31)
        rules = "\n\n".join(
            part
            for part in (
                self._read_doc_section("Description"),
                self._read_doc_section("Action Space"),
                self._describe_action(),
            )
            if part
        )
        return InitialState([{"role": "system", "content": rules}, *to_messages(self._render_observation(seen))], {})

    def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        if self._is_over:
            return StepResult(to_messages("The episode is over."), 0.0, True, {})
        chosen = self._parse_action(read_text(action))
        if chosen is None:
            return StepResult(
                to_messages(f"That was no action. {self._describe_action()}"), 0.0, False, {"invalid_action": True}
            )
        seen, reward, ended, cut, _ = self._env.step(chosen)
        number = parse_reward(reward, "the reward")
        self._total += number
        self._is_over = bool(ended or cut)
        return StepResult(to_messages(self._render_observation(seen)), number, self._is_over, {"truncated": bool(cut)})

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """Return the sum of the rewards."""
        return self._total

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {"action_space": str(self._space), "observation_space": str(self._env.observation_space)}

    def release(self) -> None:
        self._env.close()

    def _render_observation(self, seen: Any) -> str:
        if getattr(self._env, "render_mode", None) == "ansi":
            return _ESCAPE.sub("", _MARKED.sub(r"[\1]", str(self._env.render()))).strip("\n")
        return seen if isinstance(seen, str) else str(seen.tolist() if hasattr(seen, "tolist") else seen)

    def _read_doc_section(self, section: str) -> str:
        """Return a section of the environment's documentation."""
        text = getattr(self._env.unwrapped if hasattr(self._env, "unwrapped") else self._env, "__doc__", "") or ""
        found = re.search(rf"^\s*## {section}\s*\n(.*?)(?=^\s*## |\Z)", text, re.S | re.M)
        lines = [line.strip() for line in found[1].strip().splitlines()] if found else []
        return "\n".join(lines)[:_LONGEST_DOC]

    def _describe_action(self) -> str:
        size, start = getattr(self._space, "n", None), int(getattr(self._space, "start", 0))
        if size is not None:
            return f"End your answer with \\boxed{{N}}, where N is an action from {start} to {start + int(size) - 1}."
        if getattr(self._space, "shape", None):
            return f"End your answer with \\boxed{{[…]}}, a JSON list of numbers: {self._space}."
        return "End your answer with \\boxed{…}, your action."

    def _parse_action(self, text: str) -> Any:
        """Return the action in the last box, or the last number outside a box; None if it is not legal."""
        boxes = [first or second for first, second in _BOXED.findall(text)]
        answer = boxes[-1] if boxes else text.strip()
        if hasattr(self._space, "n"):
            numbers = _NUMBER.findall(answer)
            chosen: Any = int(numbers[-1]) if numbers else None
        elif getattr(self._space, "shape", None):
            chosen = _parse_array(answer, self._space)
        else:
            chosen = answer
        return chosen if chosen is not None and self._space.contains(chosen) else None


def _parse_array(text: str, space: Any) -> Any:
    import numpy

    try:
        return numpy.asarray(load_json(text), dtype=space.dtype).reshape(space.shape)
    except (ValueError, TypeError):
        return None


class TextArenaWorld:
    """`reset(num_players=)`, `get_observation()`, `step(text)`, `close()`; tasks are seeds. Games of one player."""

    def __init__(self, make: Callable[[], Any], name: str, count: int) -> None:
        self._make, self.name, self._count = make, name, count

    def tasks(self, split: str) -> Sequence[str]:
        return list_seeds(self._count, split)

    def instance(self) -> TextArenaInstance:
        return TextArenaInstance(self._make())


class TextArenaInstance:
    def __init__(self, env: Any) -> None:
        self._env = env
        self._score = 0.0
        self._is_over = False

    def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        self._env.reset(num_players=1, seed=parse_seed(task_id))
        return InitialState(to_messages(self._env.get_observation()[1]), {})

    def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        """Play one move; the reward comes with the end of the game."""
        if self._is_over:
            return StepResult(to_messages("The game is over."), 0.0, True, {})
        ended, info = self._env.step(read_text(action))
        if not ended:
            return StepResult(to_messages(self._env.get_observation()[1]), 0.0, False, dict(info or {}))
        rewards, about = self._env.close()
        self._is_over, self._score = True, parse_reward((rewards or {}).get(0), "the reward")
        own = (about or {}).get(0, {})
        return StepResult(
            to_messages(own.get("reason", "The game is over.")), self._score, True, {"reason": own.get("reason")}
        )

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        return self._score

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {}

    def release(self) -> None:
        if not self._is_over and hasattr(self._env, "close"):
            self._env.close()


class SkyRLWorld:
    """`init(prompt)` and `step(text)`; tasks are rows `{prompt, …}` of a data set, whose other columns configure the
    environment."""

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Any], name: str, rows: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._make, self.name, self._rows = make, name, rows

    def tasks(self, split: str) -> Sequence[str]:
        """Return the rows of the split; rows without `split` belong to every split."""
        return [name for name, row in self._rows.items() if row.get("split", split) == split]

    def instance(self) -> SkyRLInstance:
        return SkyRLInstance(self._make, self._rows)


class SkyRLInstance:
    def __init__(self, make: Callable[[Mapping[str, Any]], Any], rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._make, self._rows = make, rows
        self._env: Any = None
        self._total = 0.0

    def create(self, task_id: str, params: Mapping[str, Any]) -> InitialState:
        row = self._rows.get(task_id)
        if row is None:
            raise ValueError(f"there is no task {task_id!r}")
        self._env = self._make(row)
        state, info = self._env.init(to_messages(row.get("prompt", "")))
        return InitialState(to_messages(state), dict(info or {}))

    def step(self, action: Message, params: Mapping[str, Any]) -> StepResult:
        outcome = self._env.step(read_text(action))
        number = parse_reward(outcome["reward"], "the reward")
        self._total += number
        return StepResult(
            to_messages(outcome["observations"]), number, bool(outcome["done"]), dict(outcome.get("metadata") or {})
        )

    def evaluate(self, messages: Any, params: Mapping[str, Any]) -> float:
        """Return the sum of the rewards."""
        return self._total

    def get_info(self, messages: Any, params: Mapping[str, Any]) -> Any:
        return {}

    def release(self) -> None:
        if self._env is not None:
            self._env.close()
