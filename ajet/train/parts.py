"""Wire the parts of a run: reader, judge, workflow, gateway and rollout around a backbone.

Invariants (DESIGN decision 4): the parts are wired here, equally for every backbone. `assemble` closes all opened parts
in reverse order. Closing is idempotent.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.backbone.contract import Backbone
from ajet.config import Experiment
from ajet.schema.episode import Episode
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.environment.pinned import ToolPins
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.rollout import Rollout
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader, TaskSplit
    from ajet.workflow import Workflow


@dataclass(slots=True)
class RunParts:
    """The parts of a run that are open: the objects that play and train."""

    experiment: Experiment
    reader: OpenedReader
    judge: Judge
    workflow: type[Workflow]
    backbone: Backbone
    gateway: Gateway
    rollout: Rollout

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the split's tasks without tasks with too long prompts. Raise UserError if long prompts are refused."""
        from ajet.task_reader.overlong import drop_overlong

        tasks = self.reader.tasks(split)
        self.judge.require_for(tasks)
        return drop_overlong(tasks, self.experiment.ajet.data, self.backbone.tokenizer)


@contextmanager
def assemble(
    experiment: Experiment,
    *,
    run_id: str,
    on_episode: Callable[[Episode], None] | None = None,
    split: TaskSplit = "train",
    pins: ToolPins | None = None,
    reader: OpenedReader | None = None,
    opens: Callable[[Experiment], Backbone] | None = None,
) -> Iterator[RunParts]:
    """Open all parts, and close them after the block. Cheap parts open first, so their errors cost no model load.

    Args:
        on_episode: Called with each ended episode.
        split: The split whose tasks must not be missing.
        pins: Checks that each attempt is offered the tools of the run's first attempt.
        reader: The experiment's task reader, if already open.
        opens: Opens the backbone. None: the experiment's backbone.

    Raises:
        UserError: a part cannot be opened.
    """
    backbone = gateway = rollout = teacher = None
    try:
        with paused_collection():
            from ajet.backbone import open_backbone, open_teacher
            from ajet.rollout import Rollout
            from ajet.rollout.components import load_workflow, open_gateway, require_gateway
            from ajet.task_judge import open_judge
            from ajet.task_reader import open_reader

            require_gateway(experiment.ajet)
            reader = reader or open_reader(experiment)
            judge = open_judge(experiment, reader_judge=reader.judge)
            workflow = load_workflow(experiment)
            reader.tasks(split)
            backbone = (opens or open_backbone)(experiment)
            gateway = open_gateway(experiment, backbone.engine, backbone.tokenizer, adapters=backbone.adapters)
            if backbone.trains and split == "train":
                teacher = open_teacher(experiment, backbone.tokenizer)
            rollout = Rollout(
                experiment, gateway, workflow, judge, run_id=run_id, on_episode=on_episode, pins=pins, teacher=teacher
            )
        yield RunParts(experiment, reader, judge, workflow, backbone, gateway, rollout)
    finally:
        for part in (rollout, teacher, gateway, backbone):
            if part is not None:
                part.close()


def pins_of(run: RunDirectory) -> ToolPins:
    """Return the pins of the run: the tools of its first attempt, which later attempts must be offered, too.

    Raises UserError if the file in the run's folder is damaged.
    """
    from ajet.environment.pinned import PinnedFile, ToolPins

    return ToolPins(PinnedFile(run.path, goes_on=run.goes_on).first, run.redact.tree)


_is_paused = False
"""True if a block of the process has turned collections off."""


@contextmanager
def paused_collection() -> Iterator[None]:
    """Disable Python's automatic garbage collection within the block. Blocks may be nested.

    Python searches all objects whenever their number has grown by a quarter. Importing torch, transformers and a model
    creates half a million permanent objects: the searches took a sixth of the CPU time of a start.
    """
    global _is_paused
    was_enabled = gc.isenabled()
    gc.disable()
    _is_paused = _is_paused or was_enabled
    try:
        yield
    finally:
        if was_enabled:
            _is_paused = False
            gc.enable()


def _resume_in_child() -> None:
    """Enable collections in a forked process (vLLM's core, on a CPU), which never reaches the end of the block."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)
