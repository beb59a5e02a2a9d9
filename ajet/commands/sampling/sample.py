"""`ajet sample`: a process that runs episodes for a trainer in another process.

It may start and end at any time. Invariant: it shares with the trainer only the store (task positions, episodes and the
announced policy) and the folders with the policy's weights. It writes no record. The run's folder on the sampler's
machine contains its log, `logs/RUN_sampler_NAME.log`, and in `samplers/NAME` the output of services.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from loguru import logger

from ajet.backbone.decoupled.terms import OVER, SERVER, SamplingTerms
from ajet.commands.launch import warn_of_unconfined
from ajet.commands.launch_checks import refuse_untrainable
from ajet.commands.sampling.sampler import STORE_POLL_S, GroupSampler, PolicyWentBackError, SamplerCounts
from ajet.commands.services import enter_run_hooks, require_services
from ajet.engine.drivers import read_server_address
from ajet.record.console import counted, print_line
from ajet.rollout.components import require_gateway
from ajet.schema.errors import AjetError, ConfigError, UserError
from ajet.store import TRANSIENT_ERRORS, Address, AnnouncedPolicy, SharedStore, open_shared
from ajet.store.shared import LEASE_SECONDS
from ajet.task_reader import TaskOrder
from ajet.train.interrupts import Interrupts
from ajet.train.parts import assemble

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.backbone.following import FollowingBackbone
    from ajet.config import Experiment


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Flags of the command `ajet sample`, except the experiment's flags."""

    store: Address
    name: str = ""
    """Name of this sampler. "" builds a name from host and process."""
    per_minute: float | None = None
    """Maximum number of episodes started per minute. None: no limit."""
    grace: float = 60.0
    """Seconds for groups in flight to end after this process got a signal to end."""
    lease_seconds: float = LEASE_SECONDS
    """Seconds without a heartbeat after which other samplers take over."""
    services: bool = True
    """True to start the services of `ajet.services`. False if the caller has started the services."""


def sample(experiment: Experiment, options: SampleOptions) -> int:
    """Run episodes until the trainer announces the end of the training, and return the exit code 0.

    Raises:
        UserError: the user can correct the cause.
        KeyboardInterrupt: after groups in flight have ended or were returned to the store.
    """
    from ajet.record.run_directory import redactor_of

    experiment.require_ready()
    refuse_untrainable(experiment, remote=True)
    if experiment.ajet.rollout.deterministic:
        raise ConfigError(
            "rollout.deterministic: true is not possible with samplers, because they run at the same time.",
            where="ajet.rollout.deterministic",
            expected="rollout.deterministic: false with ajet sample",
        )
    warn_of_unconfined(experiment)
    require_gateway(experiment.ajet)
    store = open_shared(
        options.store,
        lease_seconds=options.lease_seconds,
        unreachable_timeout=experiment.ajet.store.unreachable_timeout,
        redact=redactor_of(experiment),
    )
    process = SamplerProcess(experiment, options, store)
    try:
        process.run()
    finally:
        print_line(describe_counts(process.name, process.counts))
        with suppress(*TRANSIENT_ERRORS):  # a silent sampler is removed by its age
            store.leave()
        store.disconnect()
    return 0


class EndedBeforeStartError(AjetError):
    """The training ended before this sampler had opened an engine."""


