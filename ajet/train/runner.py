"""The contract of a runner, which starts the processes of a training, and the options of a launch.

Invariant: a runner decides only the location of optimizer and engine. Each trained step and each validation ends in the
given `RunSink`, in the process started by the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config import Experiment

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.sink import RunSink


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
