"""InProcessRunner: a training in the run's own process, around the backbone that it opens; the runner of any other, and
the algorithm that it trains with.

Invariant: what a runner is, and what it is handed, is `ajet.backbone.runner`'s to say.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ajet.backbone.runner import Interrupts, Runner, RunnerOptions, Sink
from ajet.config.plugin import load_code
from ajet.train.sft.settings import settled

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.config.backbones import Descriptor
    from ajet.record import RunDirectory
    from ajet.store import Address


class InProcessRunner(Runner):
    """The runner of a backbone that names no other."""

    def train(
        self, experiment: Experiment, run: RunDirectory, options: RunnerOptions, interrupts: Interrupts, sink: Sink
    ) -> None:
        """See `ajet.train.loop`."""
        from ajet.run.sampling.beside import half_of_the_cores, sampler_beside
        from ajet.train.footprint import rehearse_update
        from ajet.train.loop import train
        from ajet.train.parts import assemble, pins_of
        from ajet.train.sources.store import FromStore

        both_sides = experiment.ajet.trainer_common.mode == "async" and options.from_store is None
        source = FromStore(options.from_store) if options.from_store is not None else None
        with ExitStack() as stack:
            if both_sides:  # first, and before torch is loaded: both sides load at the same time
                source = stack.enter_context(sampler_beside(experiment, run))
                experiment = half_of_the_cores(experiment)
            parts = stack.enter_context(
                assemble(experiment, run_id=run.run_id, on_episode=sink.on_episode, pins=pins_of(run))
            )
            if options.rehearsal:
                rehearse_update(experiment, parts.backbone)
            train(parts, run, interrupts, sink.on_step, source)


class LocalRunner(InProcessRunner):
    """The runner of the local backbone."""

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        from ajet.backbone.local.requirements import require_machine, require_trainable

        settings = settled(experiment).ajet if experiment.ajet.sft.objective is not None else experiment.ajet
        require_trainable(settings, looking=looking)
        if here:
            require_machine(settings)


def runner_of(backbone: Descriptor) -> Runner:
    """The backbone's."""
    found: Runner = load_code(backbone.runner)() if backbone.runner is not None else InProcessRunner()
    return found


def apply_sections(experiment: Experiment, from_store: Address | None = None) -> tuple[Experiment, str]:
    """Return the experiment as the backbone's own sections of the YAML leave it, and a line for each key below `ajet`
    that they override. Raises UserError."""
    if "trains" not in experiment.backbone.can:
        return experiment, ""
    runner = runner_of(experiment.backbone)
    return runner.apply_sections(experiment, from_store), runner.describe_overridden(experiment)


def algorithm_of(experiment: Experiment) -> Algorithm:
    """The algorithm that gives credit in a run of it: the one that the backbone's own keys name, if they do; for checks
    before a run, which try a user's. Raises UserError, for whatever else the backbone would refuse, too."""
    from ajet.algorithm import opened
    from ajet.algorithm.own_algorithm import try_group

    algorithm = opened(runner_of(experiment.backbone).settings(experiment), base=experiment.base)
    try_group(algorithm)
    return algorithm
