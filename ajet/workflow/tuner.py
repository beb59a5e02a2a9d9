"""ModelTuner: hands out model clients that are bound to one episode.

Invariant: whatever client a workflow asks for, its requests go to the episode's endpoint with the key of that (agent,
target), and nowhere else; the tuner holds no gateway, no engine and no agent framework. Repeated requests for the same
agent and target give the same client. All methods may be called from any thread and event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ajet.environment.pinned import Pin, Pins
from ajet.schema.endpoint import Endpoint, Endpoints
from ajet.schema.sandbox import NOTHING, Sandbox
from ajet.schema.tool_use import ToolUse
from ajet.workflow.adapters import agentscope, openai_sdk
from ajet.workflow.ambient import register_key
from ajet.workflow.resources import Deadline, Resources, opened_sandbox
from ajet.workflow.tools import Replayed, Running, recorded

if TYPE_CHECKING:
    from agentscope.model import ChatModelBase
    from openai import AsyncOpenAI

DEFAULT_AGENT = "default"
P = ParamSpec("P")
R = TypeVar("R")


class ContextTracker:
    """An episode's context, and whether it has grown too long."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    @property
    def context_overflow(self) -> bool:
        """Whether a request was refused because the context is full, or a reply cut: an agent that goes on by itself
        then stops."""
        return self._endpoints.context_full()


