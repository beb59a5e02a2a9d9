"""Opens the components of a process that plays episodes: workflow class, renderer, gateway, sampling, repeats.

Invariants: a gateway is set up in the same way on every backbone, in the run's own process and in other processes
(DESIGN decision 4). Training and debug sample as the policy is defined (`rollout.temperature`, `top_p`, `top_k`).
Validation samples greedily unless `val_kwargs.do_sample`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.config import Experiment, resolve_reference
from ajet.config.plugins import find_part, find_parts
from ajet.engine.contract import ChatEngine, Sampling, TokenEngine
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.adapters import Adapters
    from ajet.gateway import Gateway
    from ajet.gateway.limits import ServerLimits
    from ajet.schema.episode import Split
    from ajet.tokens import Renderer
    from ajet.tokens.image_tokens import ImageTokens
    from ajet.workflow import Workflow


REQUEST_HEAD_S = 120.0
"""Maximum seconds between an agent's connection and request. With 20 s, two of 2,000 agents lost the connection on busy
cores.
"""


def load_workflow(experiment: Experiment) -> type[Workflow]:
    """Return the class named by `rollout.user_workflow`, or a class made from the function of that name.

    Raises:
        ConfigError: No workflow is named, or the named object is not a workflow.
    """
    from ajet.workflow import Workflow
    from ajet.workflow.function import as_workflow

    reference = experiment.ajet.rollout.user_workflow
    if not reference:
        raise ConfigError(
            "No workflow is set, so ajet does not know which agent to run.",
            where="ajet.rollout.user_workflow",
            expected="a reference such as workflow.py->my_agent or workflow.py->MyWorkflow, or "
            + ", ".join(find_parts("workflow")),
            do="write `async def my_agent(task, tuner)`, or a class with `async def execute(self, "
            "workflow_task, tuner)`, and set rollout.user_workflow to its reference",
        )
    shipped = find_part("workflow", reference)
    if shipped is not None:
        reference = shipped.code
    workflow_class: type[Workflow] = (
        reference
        if isinstance(reference, type)
        else resolve_reference(
            reference, base=experiment.base, expect=Workflow, key="ajet.rollout.user_workflow", convert=as_workflow
        )
    )
    workflow_class.check(experiment.config)
    return workflow_class


def make_renderer(settings: AjetConfig, tokenizer: Any, images: ImageTokens | None = None) -> Renderer:
    """Return the run's renderer. `images` turns images into tokens of a model with image input."""
    from ajet.tokens import Renderer

    return Renderer(
        tokenizer,
        keep_thinking=settings.context_tracker.keep_thinking,
        template_kwargs=settings.model.chat_template_kwargs,
        images=images,
        escaped=settings.context_tracker.escape_controls,
    )


def choose_sampling(settings: AjetConfig, split: Split) -> Sampling:
    """Return the default sampling of a split's episodes."""
    rollout = settings.rollout
    longest = rollout.max_response_length_in_one_turn
    if split == "validation":
        val_settings = rollout.val_kwargs
        return Sampling(
            longest, val_settings.temperature if val_settings.do_sample else 0.0, val_settings.top_p, val_settings.top_k
        )
    return Sampling(longest, rollout.temperature, rollout.top_p, rollout.top_k)


def choose_repeats(settings: AjetConfig, split: Split) -> int:
    """Return the attempts per task of a split, or the recorded replies per task for `ajet sft`."""
    if settings.sft.objective is not None and split == "train":
        return settings.sft.replies_per_prompt
    return settings.validation_repeats if split == "validation" else settings.rollout.num_repeat


def require_gateway(settings: AjetConfig) -> None:
    """Raise UserError if the gateway could not listen. Commands call this before they load a model."""
    from ajet.gateway.listener import require_free
    from ajet.gateway.server import NAMED

    require_free(settings.gateway.host, settings.gateway.port, **NAMED)


def open_gateway(
    experiment: Experiment,
    engine: TokenEngine | ChatEngine,
    tokenizer: Any,
    images: ImageTokens | None = None,
    *,
    adapters: Adapters | None = None,
    opens_later: bool = False,
) -> Gateway:
    """Return a started gateway in front of an engine.

    Args:
        tokenizer: The model's tokenizer. None for an engine that takes messages.
        images: Turns images into tokens of a model with image input.
        adapters: Maps agents to the engine's adapters.
        opens_later: True if requests for an episode without a session get a reply to retry.
    """
    from ajet.engine.endpoint import EndpointEngine
    from ajet.gateway import Gateway
    from ajet.rollout.rounds import RoundEngine

    settings = experiment.ajet
    if settings.rollout.deterministic and isinstance(engine, TokenEngine):
        engine = RoundEngine(engine)
    return Gateway(
        engine,
        make_renderer(settings, tokenizer, images) if tokenizer is not None else None,
        host=settings.gateway.host,
        port=settings.gateway.port,
        advertise=settings.gateway.advertise,
        max_calls=settings.gateway.max_calls,
        max_model_len=settings.rollout.max_model_len,
        max_response_tokens=settings.rollout.max_response_length_in_one_turn,
        force_disable_toolcalls=settings.rollout.force_disable_toolcalls,
        chat_engine_for=EndpointEngine.for_model,
        limits=make_gateway_limits(settings),
        adapters=adapters,
        leave_out_tools=settings.gateway.leave_out_tools,
        leave_out_fields=settings.gateway.leave_out_fields,
        opens_later=opens_later,
    ).start()


def make_gateway_limits(settings: AjetConfig) -> ServerLimits:
    """Return the connection limits of a run's gateway.

    All of a run's agents may connect from this machine before the gateway has read a key from any of them. Where
    thousands of agents share a loop, an agent may wait long between the connection and the request.
    """
    from ajet.gateway.limits import ServerLimits

    return ServerLimits(
        strangers=ServerLimits().strangers + settings.rollout.max_env_worker, head_seconds=REQUEST_HEAD_S
    )
