"""The contract of a runner, which lays out the processes of a training, and the options of a launch.

Invariant: a runner decides where optimizer and engine live, and nothing else. Each step that it trains and each
validation that it plays ends in the `RunSink` that it is given, in the process that the user started.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.sink import RunSink


class Runner:
    """Base class of runners, made without arguments. The descriptor of a backbone names its runner."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """Return the settings with the values of the backbone's own sections; loads neither torch nor its package.

        Raises:
            UserError: the backbone would refuse the settings.
        """
        return experiment.ajet

    def apply_sections(self, experiment: Experiment, from_store: Address | None = None) -> Experiment:
        """Return the experiment with the values that the backbone's own sections of the YAML give keys below `ajet`.

        Args:
            from_store: the store of `--from-store`, whose samplers read no such section.
        """
        return experiment

    def describe_overridden(self, experiment: Experiment) -> str:
        """Return a line for each of the user's keys below `ajet` that such a section overrides; "" for none."""
        return ""

    def describe_replaced_defaults(self, experiment: Experiment) -> str:
        """Return lines on defaults that ajet has instead of the backbone's own, for a YAML in the backbone's own keys;
        "" for none."""
        return ""

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Raise UserError for settings that a training would refuse; loads no model and starts nothing.

        Args:
            from_store: the store of `--from-store`.
            looking: True if nothing is launched: the settings may be a sampler's.
            here: True if the training is to run on this machine.
        """

    def require(self, experiment: Experiment, options: LaunchOptions) -> None:
        """Raise UserError for settings and flags that do not go together, before a training has a folder."""

    def shown(self, experiment: Experiment) -> str:
        """Return the backbone's own configuration, as further YAML documents of `ajet config show`."""
        return ""

    def name_accelerators(self) -> str | None:
        """Return the product names of this machine's accelerators, of which `ajet plan` estimates memory and time of a
        step; "" if they are not known, None if the machine has none."""
        return ""

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """Return findings of `ajet doctor` about the backbone's packages.

        Args:
            needed: True if an experiment will use the backbone.
        """
        return []

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train until the last step. Raises KeyboardInterrupt after saving, when interrupted; UserError."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it trains")

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write the model of a checkpoint into the folder `target` in Hugging Face layout.

        Called for checkpoints whose state has an entry of the backbone's name; others hold the model's files already.

        Args:
            dtype: number type of the files; None: the type that was trained in.

        Raises:
            UserError: the checkpoint cannot be exported.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how its checkpoints become a model")


@dataclass(frozen=True)
class LaunchOptions:
    """Flags of `ajet --conf FILE.yaml`, except those of the experiment."""

    fresh: bool = False
    """Start a new run in the experiment's folder, whatever it holds."""
    resume: str | None = None
    """auto, never or a checkpoint's path; None: as `trainer_common.resume` says."""
    flags: tuple[str, ...] = ()
    """Names of `Plugin.launch_flags` that are set."""
    debug_tags: str = ""
    """Breakpoints to stop at, "TAG1|TAG2"."""
    services: tuple[str, ...] = ()
    """NAME of each `--with-NAME` flag."""
    prefix: str = ""
    """Prefix of the names of the services' logs."""
    dry_run: bool = False
    skip_check_avail_gpu: bool = False
    rehearsal: bool = True
    """Try an update of the longest samples before step 1 (local and serve)."""
    from_store: Address | None = None
    """Store that samplers fill; None: the run plays by itself."""
    traceback: bool = False
    """Show the traceback of a user error, too."""
