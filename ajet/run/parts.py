"""The parts of a run, wired once: reader, judge, workflow, gateway and rollout around a backbone.

Invariant (DESIGN decision 4): this wiring is the same on every backbone; what differs hides behind the backbone's
contract. Whoever assembles closes; closing is idempotent and in reverse order of opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ajet.backbone.contract import Backbone
from ajet.config import Experiment, resolve_reference
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.schema.episode import Episode
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import AjetConfig
    from ajet.gateway import Gateway
    from ajet.rollout import Rollout
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader, TaskSplit
    from ajet.tokens import Renderer
    from ajet.tokens.image_tokens import ImageTokens
    from ajet.workflow import Workflow


@dataclass(slots=True)
class Parts:
    """What a verb works with."""

    experiment: Experiment
    reader: OpenedReader
    judge: Judge
    workflow: type[Workflow]
    backbone: Backbone
    gateway: Gateway
    rollout: Rollout

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """The split's tasks, without those whose prompt is too long (or an error that names the first)."""
        from ajet.task_reader.overlong import within_prompt_length

        return within_prompt_length(self.reader.tasks(split), self.experiment.ajet.data, self.backbone.tokenizer)


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
            expected="a reference such as workflow.py->my_agent or workflow.py->MyWorkflow",
            do="write `async def my_agent(task, tuner)`, or a class with "
            "`async def execute(self, workflow_task, tuner)`, and name it there",
        )
    found: type[Workflow] = (
        reference
        if isinstance(reference, type)
        else resolve_reference(
            reference, base=experiment.base, expect=Workflow, what="ajet.rollout.user_workflow", made=as_workflow
        )
    )
    found.check(experiment.config)
    return found


def algorithm_of(experiment: Experiment) -> Algorithm:
    """The algorithm that gives credit in a run of it: the one that the backbone's own keys name, if they do. Raises
    UserError, for whatever else the backbone would refuse, too."""
    from ajet.algorithm import opened
    from ajet.run.runner import runner_of

    return opened(runner_of(experiment.backbone).settings(experiment), base=experiment.base)


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


def open_gateway(experiment: Experiment, backbone: Sampler, images: ImageTokens | None = None) -> Gateway:
    """The gateway before the backbone's engine, started. `images`: how a model that sees images is shown them."""
    from ajet.engine.endpoint import EndpointEngine
    from ajet.gateway import Gateway
    from ajet.rollout import RoundEngine

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
    ).start()


@contextmanager
def assemble(
    experiment: Experiment,
    *,
    run_id: str,
    on_episode: Callable[[Episode], None] | None = None,
    split: TaskSplit = "train",
) -> Iterator[Parts]:
    """Open all parts, the cheap ones first (a mistake in them costs a second, not a model load), and close them
    whatever happens. `split`: the one whose tasks must be there. Raises UserError."""
    from ajet.backbone import open_backbone
    from ajet.rollout import Rollout
    from ajet.task_judge import open_judge
    from ajet.task_reader import open_reader

    backbone = gateway = rollout = None
    try:
        reader = open_reader(experiment)
        judge = open_judge(experiment, reader_judge=reader.judge)
        workflow = workflow_of(experiment)
        reader.tasks(split)
        backbone = open_backbone(experiment)
        gateway = open_gateway(experiment, backbone)
        rollout = Rollout(experiment, gateway, workflow, judge, run_id=run_id, on_episode=on_episode)
        yield Parts(experiment, reader, judge, workflow, backbone, gateway, rollout)
    finally:
        for part in (rollout, gateway, backbone):
            if part is not None:
                part.close()
