"""The contract of a runner, which starts the processes of a training, and the options of a launch.

Invariant: a runner decides only the location of optimizer and engine. Each trained step and each validation ends in the
given `RunSink`, in the process started by the user.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.backbone.contract import Backbone
from ajet.config import Experiment
from ajet.schema.episode import Episode
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.environment.pinned import ToolPins
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.rollout import Rollout
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader, TaskSplit
    from ajet.train.interrupts import Interrupts
    from ajet.train.sink import RunSink
    from ajet.workflow import Workflow


class Runner:
    """Base class of runners, constructed without arguments. A backbone's descriptor names its runner."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """Return the settings with values of the backbone's own sections. Loads neither torch nor the backbone's
        package.

        Raises:
            UserError: the backbone would refuse the settings.
        """
        return experiment.ajet

    def apply_sections(self, experiment: Experiment, from_store: Address | None = None) -> Experiment:
        """Return the experiment with values of the backbone's own YAML sections merged into keys below `ajet`.

        Args:
            from_store: Address of the store given by `--from-store`. Its samplers read no backbone section. None: no
                sampler.
        """
        return experiment

    def describe_overridden(self, experiment: Experiment) -> str:
        """Return a line for each user key below `ajet` overridden by a backbone section."""
        return ""

    def describe_replaced_defaults(self, experiment: Experiment) -> str:
        """Return lines about defaults that differ from verl's or Trinity's own, for a YAML with sections of theirs."""
        return ""

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Raise UserError for settings that a training would refuse. Loads no model and starts no process.

        Args:
            from_store: the store of `--from-store`.
            looking: True if no training is launched: the settings may belong to a sampler.
            here: True if the training is to run on this machine.
        """

    def require(self, experiment: Experiment, options: LaunchOptions) -> None:
        """Raise UserError for conflicting settings and flags, before the training creates a folder."""

    def shown(self, experiment: Experiment) -> str:
        """Return the backbone's own configuration as YAML text, appended to the output of `ajet config show`."""
        return ""

    def name_accelerators(self) -> str | None:
        """Return the product names of the machine's accelerators, for the estimates of `ajet plan`.

        Returns "" for unknown accelerators, and None on a machine without accelerators.
        """
        return ""

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """Return the results of checking the backbone's packages, for `ajet doctor`.

        Args:
            needed: True if an experiment will use the backbone.
        """
        return []

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train until the last step.

        Raises:
            KeyboardInterrupt: after saving, when interrupted.
            UserError: the training cannot continue.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement `train`")

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write the model of a checkpoint into the folder `target` in Hugging Face layout.

        Called for checkpoints with the backbone's name in their state. Other checkpoints already hold the model's
        files.

        Args:
            dtype: number type of the files. None: the training's type.

        Raises:
            UserError: the checkpoint cannot be exported.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement `export`")


@dataclass(frozen=True)
class LaunchOptions:
    """Flags of `ajet --conf FILE.yaml`, except those of the experiment."""

    fresh: bool = False
    """Start a new run even if the experiment's folder holds a run."""
    resume: str | None = None
    """auto, never or a checkpoint's path. None: use `trainer_common.resume`."""
    flags: tuple[str, ...] = ()
    """Names of `Plugin.launch_flags` set by the user."""
    debug_tags: str = ""
    """Breakpoints to stop at, "TAG1|TAG2"."""
    services: tuple[str, ...] = ()
    """The NAME of each `--with-NAME` flag set by the user."""
    prefix: str = ""
    """Prefix of the names of the services' logs."""
    dry_run: bool = False
    skip_check_avail_gpu: bool = False
    rehearsal: bool = True
    """Try an update of the longest samples before step 1 (local and serve)."""
    from_store: Address | None = None
    """Store filled by samplers. None: the run plays the tasks itself."""
    traceback: bool = False
    """Show the traceback of a user error, too."""


# Wire the parts of a run: reader, judge, workflow, gateway and rollout around a backbone.
# Invariants (DESIGN decision 4): the parts are wired here, equally for every backbone. `assemble` closes all opened
# parts in reverse order. Closing is idempotent.
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
    before = gc.isenabled()
    gc.disable()
    _is_paused = _is_paused or before
    try:
        yield
    finally:
        if before:
            _is_paused = False
            gc.enable()


def _resume_in_child() -> None:
    """Enable collections in a forked process (vLLM's core, on a CPU), which never reaches the end of the block."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)
