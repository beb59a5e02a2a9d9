"""Episode: one attempt at a task, as the program that plays it has it.

Invariant: it ends once: by the first of `finish`, `fail` and `give_up`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet.client.asking import RequestSender

Boundary = Literal["agent", "tool", "environment", "sandbox"]


@dataclass(slots=True)
class Episode:
    """An episode being played: the model's address for its agent, and the ways to end it."""

    name: str
    task: Mapping[str, Any]
    """`main_query`, `init_messages`, `task_id`, `env_type`, `metadata`."""
    repeat: int
    """Which attempt at its task it is."""
    base_url: str
    """For clients of OpenAI's protocols; without its /v1 for Anthropic's."""
    api_key: str = field(repr=False)
    """Good for this episode, until it ends."""
    path_base_url: str = field(repr=False)
    """With the key in it, for clients that can set no key."""
    model: str
    version: int
    """Of the weights, when it began."""
    _sender: RequestSender = field(repr=False)
    ended: dict[str, Any] | None = field(default=None, repr=False)
    """What the server made of it, once it has ended."""

    @property
    def question(self) -> str:
        """The task's question."""
        return str(self.task.get("main_query", ""))

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which an agent that is a program finds its model."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
        }

    def finish(
        self,
        reward: float | Sequence[float] | None = None,
        *,
        success: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        tool_uses: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Say how it went; without a reward the server's judge decides, and is waited for. Answers what became of it.
        Raises Refused, EpisodeLost among it, and Unreachable."""
        body = {"reward": reward if isinstance(reward, (int, float, type(None))) else list(reward), "success": success,
                "metadata": dict(metadata or {}), "metrics": dict(metrics or {}),
                "tool_uses": [dict(use) for use in tool_uses]}  # fmt: skip
        return self._end_episode("POST", "/finish", body)

    def fail(self, error: str | Exception, boundary: Boundary = "agent") -> dict[str, Any]:
        """Fail the episode, on that side, for that reason or with what was raised: it is recorded, and nothing of it is
        trained on. Raises as `finish`."""
        message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self._end_episode("POST", "/finish", {"error": message, "boundary": boundary})

    def give_up(self) -> dict[str, Any]:
        """End the episode as no attempt that counts: it is recorded as aborted. Raises as `finish`."""
        return self._end_episode("DELETE", "", None)

    def state(self) -> dict[str, Any]:
        """The server's state of the episode. Raises as `finish`."""
        return self._sender.ask("GET", f"/episodes/{self.name}")

    def _end_episode(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        if self.ended is None:
            self.ended = self._sender.ask(method, f"/episodes/{self.name}{path}", body)
        return self.ended
