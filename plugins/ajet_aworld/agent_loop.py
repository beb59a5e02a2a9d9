"""AworldAgentLoop: the workflow that runs agents of AWorld.

Invariants: an agent is trained if and only if its address came from `get_llm_server_address()`. Each episode builds its
own agents, and their AWorld objects end with the episode. The class is a `rollout.user_workflow` on every backbone, and
a `_target_` in the agent.yaml of a verl that ajet did not launch (verl then runs the training loop).
"""

from __future__ import annotations

import inspect
import uuid
from abc import abstractmethod
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

from pydantic import PrivateAttr

from ajet.schema.errors import AjetError, BoundaryError, MissingExtraError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow.tuner import ModelTuner
from ajet.workflow.workflow import Workflow
from ajet_aworld.packages import install_finders
from ajet_aworld.tool_environment import open_episode_tools

install_finders()  # an agent's module imports AWorld after this call


class Told(str):
    """A text that can also be awaited, since AWorld's newer versions await it."""

    def __await__(self) -> Generator[Any, None, str]:
        """Return the text at once. The `yield`, never reached, makes this method a generator, as `await` requires."""
        return str(self)
        yield


class AworldAgentLoop(Workflow):
    """The workflow of an AWorld agent. Subclass it and write `build_agents`."""

    name: str = "aworld"
    _tuner: ModelTuner | None = PrivateAttr(default=None)
    _addresses: set[str] = PrivateAttr(default_factory=set)

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise MissingExtraError without AWorld."""
        require_aworld()

    @abstractmethod
    def build_agents(self) -> Any:
        """Build an AWorld Agent or Swarm for each episode; may be `async`."""

    def get_llm_server_address(self, server_name: str | None = None) -> Told:
        """Return the model address (`llm_base_url`) that makes an agent trained.

        Each call returns a new one, valid until the episode ends. It contains a key and must be kept secret; any
        `llm_api_key` works. The result may be awaited. `server_name` has no effect.
        """
        endpoint = self._require_tuner().as_oai_baseurl_apikey(agent_name=f"agent-{len(self._addresses) + 1}")
        self._addresses.add(endpoint.keyed_url)
        return Told(endpoint.keyed_url)

    def get_llm_server_model_name(self) -> Told:
        """Return the `llm_model_name` of a trained agent. May be awaited."""
        return Told(self._require_tuner().model_name)

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Build the agents and run them with AWorld.

        Returns:
            The output, whose metadata has AWorld's answer as `final_answer`.

        Raises:
            BoundaryError: the agents, a tool or the environment failed.
        """
        require_aworld()
        from ajet_aworld import isolation, play

        self._tuner = tuner
        session = f"{workflow_task.episode_uuid}-{uuid.uuid4().hex[:8]}"
        with isolation.isolate_episode(session), open_episode_tools(tuner) as tools:
            agent_or_swarm = self.build_agents()
            if inspect.isawaitable(agent_or_swarm):
                agent_or_swarm = await agent_or_swarm
            agents = play.list_agents(agent_or_swarm)
            play.bind_agents(agents, self._addresses, tuner)
            try:
                answer = await play.run_agents(agent_or_swarm, agents, build_question(workflow_task.task), session)
            except BoundaryError:
                # A lost environment explains the agents' failure better than the failure itself.
                await tools.end()
                tools.require_no_loss()
                raise
            finally:
                await tools.end()
            tools.require_no_loss()
        return WorkflowOutput(metadata={"final_answer": answer.answer})

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[Any]:
        """Run one task for a verl that ajet did not launch (`ajet_verl.agent.plain`)."""
        from ajet_verl.agent.plain import play_session

        return await play_session(type(self), {"name": self.name, **(self.model_extra or {})}, sampling_params, kwargs)

    def _require_tuner(self) -> ModelTuner:
        """Return the model tuner of the running episode. Raises AjetError outside of an episode."""
        if self._tuner is None:
            raise AjetError("the model's address exists only while an episode runs: read it inside build_agents()")
        return self._tuner


def build_question(task: Task) -> str:
    """Return the agents' input: the task's system messages, if any, then its question."""
    system_texts = [_read_text(message) for message in task.init_messages if message.get("role") == "system"]
    question = task.main_query or next(
        (_read_text(message) for message in reversed(task.init_messages) if message.get("role") == "user"), ""
    )
    return "\n\n".join(text for text in (*system_texts, question) if text)


def _read_text(message: dict[str, Any]) -> str:
    """Return the text of a message, whose content may be a text or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content or ""


def require_aworld() -> None:
    """Raise MissingExtraError without AWorld."""
    if find_spec("aworld") is None:
        raise MissingExtraError("aworld", "aworld", needed_for="An agent of AWorld")
