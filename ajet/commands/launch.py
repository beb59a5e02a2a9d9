"""`ajet --conf FILE.yaml`: open the run directory and the backbone, train or debug, and close everything.

Invariant: the run directory is locked before any costly start, and its status records how the run ended, whatever the
cause.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.commands.launch_checks import require_launchable
from ajet.commands.runner import apply_sections, load_runner
from ajet.config.plugins import find_launch_flags, hand_to_workers, try_load
from ajet.schema.errors import RunFailed, ServiceUnreachableError, UserError
from ajet.train.runner import LaunchOptions

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.train.interrupts import Interrupts


def launch(experiment: Experiment, options: LaunchOptions) -> int:
    """Train or debug the experiment, or print its plan, and return the exit code 0.

    Raises:
        UserError: The user can correct the cause.
        KeyboardInterrupt: The run was interrupted, after saving.
    """
    if options.dry_run:
        from ajet.commands.plan import dry_run

        launch_flags = find_launch_flags()
        on_cluster = any(launch_flags[name].remote for name in options.flags)
        dry_run(experiment, options.services, options.from_store, on_cluster=on_cluster)
    else:
        run_experiment(experiment, options)
    return 0


def run_experiment(experiment: Experiment, options: LaunchOptions) -> Path:
    """Run the experiment and return the run's folder.

    If a live run occupies the configured folder, the folder is NAME-2, for example. Raises as `launch`.
    """
    experiment, overridden_text = apply_sections(experiment, options.from_store)
    experiment.require_ready()
    if options.debug_tags:
        from ajet.workflow.breakpoint import activate

        activate(options.debug_tags)

    from ajet.record import RunDirectory

    is_training = "trains" in experiment.backbone.can
    require_launchable(experiment, options.from_store, here=True)
    if is_training and experiment.ajet.sft.objective is None:
        load_runner(experiment.backbone).require(experiment, options)
    if options.from_store is not None:
        from ajet.store import require_store

        require_store(options.from_store)
    run = RunDirectory.open(
        experiment,
        root=experiment.root,
        kind="train" if is_training else "debug",
        resume=options.resume or experiment.ajet.trainer_common.resume,
        fresh=options.fresh,
    )
    experiment = run.experiment
    from ajet.commands.services import enter_run_hooks, require_services
    from ajet.task_judge.registry import prepare_judge
    from ajet.train.footprint import require_tools_fit
    from ajet.train.interrupts import Interrupts

    interrupts = Interrupts()
    with (
        hand_to_workers(),
        record_run(experiment, run),
        interrupts.install(),  # before starting anything with an own shutdown
        enter_launch_flags(run, options.flags),
        enter_run_hooks(experiment, run.path, options.services, options.prefix),
    ):
        if overridden_text:
            logger.warning("{}", overridden_text)
        if is_training:
            from ajet.store import require_own_store

            require_own_store(experiment, run.path)
        require_services(experiment)
        require_tools_fit(experiment)
        prepare_judge(experiment, run)
        steps = experiment.ajet.trainer_common.total_training_steps if is_training else None
        run.status.set(phase="loading", step=0, steps=steps, pid=os.getpid())
        if is_training:
            _train_run(experiment, run, options, interrupts)
        else:
            from ajet.commands.debug import debug_run

            debug_run(experiment, run, interrupts)
    return run.path


def _train_run(experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts) -> None:
    """Train on given replies or by reinforcement learning, then print the run's summary."""
    from ajet.commands.progress import TrainingProgress
    from ajet.commands.summary import print_summary
    from ajet.train.sink import RunSink

    progress = TrainingProgress(experiment, run)
    sink = RunSink(experiment, run, progress.on_step, progress.on_episode)
    try:
        if experiment.ajet.sft.objective is not None:
            from ajet.train.sources.replies import train_on_replies

            train_on_replies(sink, interrupts)
        else:
            load_runner(experiment.backbone).train(experiment, run, options, interrupts, sink)
    finally:
        progress.close()
    print_summary(run)


@contextmanager
def enter_launch_flags(run: RunDirectory, flags: Iterable[str]) -> Iterator[None]:
    """Within the block, keep open what the plug-ins' flags of the launch (`--with-NAME`) put around the run.

    Raises:
        UserError: A flag's code cannot be loaded.
    """
    launch_flags = find_launch_flags()
    with ExitStack() as exit_stack:
        for name in flags:
            if launch_flags[name].around:
                hook, problem = try_load(launch_flags[name].around)
                if problem:
                    raise UserError(
                        f"--with-{name} cannot be used: {problem}.",
                        do="omit the flag, or repair the package of the plug-in",
                    )
                exit_stack.enter_context(hook(run))
        yield


@contextmanager
def record_run(experiment: Experiment, run: RunDirectory, *, serving: bool = False) -> Iterator[None]:
    """Warn of settings without effect, then run the block, and record in the run's status how it ended.

    Args:
        serving: True in `ajet serve`.
    """
    from ajet.config.idle import format_idle_keys
    from ajet.config.locations import explain_unwritable_cache

    is_sft = experiment.ajet.sft.objective is not None
    scope = "in ajet serve" if serving else "in ajet sft" if is_sft else f"on the backbone {experiment.ajet.backbone}"
    if cache_problem := explain_unwritable_cache():
        logger.warning("{}", cache_problem)
    if idle_text := format_idle_keys(experiment.list_idle_keys(serving=serving), scope):
        logger.info("{}", idle_text)
    if not serving:
        warn_of_unconfined(experiment)
    with close_with_outcome(run):
        yield


def warn_of_unconfined(experiment: Experiment) -> None:
    """Warn if code written by the model would run with the rights of the current user (`environment.sandbox: none`)."""
    if experiment.ajet.environment.sandbox == "none":
        logger.warning(
            "environment.sandbox is none: code of `tuner.sandbox()` runs as the current user, without confinement"
        )


@contextmanager
def close_with_outcome(run: RunDirectory) -> Iterator[None]:
    """Run the block, record how the run ended, and close the run.

    A user's mistake leaves no record if no episode was played, unless the run can be continued.
    """
    outcome = "failed"
    try:
        yield
        outcome = "finished"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    except Exception as error:
        problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        run.status.set(problem=problem)
        if isinstance(error, ServiceUnreachableError):
            outcome = "interrupted"
        elif isinstance(error, UserError) and not isinstance(error, RunFailed):
            run.discard()  # another run may use the path for its log now
        else:
            vars(error)["log"] = run.log_file.path  # the command's boundary adds the traceback and shows the path
        raise
    finally:
        run.close(outcome)
