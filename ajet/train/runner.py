"""Runner: who lays out the processes of a training, and what it is handed for it.

Invariant: a runner decides where optimizer and engine live, and nothing else. What a step promises is kept where its
`RunSink` is: each step that a runner trains, and each validation that it plays, ends in there, in the process that the
person started.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.options import LaunchOptions
    from ajet.train.sink import RunSink


class Runner:
    """Made without arguments. A backbone with processes of its own derives from it, and names the class in its
    descriptor."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """The settings as they count once the backbone's own sections are laid over them. Raises UserError for whatever
        it would refuse; loads neither torch nor the backbone's package."""
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
        """Before a training has a folder. Raises UserError for settings and flags that do not go together."""

    def shown(self, experiment: Experiment) -> str:
        """The backbone's own configuration, as further YAML documents of `ajet config show`."""
        return ""

    def name_accelerators(self) -> str | None:
        """Return the product names of this machine's accelerators, of which `ajet plan` estimates memory and time of a
        step; "" if they are not known, None if the machine has none."""
        return ""

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """What `ajet doctor` says of its packages, if anything. `needed`: an experiment will use it."""
        return []

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train until the last step. Raises KeyboardInterrupt after saving, when interrupted; UserError."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it trains")

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write its model into the folder `target` in Hugging Face layout, with numbers of type `dtype`, or of the one
        that was trained in. Raises UserError. Asked of checkpoints whose state has an entry of the backbone's name: of
        all others the files are the model's already."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its checkpoints become a model")
