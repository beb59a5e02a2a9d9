"""ModelTuner: hands out model clients bound to one episode.

Invariant: all requests of a client go to the episode's endpoint with the key of its (agent, target). The tuner holds no
gateway, engine or agent framework. Repeated requests for the same agent and target return the same client. All methods
are safe in any thread and event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ajet.environment.pinned import Pin, ToolPins
from ajet.schema.endpoint import Endpoint, Endpoints
from ajet.schema.sandbox import NO_VARIABLES, Sandbox
from ajet.schema.tool_use import ToolUse
from ajet.workflow.adapters import agentscope, openai_sdk
from ajet.workflow.ambient import register_endpoint
from ajet.workflow.resources import Deadline, Resources, open_sandbox
from ajet.workflow.tools import Replayed, RunningToolUse, record_calls

if TYPE_CHECKING:
    from agentscope.model import ChatModelBase
    from openai import AsyncOpenAI

DEFAULT_AGENT = "default"
P = ParamSpec("P")
R = TypeVar("R")


class ContextTracker:
    """Tells an agent loop whether the episode's context has grown too long."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    @property
    def context_overflow(self) -> bool:
        """True if a request was refused for a full context, or a reply was cut; an agent loop should then stop."""
        return self._endpoints.context_full()


class ModelTuner:
    """The tuned model, as seen by a workflow.

    The tuner is a model for agents of AgentScope 1 (`ReActAgent(model=tuner)`) and 2 (`Agent(model=tuner)`), and
    returns clients of other libraries.
    `agent_name` separates conversations in records; `target_tag` (default: the agent's name) selects training: if
    `trainable_targets` excludes the tag, the agent calls `debug_model`, recorded but not trained.
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
        """Create a tuner.

        Args:
            config: The composed config, with attribute access.
            endpoints: Model endpoints of the episode.
            trainable: The workflow's `trainable_targets`, needed for debug models given as objects. None: all targets.
            resources: Resources of the attempt. None: new ones.
            replay: Source of recorded tool results. None: tools are called.
            pin: Checks that all attempts of the run have the same tools. None: the tools of this tuner alone.
            deadline: Time limits of the attempt. None: no limit.
        """
        self._deadline = deadline or Deadline(None)
        self.resources = resources if resources is not None else Resources()
        """Resources closed at the end of the attempt."""
        self.replay = replay
        """Returns the recorded use for a tool and its arguments (`environment.replay`), for code that runs tools
        without `tool`. None: call the tool."""
        self.pin: Pin = pin if pin is not None else ToolPins()
        """Returns the offered tools (as a request's `tools`) in the order of the run's first attempt. Raises
        ToolsChangedError for other tools."""
        self._config = config
        self._endpoints = endpoints
        self._trainable = trainable
        self._clients: dict[tuple[str, str, str, str | None], Any] = {}
        self._model_of_role: dict[str, ChatModelBase] = {}
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
        """Return `base_url` (ends in /v1), `api_key` and `model` for any OpenAI-compatible client.

        The client may be sync or async, in this process or another. The key is valid until the episode ends.

        Args:
            agent_name: Separates conversations in records.
            target_tag: Selects training by `trainable_targets`. None: the agent's name.
            debug_model: Name of the model that the agent calls if its target is not trained.
        """
        return register_endpoint(
            self._endpoints(agent_name, _target_tag(agent_name, target_tag), debug_model), self._endpoints
        )

    def as_anthropic_baseurl_apikey(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: str | None = None
    ) -> Endpoint:
        """Return the address and key for Anthropic's SDK: `AsyncAnthropic(base_url=at.base_url, api_key=at.api_key)`.

        The address is without /v1, which the SDK appends. The arguments are those of `as_oai_baseurl_apikey`.
        """
        return self.as_oai_baseurl_apikey(agent_name, target_tag, debug_model).for_anthropic

    def get_context_tracker(self) -> ContextTracker:
        """Return the episode's context tracker, under AgentJet's name."""
        return ContextTracker(self._endpoints)

    @property
    def time_left(self) -> float:
        """Seconds until the attempt's time limit (`rollout.episode_timeout`); infinite without one.

        Tools must end a little earlier. The judge's time is separate.
        """
        return self._deadline.left

    def tool_used(self, use: ToolUse) -> None:
        """Record a tool use of the episode, for code that runs tools itself. Ignored after the end of the episode.

        Raises:
            TypeError, ValueError: a field of the use has an invalid type or value.
        """
        self._endpoints.tool_used(use)

    @overload
    def tool(
        self, tool: str, arguments: Mapping[str, Any] | str, *, call_id: str = "", server: str = ""
    ) -> RunningToolUse: ...

    @overload
    def tool(self, tool: Callable[P, R]) -> Callable[P, R]: ...

    def tool(self, tool: Any, arguments: Mapping[str, Any] | str = "{}", *, call_id: str = "", server: str = "") -> Any:
        """Record tool uses of a function or a block.

        A function (plain or async) is returned with recorded calls: `search = tuner.tool(search)`. A name with
        arguments (a mapping, or the model's JSON) gives a block: `with tuner.tool("search", {"q": "x"},
        call_id=call.id) as running: running.result = ...`. Exceptions pass through and are recorded by class. In a
        replay a function returns the recorded result; a block with `running.replayed` already has the result.
        """
        if callable(tool):
            return record_calls(tool, self.tool_used, self.replay, self._deadline)
        return RunningToolUse(tool, arguments, self.tool_used, self.replay, call_id=call_id, server=server)

    def sandbox(self, environment: Mapping[str, str] = NO_VARIABLES) -> Sandbox:
        """Open a sandbox of this attempt for model-written code: `tuner.sandbox().python(code)`.

        The YAML key `ajet.environment.sandbox` selects the mechanism. The sandbox is recorded as a tool use and closed
        with the attempt. Opening blocks for tens of milliseconds. Raises SandboxFailure.

        Args:
            environment: Environment variables of the code.
        """
        return open_sandbox(self._config, self.resources, self.tool_used, environment)

    def as_raw_openai_sdk_client(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: Any = None
    ) -> AsyncOpenAI:
        """Return an `openai.AsyncOpenAI` with a default model.

        Args:
            agent_name: Separates conversations in records.
            target_tag: Selects training by `trainable_targets`. None: the agent's name.
            debug_model: A model's name, or an AsyncOpenAI object used without recording, if the target is not trained.
        """

        def make(endpoint: Endpoint) -> AsyncOpenAI:
            return openai_sdk.make_client(endpoint)

        return self._get_client("openai", make, agent_name, target_tag, debug_model)

    def as_agentscope_model(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None, debug_model: Any = None
    ) -> ChatModelBase:
        """Return an AgentScope chat model that calls the tuned model and has the tuner's `config`.

        Args:
            agent_name: Separates conversations in records.
            target_tag: Selects training by `trainable_targets`. None: the agent's name.
            debug_model: A model's name, or an AgentScope model used without recording, if the target is not trained.

        Raises:
            MissingExtraError: agentscope is not installed.
        """

        def make(endpoint: Endpoint) -> ChatModelBase:
            return agentscope.make_chat_model(endpoint, openai_sdk.make_client(endpoint), self._config)

        return self._get_client("agentscope", make, agent_name, target_tag, debug_model)

    def register_model(self, role: str, default_model: Any = None) -> ChatModelBase:
        """Create and return the AgentScope model of agent and target `role`, as in early AgentJet.

        `get_model` returns the same model.

        Args:
            default_model: Its debug model.
        """
        self._model_of_role[role] = self.as_agentscope_model(role, debug_model=default_model)
        return self._model_of_role[role]

    def get_model(self, role: str) -> ChatModelBase:
        """Return the registered model of `role`, else the AgentScope model of the agent."""
        return self._model_of_role[role] if role in self._model_of_role else self.as_agentscope_model(role)

    def _get_client(
        self,
        kind: str,
        make: Callable[[Endpoint], Any],
        agent_name: str,
        target_tag: str | None,
        debug_model: Any,
    ) -> Any:
        """Return the client of an agent and target, created on the first request.

        Args:
            kind: Library of the client; clients are cached by it.
            make: Creates a client for an endpoint.
            debug_model: A model's name, or a client, which is returned if the target is not trained.
        """
        tag = _target_tag(agent_name, target_tag)
        if debug_model is not None and not isinstance(debug_model, str):
            if self._trainable is not None and tag not in self._trainable:
                return debug_model
            debug_model = None
        key = (kind, agent_name, tag, debug_model)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = make(self.as_oai_baseurl_apikey(agent_name, tag, debug_model))
            return self._clients[key]

    # AgentScope requires the following attributes of a model.

    async def __call__(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
        """Answer as an AgentScope chat model does, with a ChatResponse, or with a stream of them if `stream` is set.

        Args:
            messages: Messages in AgentScope's format.
            args, kwargs: `tools`, `tool_choice`, and in AgentScope 1 `structured_model`.
        """
        return await self.as_agentscope_model()(messages, *args, **kwargs)

    @property
    def model_name(self) -> str:
        """Name of the served model."""
        return self.as_oai_baseurl_apikey().model

    @property
    def stream(self) -> bool:
        """True if calls of the tuner as an AgentScope model return streams."""
        return self.as_agentscope_model().stream

    @stream.setter
    def stream(self, value: bool) -> None:
        self.as_agentscope_model().stream = value

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that AgentScope 2 reads of its models, from the tuner's AgentScope model."""
        if agentscope.is_model_attribute(name):
            return getattr(self.as_agentscope_model(), name)
        raise AttributeError(f"'ModelTuner' object has no attribute '{name}'", name=name, obj=self)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Class for AgentScope's isinstance checks, once agentscope is imported."""
        return agentscope.chat_model_type(type(self))

    def __repr__(self) -> str:
        return f"<ModelTuner with {len(self._clients)} clients>"


AjetTuner = ModelTuner
"""The same, by AgentJet's later name."""


def _target_tag(agent_name: str, target_tag: str | None) -> str:
    """Return the target tag, which defaults to the agent's name."""
    return agent_name if target_tag is None else target_tag
