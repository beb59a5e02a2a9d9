"""`ajet sample`: a process that plays for a trainer somewhere else, and may come and go as it likes.

Invariant: it shares nothing with the trainer but the store, in which positions, episodes and the present policy are,
and the folders with that policy's weights. It writes no record; in the run's folder of its machine are its log,
`logs/RUN_sampler_NAME.log`, and in `samplers/NAME` what services beside it print.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from loguru import logger

from ajet.backbone.decoupled.terms import OVER, SERVER, Terms
from ajet.commands.launch import warn_of_unconfined
from ajet.commands.launchable import refuse_untrainable
from ajet.commands.run_hooks import enter_run_hooks
from ajet.commands.sampling.sampler import LOOK, Played, Sampler, WentBack
from ajet.commands.services import require_services
from ajet.engine.followed import server_of
from ajet.record.console import console, counted
from ajet.rollout.components import require_gateway
from ajet.schema.errors import AjetError, ConfigError, UserError
from ajet.store import CANNOT_NOW, Address, open_shared
from ajet.store.shared import LEASE_SECONDS
from ajet.task_reader import TaskOrder
from ajet.train.interrupts import Interrupts
from ajet.train.parts import assemble

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.backbone.following import FollowingBackbone
    from ajet.config import Experiment
    from ajet.store import Announced, SharedStore


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Flags of `ajet sample`."""

    store: Address
    name: str = ""
    """Of this sampler; "": made of host and process."""
    per_minute: float | None = None
    """Episodes begun in a minute, at most; None: any number."""
    grace: float = 60.0
    """Seconds in which what is under way may end once this process is asked to end."""
    lease_seconds: float = LEASE_SECONDS
    """After so many seconds without a sign of life others play on."""
    services: bool = True
    """Whether it starts those of `ajet.services`; False: who started it did."""


def sample(experiment: Experiment, options: SampleOptions) -> int:
    """Play until the trainer says that the training is over. Answers the exit code 0; raises UserError,
    KeyboardInterrupt (after what is under way has ended or been given back) or a bug."""
    from ajet.record.run_directory import redactor_of

    experiment.require_ready()
    refuse_untrainable(experiment, elsewhere=True)
    _refuse_in_turns(experiment)
    warn_of_unconfined(experiment)
    require_gateway(experiment.ajet)
    name = options.name or f"{socket.gethostname()}-{os.getpid()}"
    store = open_shared(
        options.store,
        lease_seconds=options.lease_seconds,
        unreachable_timeout=experiment.ajet.store.unreachable_timeout,
        redact=redactor_of(experiment),
    )
    interrupts, played = Interrupts(), Played()
    try:
        with _logged(experiment, name, played), interrupts.installed(), _warm(experiment) as opens:
            announced: Announced | None = _awaited(experiment, store, interrupts, options, name)
            with (
                enter_run_hooks(experiment, experiment.root / experiment.name / "samplers" / name)
                if options.services
                else nullcontext()
            ):
                require_services(experiment)
                about: Any = {"store": store, "interrupts": interrupts, "options": options, "name": name}
                there = partial(_once_there, opens=opens, **about)
                with suppress(_OverBefore):
                    while announced is not None and not announced.policy.told.get(OVER):
                        announced = _played(experiment, store, announced, interrupts, options, name, played, there)
    finally:
        console.print(_said(name, played), markup=False, soft_wrap=True)
        with suppress(*CANNOT_NOW):  # a sampler that is silent is taken out by its age
            store.leave()
        store.disconnect()
    return 0


def _played(
    experiment: Experiment,
    store: SharedStore,
    announced: Announced,
    interrupts: Interrupts,
    options: SampleOptions,
    name: str,
    played: Played,
    opens: Callable[[Experiment], FollowingBackbone],
) -> Announced | None:
    """Play with one engine. Answers the policy to go on with, where another engine is needed for it."""
    run = announced.policy.run
    with assemble(experiment, run_id=run, opens=opens) as parts, ExitStack() as given_back:
        tasks = TaskOrder(parts.tasks("train"), seed=experiment.ajet.seed, shuffle=experiment.ajet.data.shuffle)
        Terms.of(experiment, parts.backbone.tokenizer, tasks).require_same(announced.policy, options.store.shown)
        sampler = Sampler(
            parts,
            cast("FollowingBackbone", parts.backbone),
            store,
            tasks,
            name=name,
            played=played,
            per_minute=options.per_minute,
            renew_every=options.lease_seconds / 4,
        )
        logger.info("{} plays for run {} in {}", name, run[:8], options.store.shown)
        grace = options.grace
        given_back.callback(sampler.release)  # after drain there is nothing left to
        try:
            sampler.play(interrupts)
            grace = 0.0  # what the trainer no longer wants
        except WentBack:
            logger.warning("the trainer went on from an earlier policy: the engine is opened anew")
            grace = 0.0
        except KeyboardInterrupt:
            interrupts.heard()
            sampler.drain(interrupts, grace)
            raise
        sampler.drain(interrupts, grace)
    return store.announced()


