"""Episode: an attempt at a task, for the program that plays the attempt.

Invariant: an episode ends once, by the first of `finish`, `fail` and `give_up`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet.client.request_sender import RequestSender

Boundary = Literal["agent", "tool", "environment", "sandbox"]


@dataclass(slots=True)
class Episode:
    """A running episode: the model's address for the agent, and the ways to end."""

    name: str
    task: Mapping[str, Any]
    """`main_query`, `init_messages`, `task_id`, `env_type`, `metadata`."""
    repeat: int
    """Number of the attempt at its task."""
    base_url: str
    """Base URL for clients of OpenAI's protocols; without /v1 for Anthropic's."""
    api_key: str = field(repr=False)
    """Key for the base URL. It becomes invalid when the episode ends."""
    path_base_url: str = field(repr=False)
    """Address with the key, for clients without a key setting."""
    model: str
    version: int
    """Version of the weights at the beginning."""
    _sender: RequestSender = field(repr=False)
    ended: dict[str, Any] | None = field(default=None, repr=False)
    """The server's answer to the end of the episode: reward and status."""

    @property
    def question(self) -> str:
        """The task's question as text (`main_query`)."""
        return str(self.task.get("main_query", ""))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for an agent started as a program."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "GOOGLE_GEMINI_BASE_URL": self.base_url.removesuffix("/v1"),
            "GEMINI_API_KEY": self.api_key,
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
        """End the episode with its outcome.

        Args:
            reward: The reward, or a reward per turn. None: the server's judge decides.
            success: True if the task is solved. None: unknown.
            metadata: Values for the judge and the record, such as `final_answer`.
            metrics: Numbers for the record, by name.
            tool_uses: Tool uses of the agent for the record.

        Returns:
            The server's answer with reward and status.

        Raises:
            Refused, EpisodeLost, Unreachable: the server refused or did not respond.
        """
        body = {"reward": reward if isinstance(reward, (int, float, type(None))) else list(reward), "success": success,
                "metadata": dict(metadata or {}), "metrics": dict(metrics or {}),
                "tool_uses": [dict(use) for use in tool_uses]}  # fmt: skip
        return self._end_episode("POST", "/finish", body)

    def fail(self, error: str | Exception, boundary: Boundary = "agent") -> dict[str, Any]:
        """Fail the episode: it is recorded and never trained on. Raises and returns as `finish` does.

        Args:
            error: The reason, or the exception.
            boundary: The part that failed, for the record.
        """
        message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self._end_episode("POST", "/finish", {"error": message, "boundary": boundary})

    def give_up(self) -> dict[str, Any]:
        """End the episode without counting the attempt: recorded as aborted. Raises and returns as `finish` does."""
        return self._end_episode("DELETE", "", None)

    def state(self) -> dict[str, Any]:
        """Return the server's state of the episode. Raises Refused, EpisodeLost and Unreachable as `finish` does."""
        return self._sender.ask("GET", f"/episodes/{self.name}")

    def _end_episode(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send the end of the episode once, and return the server's answer; later calls return the same answer."""
        if self.ended is None:
            self.ended = self._sender.ask(method, f"/episodes/{self.name}{path}", body)
        return self.ended
