"""The parts of a run, wired once: reader, judge, workflow, gateway and rollout around a backbone.

Invariant (DESIGN decision 4): this wiring is the same on every backbone; what differs hides behind the backbone's
contract. Whoever assembles closes; closing is idempotent and in reverse order of opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.backbone.contract import Backbone
from ajet.config import Experiment
from ajet.schema.episode import Episode
from ajet.schema.task import Task
from ajet.train.uncollected import uncollected

if TYPE_CHECKING:
    from ajet.environment.pinned import Pins
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.rollout import Rollout
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader, TaskSplit
    from ajet.workflow import Workflow


@dataclass(slots=True)
class Parts:
    """The parts that a verb works with: experiment, model, reader, workflow, judge, rollout."""

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

        tasks = self.reader.tasks(split)
        self.judge.require_for(tasks)
        return within_prompt_length(tasks, self.experiment.ajet.data, self.backbone.tokenizer)


@contextmanager
def assemble(
    experiment: Experiment,
    *,
    run_id: str,
    on_episode: Callable[[Episode], None] | None = None,
    split: TaskSplit = "train",
    pins: Pins | None = None,
    reader: OpenedReader | None = None,
    opens: Callable[[Experiment], Backbone] | None = None,
) -> Iterator[Parts]:
    """Open all parts, the cheap ones first (a mistake in them costs a second, not a model load), and close them
    whatever happens. `split`: the one whose tasks must be there. `pins`: the run's tools. `reader`: the experiment's,
    if it is open already. `opens` the backbone; None: the one that the experiment names. Raises UserError."""
    backbone = gateway = rollout = teacher = None
    try:
        with uncollected():
            from ajet.backbone import open_backbone, open_teacher
            from ajet.rollout import Rollout
            from ajet.rollout.components import open_gateway, require_gateway, workflow_of
            from ajet.task_judge import open_judge
            from ajet.task_reader import open_reader

            require_gateway(experiment.ajet)
            reader = reader or open_reader(experiment)
            judge = open_judge(experiment, reader_judge=reader.judge)
            workflow = workflow_of(experiment)
            reader.tasks(split)
            backbone = (opens or open_backbone)(experiment)
            gateway = open_gateway(experiment, backbone.engine, backbone.tokenizer, adapters=backbone.adapters)
            if backbone.trains and split == "train":
                teacher = open_teacher(experiment, backbone.tokenizer)
            rollout = Rollout(
                experiment, gateway, workflow, judge, run_id=run_id, on_episode=on_episode, pins=pins, teacher=teacher
            )
        yield Parts(experiment, reader, judge, workflow, backbone, gateway, rollout)
    finally:
        for part in (rollout, teacher, gateway, backbone):
            if part is not None:
                part.close()


def pins_of(run: RunDirectory) -> Pins:
    """The run's tools, kept in its folder. Raises UserError where they are damaged."""
    from ajet.environment.pinned import PinnedFile, Pins

    return Pins(PinnedFile(run.path, goes_on=run.goes_on).first, run.redact.tree)