class SamplerProcess:
    """One sampler process: waits for a policy, opens an engine, and runs episodes until the training ends."""

    def __init__(self, experiment: Experiment, options: SampleOptions, store: SharedStore) -> None:
        self._experiment = experiment
        self._options = options
        self._store = store
        self._interrupts = Interrupts()
        self.name = options.name or f"{socket.gethostname()}-{os.getpid()}"
        self.counts = SamplerCounts()

    def run(self) -> None:
        """Run episodes until the trainer announces the end of the training. Raises as `sample` does."""
        experiment, folder = self._experiment, self._experiment.root / self._experiment.name / "samplers" / self.name
        with (
            log_to_file(experiment, self.name, self.counts),
            self._interrupts.install(),
            open_first_backbone(experiment) as opens,
        ):
            announced: AnnouncedPolicy | None = self.wait_for_policy()
            with enter_run_hooks(experiment, folder) if self._options.services else nullcontext():
                require_services(experiment)
                with suppress(EndedBeforeStartError):
                    while announced is not None and not announced.policy.told.get(OVER):
                        announced = self._play_with_engine(announced, opens)

    def wait_for_policy(self) -> AnnouncedPolicy:
        """Block until the trainer has announced a policy in the store, and return it."""
        is_waiting, last_shown = False, -math.inf
        while True:
            with self._interrupts.defer():
                last_shown = self._show_life(last_shown)
                if (announced := self._store.announced()) is not None:
                    return announced
                if not is_waiting:
                    is_waiting = True
                    logger.info(
                        "waiting for the trainer: none has announced weights in {} yet", self._options.store.shown
                    )
                time.sleep(STORE_POLL_S)

    def open_backbone(self, opens: Callable[[Experiment], FollowingBackbone]) -> FollowingBackbone:
        """Open the engine and return it. If its server is unreachable, try again for `AWAY` seconds.

        Args:
            opens: Opens the engine of an experiment.

        Raises:
            UserError: The server stays unreachable, or the engine cannot be opened.
            EndedBeforeStartError: The training has ended meanwhile.
        """
        from ajet.engine.remote_server import AWAY, ServerAwayError

        since, last_shown = time.monotonic(), -math.inf
        while True:
            try:
                return opens(self._experiment)
            except ServerAwayError as error:
                if time.monotonic() - since > AWAY:
                    raise
                if last_shown == -math.inf:
                    logger.warning("{} ajet waits for the server up to {:g} s ({})", error.what, AWAY, error.where)
            with self._interrupts.defer():
                last_shown = self._show_life(last_shown)
                announced = self._store.announced()
                if announced is not None and announced.policy.told.get(OVER):
                    raise EndedBeforeStartError
                time.sleep(STORE_POLL_S)

    def _show_life(self, shown: float) -> float:
        """Send a heartbeat to the store if one is due, and return the time of the last one.

        Other samplers of the same server see from it that this process lives.

        Args:
            shown: Time of the last heartbeat.
        """
        now = time.monotonic()
        if now - shown <= self._options.lease_seconds / 4:
            return shown
        self._store.join("sampler", self.name, {SERVER: read_server_address(self._experiment.ajet)})
        return now

    def _play_with_engine(
        self, announced: AnnouncedPolicy, opens: Callable[[Experiment], FollowingBackbone]
    ) -> AnnouncedPolicy | None:
        """Run episodes with one engine until the training ends or another engine is needed.

        Returns:
            The policy announced last, which says whether the training has ended. None if there is none.
        """
        experiment, options, run = self._experiment, self._options, announced.policy.run
        with (
            assemble(experiment, run_id=run, opens=lambda _: self.open_backbone(opens)) as run_parts,
            ExitStack() as exit_stack,
        ):
            tasks = TaskOrder(run_parts.tasks("train"), seed=experiment.ajet.seed, shuffle=experiment.ajet.data.shuffle)
            SamplingTerms.of(experiment, run_parts.backbone.tokenizer, tasks).require_same(
                announced.policy, options.store.shown
            )
            sampler = GroupSampler(
                run_parts,
                cast("FollowingBackbone", run_parts.backbone),
                self._store,
                tasks,
                name=self.name,
                counts=self.counts,
                per_minute=options.per_minute,
                renew_every=options.lease_seconds / 4,
            )
            logger.info("the sampler {} runs episodes for run {} in {}", self.name, run[:8], options.store.shown)
            exit_stack.callback(sampler.release)  # after `drain` there is no group to release
            try:
                sampler.play(self._interrupts)
            except PolicyWentBackError:
                logger.warning("the trainer resumed from an earlier checkpoint: the sampler opens its engine again")
            except KeyboardInterrupt:
                self._interrupts.forget_raised()
                sampler.drain(self._interrupts, options.grace)
                raise
            sampler.drain(self._interrupts, 0.0)  # the trainer needs the groups no longer
        return self._store.announced()


def describe_counts(name: str, counts: SamplerCounts) -> str:
    """Return how many groups, episodes and tokens a sampler has produced, as one line."""
    parts = [f"sampler {name}: {counted(counts.groups, 'group')}, {counted(counts.episodes, 'episode')}"]
    parts.append(counted(counts.tokens, "token"))
    parts += [f"{counts.given_back} given back"] if counts.given_back else []
    parts += [f"{counts.lost} lost to other samplers"] if counts.lost else []
    return ", ".join(parts)


@contextmanager
def log_to_file(experiment: Experiment, name: str, counts: SamplerCounts) -> Iterator[None]:
    """Within the block, write the sampler's log to a file, with its counts at the end.

    There is no file if standard output is in the run's logs already (a script or a trainer started the sampler), or if
    the disk refuses the file: a sampler can run without a log.
    """
    from ajet.record.logs import LogFile, log_name
    from ajet.record.run_directory import redactor_of

    run = experiment.root / experiment.name
    file = run / "logs" / log_name(run, "sampler", name)
    if _is_output_in(file.parent):
        yield
        return
    try:
        log = LogFile(file, redactor_of(experiment))
    except OSError as error:
        logger.warning("this sampler cannot write its log file {}: {}", error.strerror, file)
        yield
        return
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError):
            vars(error)["log"] = file  # the command's boundary adds the traceback and shows the path
        logger.debug("the sampler was stopped by {}: {}", type(error).__name__, error)
        raise
    finally:
        logger.debug(describe_counts(name, counts))
        log.close()


def _is_output_in(folder: Path) -> bool:
    """Return True if standard output is a sampler's log in the folder."""
    try:
        output = os.fstat(1)
    except OSError:  # standard output is closed
        return False
    return any(os.path.samestat(output, path.stat()) for path in folder.glob("*_sampler_*.log"))


@contextmanager
def open_first_backbone(experiment: Experiment) -> Iterator[Callable[[Experiment], FollowingBackbone]]:
    """Open an engine while the trainer loads. Yield a function that returns this engine first, then new ones.

    vLLM is opened later, because it measures the memory that a trainer leaves on the same device. A remote server may
    start later than this process.
    """
    from ajet.backbone.following import FollowingBackbone

    unused_backbones = [FollowingBackbone(experiment)] if experiment.ajet.rollout.engine != "vllm" else []
    try:
        yield lambda experiment: unused_backbones.pop() if unused_backbones else FollowingBackbone(experiment)
    finally:
        for backbone in unused_backbones:
            backbone.close()