@contextmanager
def _logged(experiment: Experiment, name: str, played: Played) -> Iterator[None]:
    """Within the block a file has all that is logged, and at its end what was played; none where what is shown is kept
    among the run's logs anyway (by a script, or a trainer that starts a sampler), and none where the disk refuses it:
    to play it is not needed."""
    from ajet.record.logs import LogFile, log_name
    from ajet.record.run_directory import redactor_of

    run = experiment.root / experiment.name
    file = run / "logs" / log_name(run, "sampler", name)
    if _shown_in(file.parent):
        yield
        return
    try:
        log = LogFile(file, redactor_of(experiment))
    except OSError as error:
        logger.warning("what this sampler does is in no log file: {} ({})", error.strerror, file)
        yield
        return
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError):
            vars(error)["log"] = file  # the command's boundary adds the traceback there and shows the path
        logger.debug("ended by {}: {}", type(error).__name__, error)
        raise
    finally:
        logger.debug(_said(name, played))
        log.close()


def _shown_in(folder: Path) -> bool:
    """Whether standard output is one of the files there."""
    try:
        shown = os.fstat(1)
    except OSError:  # it is closed
        return False
    return any(os.path.samestat(shown, each.stat()) for each in folder.glob("*_sampler_*.log"))


@contextmanager
def _warm(experiment: Experiment) -> Iterator[Callable[[Experiment], FollowingBackbone]]:
    """Opens a backbone each time that it is asked. The first is there by the time that a trainer is waited for, which
    loads meanwhile; a vLLM is not: it measures the memory that a trainer at the same device leaves it, and a server
    elsewhere may begin later than this process. Raises UserError."""
    from ajet.backbone.following import FollowingBackbone

    first = [FollowingBackbone(experiment)] if experiment.ajet.rollout.engine != "vllm" else []
    try:
        yield lambda experiment: first.pop() if first else FollowingBackbone(experiment)
    finally:
        for unused in first:
            unused.close()


class _OverBefore(AjetError):
    """The training is, and this process had no engine yet."""


def _once_there(
    experiment: Experiment,
    *,
    opens: Callable[[Experiment], FollowingBackbone],
    store: SharedStore,
    interrupts: Interrupts,
    options: SampleOptions,
    name: str,
) -> FollowingBackbone:
    """What `opens` opens. A server elsewhere that is away is waited for as one is that goes away later. Raises
    UserError, _OverBefore."""
    from ajet.engine.asked_server import ServerAway
    from ajet.engine.followed_server import AWAY

    since, told = time.monotonic(), -math.inf
    while True:
        try:
            return opens(experiment)
        except ServerAway as away:
            if time.monotonic() - since > AWAY:
                raise
            if told == -math.inf:
                logger.warning("{} It is waited for, up to {:g} s ({})", away.what, AWAY, away.where)
        with interrupts.held():
            if time.monotonic() - told > options.lease_seconds / 4:
                told = time.monotonic()
                store.join("sampler", name, {SERVER: server_of(experiment.ajet)})
            announced = store.announced()
            if announced is not None and announced.policy.told.get(OVER):
                raise _OverBefore
            time.sleep(LOOK)


def _awaited(
    experiment: Experiment, store: SharedStore, interrupts: Interrupts, options: SampleOptions, name: str
) -> Announced:
    """The policy that the trainer announced, once it has. Meanwhile others at the same server see this one live."""
    waits, told = False, -math.inf
    while True:
        with interrupts.held():
            if time.monotonic() - told > options.lease_seconds / 4:
                told = time.monotonic()
                store.join("sampler", name, {SERVER: server_of(experiment.ajet)})
            if (announced := store.announced()) is not None:
                return announced
            if not waits:
                waits = True
                logger.info("no trainer has announced a policy in {} yet: waiting for one", options.store.shown)
            time.sleep(LOOK)


def _refuse_in_turns(experiment: Experiment) -> None:
    if experiment.ajet.rollout.deterministic:
        raise ConfigError(
            "Samplers play side by side: their rollout cannot be deterministic.",
            where="ajet.rollout.deterministic",
            expected="false with ajet sample",
        )


def _said(name: str, played: Played) -> str:
    parts = [f"{name}: {counted(played.groups, 'group')}, {counted(played.episodes, 'episode')}"]
    parts.append(counted(played.tokens, "token"))
    parts += [f"{played.given_back} given back"] if played.given_back else []
    parts += [f"{played.lost} lost to others"] if played.lost else []
    return ", ".join(parts)
