"""Runner: who lays out the processes of a training, and what it is handed for it.

Invariant: a runner decides where optimizer and engine live, and nothing else. What a step promises is kept where its
`Sink` is: each step that a runner trains, and each validation that it plays, ends in there, in the process that the
person started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ajet.schema.episode import NO_OUTCOME, Episode, Group, Outcome

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.record.held_out import Measurement
    from ajet.schema.finding import Finding
    from ajet.store import Address
    from ajet.task_reader.contamination import Overlap
    from ajet.tokens import Renderer

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called with (step, total steps, metrics)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A step as its optimizer leaves it."""

    step: int
    version: int
    """The policy version that it was trained from."""
    groups: Sequence[Group]
    """Those that its numbers are over."""
    outcomes: Mapping[str, Outcome]
    """Of all its episodes, by uuid."""
    tokens: Mapping[str, int]
    """Tokens that were trained, by uuid."""
    numbers: Mapping[str, float]
    """What credit, update and clock say."""
    tasks: Sequence[int]
    """Orders of the groups that the batch was made of and that no batch was before."""
    again: Sequence[int] = ()
    """Orders of the others, which an earlier step trained on, too."""
    aside: Sequence[Group] = ()
    """Recorded only."""
    discarded: Sequence[int] = ()
    """Orders of the groups that no batch takes."""
    waiting: Sequence[int] = ()
    """Orders of tasks that were begun and are in no step yet."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By order, those that samplers failed at until they were given out no more, and why each attempt failed, as far as
    no step of this process said so."""
    dead: int = 0
    """How many there are in all."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Those of them that could not be trained on, by the kind of the refusal."""

    def newest(self, episode: Episode) -> int:
        """The latest policy version that can have sampled it: what no update used may have ended after this one."""
        trained = self.outcomes.get(episode.uuid, NO_OUTCOME).step is not None
        return self.version if trained else self.version + 1


class Sink(Protocol):
    """Takes ended steps and validations, whoever trains: accounting, proof, record, screen."""

    @property
    def on_step(self) -> OnStep:
        """For who concludes by itself."""
        ...

    def review(self, algorithm: Algorithm, *, train: int, validates: bool, known: Overlap | None) -> None:
        """The tasks are known, `train` of them: what is to be said of the plan is said."""
        ...

    def begin(self, words: Renderer | None, *, total: int) -> None:
        """Before the first step. `words`: the run's renderer, by which a sample of each step is proven; `total`: the
        last step."""
        ...

    def on_episode(self, episode: Episode) -> None:
        """An episode ended. Thread-safe."""
        ...

    def conclude(self, trained: Trained) -> dict[str, float]:
        """The step's metrics, once it is recorded. Raises AssertionError where a sampled token is neither trained nor
        counted, UserError where the record cannot be written."""
        ...

    def conclude_validation(
        self, groups: Sequence[Group], *, step: int, seconds: float
    ) -> tuple[dict[str, float], Measurement]:
        """Record the held-out tasks' episodes after `step`; answers what they came to."""
        ...


class Interrupts(Protocol):
    """The person's Ctrl-C."""

    def held(self, *, whole: bool = True) -> AbstractContextManager[None]:
        """Within the block a first one waits. Raises KeyboardInterrupt when the block ends, or before it. `whole`
        False: it is one look of many, after which a SIGTERM that waits in `patient` waits on."""
        ...

    def patient(self, seconds: float, worth: Callable[[], bool] | None = None) -> AbstractContextManager[None]:
        """Within the block a first SIGTERM waits for the end of the next `held`, or of the block, at most so long."""
        ...

    def left(self, seconds: float) -> float | None:
        """The seconds left of so many after the first SIGTERM; None: there was none."""
        ...

    def heard(self) -> None:
        """For who caught one and goes on to further blocks."""
        ...


class RunnerOptions(Protocol):
    """Flags of a launch that say how it is laid out."""

    @property
    def rehearsal(self) -> bool: ...

    @property
    def from_store(self) -> Address | None: ...

    @property
    def flags(self) -> Collection[str]: ...

    @property
    def skip_check_avail_gpu(self) -> bool: ...


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

    def require(self, experiment: Experiment, options: RunnerOptions) -> None:
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
        self, experiment: Experiment, run: RunDirectory, options: RunnerOptions, interrupts: Interrupts, sink: Sink
    ) -> None:
        """Train until the last step. Raises KeyboardInterrupt after saving, when interrupted; UserError."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it trains")

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write its model into the folder `target` in Hugging Face layout, with numbers of type `dtype`, or of the one
        that was trained in. Raises UserError. Asked of checkpoints whose state has an entry of the backbone's name: of
        all others the files are the model's already."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its checkpoints become a model")