class ModelTuner:
    """The model to be tuned, as a workflow sees it.

    It is itself a model for AgentScope agents (`ReActAgent(model=tuner)`), and gives clients of other kinds. Common
    arguments of those: `agent_name` is for records and tells the conversations of several agents apart; `target_tag`
    (default: the agent's name) says whom the replies belong to; where the workflow's `trainable_targets` leaves that
    tag out, the agent talks to `debug_model` instead and is recorded, not trained.
    """

    def __init__(
        self,
        config: Any,
        endpoints: Endpoints,
        *,
        trainable: Collection[str] | None = None,
        resources: Resources | None = None,
        replay: Replayed | None = None,
        pin: Pin | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """`trainable`: the workflow's `trainable_targets`; it matters only to debug models given as objects.
        `resources`: the attempt's. `replay`: what answers in place of tools. `pin`: what pins them for the run.
        `deadline`: None for none."""
        self._deadline = deadline or Deadline(None)
        self.resources = resources if resources is not None else Resources()
        """What the workflow opens and is to be closed when the attempt ends, however it does."""
        self.replay = replay
        """Answers a use, by tool and arguments, as a recorded run has it (`environment.replay`). None, it or its
        answer: ask the tool. For who runs tools without `tool`."""
        self.pin: Pin = pin if pin is not None else Pins()
        """Takes the tools that the model is to be offered (as a request's `tools`) and answers them in the order in
        which the run's first attempt had them. Raises ToolsChanged where that had others."""
        self._config, self._endpoints, self._trainable = config, endpoints, trainable
        self._clients: dict[tuple[str, str, str, str | None], Any] = {}
        self._registered: dict[str, ChatModelBase] = {}
        self._lock = threading.RLock()

    @property
    def endpoints(self) -> Endpoints:
        """The episode's model endpoints, from which all clients get address and key."""
        return self._endpoints

    @property
    def config(self) -> Any:
        """The composed config, with attribute access: `tuner.config.ajet.rollout.multi_turn.max_steps`."""
        return self._config

    def as_oai_baseurl_apikey(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: str | None = None
    ) -> Endpoint:
        """`base_url` (ends in /v1), `api_key` and `model` for any OpenAI-compatible client, sync or async, in this
        process or another. The key is good until the episode ends."""
        return register_key(self._endpoints(agent_name, _tag(agent_name, target_tag), debug_model), self._endpoints)

    def as_anthropic_baseurl_apikey(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: str | None = None
    ) -> Endpoint:
        """The address and key for Anthropic's SDK, which adds /v1 itself: `AsyncAnthropic(base_url=at.base_url,
        api_key=at.api_key)`."""
        return self.as_oai_baseurl_apikey(agent_name, target_tag, debug_model).for_anthropic

    def get_context_tracker(self) -> ContextTracker:
        """This episode's context tracker, by AgentJet's name."""
        return ContextTracker(self._endpoints)

    @property
    def time_left(self) -> float:
        """Seconds until `rollout.episode_timeout` ends the attempt; infinite without one. What a tool is given is less.
        The judge has time of its own afterwards."""
        return self._deadline.left

    def tool_used(self, use: ToolUse) -> None:
        """Record a use of a tool with the episode: for who runs tools and knows their times and results. Nothing
        happens once the episode is over. Raises TypeError and ValueError for what is no use."""
        self._endpoints.tool_used(use)

    @overload
    def tool(
        self, tool: str, arguments: Mapping[str, Any] | str, *, call_id: str = "", server: str = ""
    ) -> Running: ...

    @overload
    def tool(self, tool: Callable[P, R]) -> Callable[P, R]: ...

    def tool(self, tool: Any, arguments: Mapping[str, Any] | str = "{}", *, call_id: str = "", server: str = "") -> Any:
        """Have uses of a tool recorded. A function (plain or async) comes back as one whose calls are recorded:
        `search = tuner.tool(search)`. With a name and arguments it is a block:
        `with tuner.tool("search", {"q": "x"}, call_id=call.id) as running: running.result = ...`; the arguments may be
        the JSON that the model wrote. What the tool raises
        goes on; the record has it as the error of its class. Where a recorded run is replayed, a function answers as it
        did there, and a block whose `running.replayed` is true has its result already."""
        if callable(tool):
            return recorded(tool, self.tool_used, self.replay, self._deadline)
        return Running(tool, arguments, self.tool_used, self.replay, call_id=call_id, server=server)

    def sandbox(self, environment: Mapping[str, str] = NOTHING) -> Sandbox:
        """A place of this attempt's own to run code that the model wrote: `tuner.sandbox().python(code)` says what
        came of it. `environment.sandbox` says how it is held; it is recorded as a use of a tool, and closed with the
        attempt. Starting takes tens of milliseconds in which the caller waits. Raises SandboxFailure."""
        return opened_sandbox(self._config, self.resources, self.tool_used, environment)

    def as_raw_openai_sdk_client(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: Any = None
    ) -> AsyncOpenAI:
        """An `openai.AsyncOpenAI` whose `chat.completions.create` needs no `model` argument. `debug_model`: a model's
        name, or an AsyncOpenAI of your own, which then answers unrecorded."""

        def make(endpoint: Endpoint) -> AsyncOpenAI:
            return openai_sdk.client(endpoint)

        return self._client("openai", make, agent_name, target_tag, debug_model)

    def as_agentscope_model(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: Any = None
    ) -> ChatModelBase:
        """An AgentScope chat model, with the tuner's `config`. `debug_model`: a model's name, or an AgentScope model
        of your own, which then answers unrecorded. Raises MissingExtra without agentscope."""

        def make(endpoint: Endpoint) -> ChatModelBase:
            return agentscope.chat_model(endpoint, openai_sdk.client(endpoint), self._config)

        return self._client("agentscope", make, agent_name, target_tag, debug_model)

    def register_model(self, role: str, default_model: Any = None) -> ChatModelBase:
        """The AgentScope model of the agent and target `role`, as AgentJet's earlier versions make it; `default_model`:
        its debug model. `get_model` gives it again."""
        self._registered[role] = self.as_agentscope_model(role, debug_model=default_model)
        return self._registered[role]

    def get_model(self, role: str) -> ChatModelBase:
        """The model that was registered for `role`; the AgentScope model of that agent where none was."""
        return self._registered[role] if role in self._registered else self.as_agentscope_model(role)

    def _client(
        self,
        kind: str,
        make: Callable[[Endpoint], Any],
        agent_name: str,
        target_tag: str | None,
        debug_model: Any,
    ) -> Any:
        tag = _tag(agent_name, target_tag)
        if debug_model is not None and not isinstance(debug_model, str):
            if self._trainable is not None and tag not in self._trainable:
                return debug_model
            debug_model = None
        key = (kind, agent_name, tag, debug_model)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = make(self.as_oai_baseurl_apikey(agent_name, tag, debug_model))
            return self._clients[key]

    # What AgentScope asks of a model.

    async def __call__(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
        """Answer as an AgentScope chat model does: `(messages, tools, tool_choice, structured_model)` to a
        ChatResponse, or to a stream of them where `stream` was set."""
        return await self.as_agentscope_model()(messages, *args, **kwargs)

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.as_oai_baseurl_apikey().model

    @property
    def stream(self) -> bool:
        """Whether calls as an AgentScope model stream."""
        return self.as_agentscope_model().stream

    @stream.setter
    def stream(self, value: bool) -> None:
        self.as_agentscope_model().stream = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """So that AgentScope's own isinstance checks hold, once it is imported."""
        return agentscope.seen_as(type(self))

    def __repr__(self) -> str:
        return f"<ModelTuner with {len(self._clients)} clients>"


AjetTuner = ModelTuner
"""The same, by AgentJet's later name."""


def _tag(agent_name: str, target_tag: str | None) -> str:
    return agent_name if target_tag is None else target_tag
