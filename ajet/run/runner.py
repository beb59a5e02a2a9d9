"""Runner: who lays out the processes of a training. This one: the run's own process, around the backbone that it opens.

Invariant: a runner decides where optimizer and engine live, and nothing else. What a step promises is kept where its
`Sink` is: each step that a runner trains, and each validation that it plays, ends in there, in the process that the
person started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ajet.config.references import load_code
from ajet.run.step import OnStep, Trained, conclude
from ajet.run.validation import conclude_validation

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.config.backbones import Descriptor
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.record.held_out import Measurement
    from ajet.run.gaming import GamingWatch
    from ajet.run.interrupt import Interrupts
    from ajet.run.options import LaunchOptions
    from ajet.run.step_proof import StepProof
    from ajet.schema.episode import Episode, Group
    from ajet.schema.finding import Finding


class Shown(Protocol):
    """What a person sees of a training (`TrainingProgress`)."""

    def on_episode(self, episode: Episode) -> None: ...

    def on_step(self, step: int, total: int, metrics: dict[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class Sink:
    """Where steps and validations end: accounting, proof, record, screen. `total` is the last step."""

    settings: AjetConfig
    run: RunDirectory
    shown: Shown

    @property
    def on_step(self) -> OnStep:
        """For who concludes by itself."""
        return self.shown.on_step

    def on_episode(self, episode: Episode) -> None:
        """An episode ended. Thread-safe."""
        self.shown.on_episode(episode)

    def conclude(self, trained: Trained, *, proof: StepProof, gaming: GamingWatch, total: int) -> dict[str, float]:
        """See `ajet.run.step.conclude`."""
        return conclude(trained, self.settings, self.run, proof=proof, gaming=gaming, on_step=self.on_step, total=total)

    def conclude_validation(
        self, groups: Sequence[Group], *, step: int, seconds: float, total: int
    ) -> tuple[dict[str, float], Measurement]:
        """See `ajet.run.validation.conclude_validation`."""
        return conclude_validation(groups, self.run, step=step, seconds=seconds, on_step=self.on_step, total=total)


class Runner:
    """Made without arguments. A backbone with processes of its own derives from it, and names the class in its
    descriptor."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """The settings as they count once the backbone's own sections are laid over them. Raises UserError for whatever
        it would refuse; loads neither torch nor the backbone's package."""
        return experiment.ajet

    def shown(self, experiment: Experiment) -> str:
        """What the backbone is given, as further YAML documents of `ajet config show`."""
        return ""

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """What `ajet doctor` says of its packages, if anything. `needed`: an experiment will use it."""
        return []

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: Sink
    ) -> None:
        """Train until the last step. Raises KeyboardInterrupt after saving, when interrupted; UserError."""
        from ajet.run.parts import assemble
        from ajet.run.rehearse import rehearse
        from ajet.run.train import train

        with assemble(experiment, run_id=run.run_id, on_episode=sink.on_episode) as parts:
            if options.rehearsal:
                rehearse(parts)
            train(parts, run, interrupts, sink.on_step)

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write its model into the folder `target` in Hugging Face layout, with numbers of type `dtype`, or of the one
        that was trained in. Raises UserError. Asked of checkpoints whose state has an entry of the backbone's name: of
        all others the files are the model's already."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its checkpoints become a model")


def runner_of(backbone: Descriptor) -> Runner:
    """The backbone's."""
    found: Runner = load_code(backbone.runner)()
    return found
