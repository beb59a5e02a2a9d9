"""Runners that train in the run's own process, and functions that ask a backbone's runner.

`ajet.train.runner` defines the interface: a runner starts the processes of a training.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config.backbones import find_backbone
from ajet.config.experiment import DEFAULT_ROOT
from ajet.config.plugin import load_code
from ajet.schema.commands import format_command
from ajet.train.runner import LaunchOptions, Runner

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.config.backbones import Descriptor
    from ajet.record import RunDirectory
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.parts import RunParts
    from ajet.train.sink import RunSink
    from ajet.train.sources.store import SamplerPool


class InProcessRunner(Runner):
    """The runner of backbones that train in the run's own process."""

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train in this process: on episodes that it plays itself, or on those of samplers in a store."""
        from ajet.commands.sampling.colocated import run_colocated_sampler, share_cores
        from ajet.train.footprint import rehearse_update
        from ajet.train.parts import assemble, pins_of
        from ajet.train.sources.store import SamplerPool

        samplers = SamplerPool(options.from_store) if options.from_store is not None else None
        with ExitStack() as stack:
            if experiment.ajet.trainer_common.mode == "async" and samplers is None:
                # Started first, so that both load in parallel.
                samplers = stack.enter_context(run_colocated_sampler(experiment, run))
                experiment = sink.experiment = share_cores(experiment)
            run_parts = stack.enter_context(
                assemble(experiment, run_id=run.run_id, on_episode=sink.on_episode, pins=pins_of(run))
            )
            if options.rehearsal:
                rehearse_update(experiment, run_parts.backbone)
            train_parts(run_parts, sink, samplers, interrupts)


def train_parts(parts: RunParts, sink: RunSink, samplers: SamplerPool | None, interrupts: Interrupts) -> None:
    """Train with the opened components of a run until its last step.

    Args:
        parts: Engine, tasks, judge and the like.
        sink: Receives steps and episodes for record and screen.
        samplers: Sampler processes that run the episodes. None: this process runs them, in turns with the updates.
    """
    from ajet.task_reader.contamination import find_overlap
    from ajet.train.loop import train
    from ajet.train.session import TrainingSession, open_store, read_resumed_frontier
    from ajet.train.sources.rollout import RolloutSource, make_task_order
    from ajet.train.sources.store import StoreSource

    tasks = make_task_order(parts.tasks("train"), parts.experiment.ajet)
    source: StoreSource | RolloutSource
    if samplers is None:
        source, store = RolloutSource(parts), open_store(sink.run, tasks)
    else:
        source = StoreSource(parts, samplers)
        store = source.open_store(sink.run, tasks, read_resumed_frontier(sink.run, tasks))
    session = TrainingSession(sink, parts.backbone, store, tasks, interrupts)
    has_validation = parts.reader.has("validation")
    sink.review(
        session.algorithm,
        train=len(tasks),
        validates=has_validation,
        overlap=find_overlap(parts.tasks("train"), parts.tasks("validation")) if has_validation else None,
        workflow=None if parts.judge.judges else parts.workflow,
        is_colocated=samplers is None or samplers.is_colocated,
    )
    train(session, source)


class LocalRunner(InProcessRunner):
    """The runner of the backbone `local`, which checks that this machine can train with the settings."""

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Raise UserError if the settings cannot be trained, or (with `here`) if this machine cannot train them.

        Args:
            looking: True for a check without a launch.
        """
        from ajet.backbone.local.requirements import require_machine, require_trainable

        if experiment.ajet.sft.objective is not None:
            from ajet.train.sources.replies import adapt_to_replies

            experiment = adapt_to_replies(experiment)
        settings = experiment.ajet
        require_trainable(settings, looking=looking)
        if here:
            require_machine(settings)


def load_runner(backbone: Descriptor) -> Runner:
    """Return the runner that a backbone names, or the one for training in this process."""
    runner: Runner = load_code(backbone.runner)() if backbone.runner is not None else InProcessRunner()
    return runner


def apply_sections(experiment: Experiment, from_store: Address | None = None) -> tuple[Experiment, str]:
    """Return the experiment with the values of the backbone's own sections, and a sentence on keys they override.

    Args:
        from_store: Store of samplers' episodes, if any.

    Raises:
        UserError: The backbone refuses a section.
    """
    if "trains" not in experiment.backbone.can:
        return experiment, ""
    runner = load_runner(experiment.backbone)
    return runner.apply_sections(experiment, from_store), runner.describe_overridden(experiment)


def load_algorithm(experiment: Experiment) -> Algorithm:
    """Return the run's algorithm after a test on one group. The backbone's own keys may name it.

    Raises:
        UserError: The algorithm fails the test, or the backbone refuses the settings.
    """
    from ajet.algorithm import open_algorithm
    from ajet.algorithm.registry import try_group

    algorithm = open_algorithm(load_runner(experiment.backbone).settings(experiment), base=experiment.base)
    try_group(algorithm)
    return algorithm


def format_start_command(experiment: Experiment, backbone: str) -> str:
    """Return the shell command that runs the experiment on a backbone, or "" if it has no YAML file.

    The command names the same YAML, folder of records and overrides.
    """
    if not experiment.yaml_path.is_file():
        return ""
    words = ["--conf", _shorten_path(experiment.yaml_path), "--backbone", backbone]
    experiment_dir = experiment.ajet.experiment_dir
    if experiment.root != Path(DEFAULT_ROOT if experiment_dir == "auto" else experiment_dir).expanduser().absolute():
        words += ["--exp-dir", _shorten_path(experiment.root)]
    if "spreads" in find_backbone(backbone).can:
        words.append("--with-ray-cluster" if os.environ.get("RAY_ADDRESS") else "--with-ray")
    return format_command(*words, *(override for override in experiment.overrides if _has_effect(override, backbone)))


def _has_effect(override: str, backbone: str) -> bool:
    """Return False for an override that the command need not repeat: the backbone's name, or a key it ignores."""
    key = override.partition("=")[0].strip("+ ").removeprefix("ajet.")
    return key != "backbone" and not (key.startswith("debug.") and "trains" in find_backbone(backbone).can)


def _shorten_path(path: Path) -> str:
    """Return the path relative to the working directory if it lies below, else unchanged."""
    working_directory = Path.cwd()
    return str(path.relative_to(working_directory) if path.is_relative_to(working_directory) else path)
