"""Wiring of parts to a gateway, once for every process that plays episodes: the run's own and others'.

Invariant (DESIGN decision 4): this wiring is the same on every backbone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ajet.config import Experiment, resolve_reference
from ajet.config.plugins import find_part, find_parts
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.adapters import Adapters
    from ajet.gateway import Gateway
    from ajet.gateway.limits import Limits
    from ajet.tokens import Renderer
    from ajet.tokens.image_tokens import ImageTokens
    from ajet.workflow import Workflow


HEAD_S = 120.0
"""Seconds in which an agent's request has come after its connection: with 20, two of 2,000 lost it on busy cores."""


def workflow_of(experiment: Experiment) -> type[Workflow]:
    """The class that `rollout.user_workflow` names, or that is made of the function it names. Raises ConfigError
    without one."""
    from ajet.workflow import Workflow
    from ajet.workflow.function import as_workflow

    reference = experiment.ajet.rollout.user_workflow
    if not reference:
        raise ConfigError(
            "No workflow is named: ajet does not know which agent to run.",
            where="ajet.rollout.user_workflow",
            expected="a reference such as workflow.py->my_agent or workflow.py->MyWorkflow, or "
            + ", ".join(find_parts("workflow")),
            do="write `async def my_agent(task, tuner)`, or a class with "
            "`async def execute(self, workflow_task, tuner)`, and name it there",
        )
    shipped = find_part("workflow", reference)
    if shipped is not None:
        reference = shipped.code
    found: type[Workflow] = (
        reference
        if isinstance(reference, type)
        else resolve_reference(
            reference, base=experiment.base, expect=Workflow, what="ajet.rollout.user_workflow", made=as_workflow
        )
    )
    found.check(experiment.config)
    return found


def renderer_of(settings: AjetConfig, tokenizer: Any, images: ImageTokens | None = None) -> Renderer:
    """The run's renderer. `images`: how a model that sees images is shown them."""
    from ajet.tokens import Renderer

    return Renderer(
        tokenizer,
        keep_thinking=settings.context_tracker.keep_thinking,
        template_kwargs=settings.model.chat_template_kwargs,
        images=images,
        escaped=settings.context_tracker.escape_controls,
    )


class Sampler(Protocol):
    """The part of a backbone that a gateway stands in front of."""

    @property
    def engine(self) -> TokenEngine | ChatEngine: ...

    @property
    def tokenizer(self) -> Any: ...


def require_gateway(settings: AjetConfig) -> None:
    """Raises UserError where it could not listen: asked before a model is loaded."""
    from ajet.gateway.listener import require_free
    from ajet.gateway.server import NAMED

    require_free(settings.gateway.host, settings.gateway.port, **NAMED)


def open_gateway(
    experiment: Experiment,
    backbone: Sampler,
    images: ImageTokens | None = None,
    *,
    adapters: Adapters | None = None,
    opens_later: bool = False,
) -> Gateway:
    """The gateway before the backbone's engine, started. `images`: how a model that sees images is shown them.
    `adapters`: which agents have which of the engine's. `opens_later`: who asks for what is not there yet is to ask
    again."""
    from ajet.engine.endpoint import EndpointEngine
    from ajet.gateway import Gateway
    from ajet.rollout.rounds import RoundEngine

    settings = experiment.ajet
    engine: TokenEngine | ChatEngine = backbone.engine
    if settings.rollout.deterministic and isinstance(engine, TokenEngine):
        engine = RoundEngine(engine)
    return Gateway(
        engine,
        renderer_of(settings, backbone.tokenizer, images) if backbone.tokenizer is not None else None,
        host=settings.gateway.host,
        port=settings.gateway.port,
        advertise=settings.gateway.advertise,
        max_calls=settings.gateway.max_calls,
        max_model_len=settings.rollout.max_model_len,
        max_response_tokens=settings.rollout.max_response_length_in_one_turn,
        force_disable_toolcalls=settings.rollout.force_disable_toolcalls,
        chat_engine_for=EndpointEngine.for_model,
        limits=limits_of(settings),
        adapters=adapters,
        opens_later=opens_later,
    ).start()


def limits_of(settings: AjetConfig) -> Limits:
    """What a run's gateway bears: its own agents may all come from this machine, with a connection each, before it has
    read a key of any; and where thousands share a loop, one may wait long between its connection and its request."""
    from ajet.gateway.limits import Limits

    return Limits(strangers=Limits().strangers + settings.rollout.max_env_worker, head_seconds=HEAD_S)
