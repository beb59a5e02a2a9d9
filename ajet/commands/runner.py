"""Runners for backbones that train in the run's own process, and how the runner of a backbone is found.

The contract is `ajet.train.runner`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from loguru import logger

from ajet.config.plugin import load_code
from ajet.train.runner import Runner

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.config.backbones import Descriptor
    from ajet.record import RunDirectory
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.options import LaunchOptions
    from ajet.train.parts import Parts
    from ajet.train.sink import RunSink
    from ajet.train.sources.store import SamplerPool
    from ajet.train.step import OnStep


class InProcessRunner(Runner):
    """The runner of a backbone that names no other."""

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train in this process, on episodes of its own or of a store."""
        from ajet.commands.sampling.beside import half_of_the_cores, sampler_beside
        from ajet.train.footprint import rehearse_update
        from ajet.train.parts import assemble, pins_of
        from ajet.train.sources.store import SamplerPool

        samplers = SamplerPool(options.from_store) if options.from_store is not None else None
        with ExitStack() as stack:
            if experiment.ajet.trainer_common.mode == "async" and samplers is None:
                samplers = stack.enter_context(sampler_beside(experiment, run))  # first: both sides load at once
                experiment = half_of_the_cores(experiment)
            parts = stack.enter_context(
                assemble(experiment, run_id=run.run_id, on_episode=sink.on_episode, pins=pins_of(run))
            )
            if options.rehearsal:
                rehearse_update(experiment, parts.backbone)
            train_parts(parts, run, samplers, interrupts, sink.on_step)


def train_parts(
    parts: Parts, run: RunDirectory, samplers: SamplerPool | None, interrupts: Interrupts, on_step: OnStep
) -> None:
    """Train with assembled parts. `samplers`: who plays; None: this process, in turns with the updates."""
    from ajet.train.loop import train
    from ajet.train.session import TrainingSession, open_store, read_resumed_frontier
    from ajet.train.sources.rollout import RolloutSource, make_task_order
    from ajet.train.sources.store import StoreSource

    tasks = make_task_order(parts.tasks("train"), parts.experiment.ajet)
    source: StoreSource | RolloutSource
    if samplers is None:
        source, store = RolloutSource(parts), open_store(run, tasks)
    else:
        source = StoreSource(parts, samplers)
        store = source.open_store(run, tasks, read_resumed_frontier(run, tasks))
    session = TrainingSession(parts.experiment, parts.backbone, run, store, tasks, interrupts, on_step)
    warn_of_plan(parts, session.algorithm, len(tasks), is_colocated=samplers is None or samplers.is_colocated)
    train(session, source)


def warn_of_plan(parts: Parts, algorithm: Algorithm, tasks: int, *, is_colocated: bool) -> None:
    """Warn of what a training of so many tasks cannot do well. `is_colocated`: episodes are played on this machine."""
    from ajet.task_reader.contamination import overlap
    from ajet.train.remarks import describe_remarks

    validates = parts.reader.has("validation")
    remarks = describe_remarks(
        parts.experiment,
        algorithm,
        train=tasks,
        validates=validates,
        workflow=None if parts.judge.judges else parts.workflow,
        known=overlap(parts.tasks("train"), parts.tasks("validation")) if validates else None,
        beside=is_colocated,
    )
    if remarks:
        logger.warning("{}", remarks)


class LocalRunner(InProcessRunner):
    """The runner of the local backbone."""

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        from ajet.backbone.local.requirements import require_machine, require_trainable
        from ajet.train.sft.settings import settled

        settings = settled(experiment).ajet if experiment.ajet.sft.objective is not None else experiment.ajet
        require_trainable(settings, looking=looking)
        if here:
            require_machine(settings)


def runner_of(backbone: Descriptor) -> Runner:
    """Return the runner that the backbone names."""
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
