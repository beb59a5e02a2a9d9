"""`ajet serve`: a model, and perhaps its trainer, behind an address; agents come from outside.

Invariants: with a backbone that trains, every episode that a client finished is trained on once or recorded with the
reason why not, step by step, while clients go on, whoever kills the server in between: it is kept (`ajet.store`) until
a checkpoint has used it. Without one its end is acknowledged when it is recorded. The admin key is in no file
and no log: it comes from the environment, or is shown once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loguru import logger
from rich.text import Text

from ajet.algorithm.staleness import announce
from ajet.commands.launch import recorded, warn_of_unconfined
from ajet.commands.launchable import refuse_untrainable
from ajet.commands.own_key import own_key
from ajet.commands.progress import step_line
from ajet.commands.recording import Recording
from ajet.commands.run_hooks import enter_run_hooks
from ajet.commands.summary import finish
from ajet.record.console import console, counted, printable
from ajet.rollout.components import open_gateway, require_gateway
from ajet.rollout.runtime import frozen_start
from ajet.schema.episode import Episode, Group
from ajet.store import RunStore, require_own_store
from ajet.task_reader import TaskOrder
from ajet.train.footprint import rehearse_update
from ajet.train.interrupts import Interrupts
from ajet.train.loop import train
from ajet.train.session import TrainingSession, open_store
from ajet.train.sources.served import ServedSource
from ajet.train.sources.served_batch import take_results

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import Experiment
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.rollout.served import EpisodeRegistry, EpisodeStore
    from ajet.schema.task import Task
    from ajet.store import Store
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader
    from ajet.train.parts import Parts

ADMIN_KEY = "AJET_ADMIN_KEY"
"""Environment variable with the key that opens episodes."""
BACKLOG = 2
"""Batches of complete groups that may wait for the trainer; then new episodes are refused for a while."""


@dataclass(slots=True)
class ServeParts:
    """The parts that serving works with."""

    backbone: Backbone
    gateway: Gateway
    desk: EpisodeRegistry
    store: Store
    tasks: TaskOrder | None
    """Those of the task reader; None: clients bring all."""
    held_out: Parts | None = None
    """Who plays the held-out tasks of the task reader, on the same gateway; None: nobody says how, or there are
    none."""


def serve(experiment: Experiment, *, resume: str | None = None, fresh: bool = False, rehearsal: bool = True) -> int:
    """Serve until Ctrl-C, or until the last training step. Answers the exit code 0; raises UserError,
    KeyboardInterrupt or a bug."""
    from ajet.record import RunDirectory

    experiment.require_ready(serving=True)
    refuse_untrainable(experiment, elsewhere=True)
    key, given = _admin_key()
    trains = "trains" in experiment.backbone.can
    experiment = experiment.served() if trains else experiment
    run = RunDirectory.open(
        experiment,
        root=experiment.root,
        kind="train" if trains else "serve",
        resume=resume or experiment.ajet.trainer_common.resume,
        fresh=fresh,
    )
    experiment = run.experiment
    with recorded(experiment, run, serving=True):
        run.status.set(phase="loading", step=0, pid=os.getpid())
        interrupts = Interrupts()
        recording = Recording(run)
        with (
            interrupts.installed(),
            enter_run_hooks(experiment, run.path),
            assembled(experiment, run, keeper=None if trains else recording) as served,
        ):
            if trains:
                trainer = experiment.ajet.trainer_common
                announce(trainer, trainer.max_staleness)
                if rehearsal:
                    rehearse_update(experiment, served.backbone)
                store, tasks = served.store, served.tasks
                session = TrainingSession(experiment, served.backbone, run, store, tasks, interrupts, _show_step)
                _take_up(served)
            with frozen_start():
                _open_doors(served, run, key, given=given)
                if trains:
                    train(session, ServedSource(served.desk, experiment.ajet, served.held_out))
                    finish(run, ends_idle=False)
                else:
                    record_served(served.desk, run, recording, interrupts)
    return 0


@contextmanager
def assembled(experiment: Experiment, run: RunDirectory, *, keeper: EpisodeStore | None = None) -> Iterator[ServeParts]:
    """Open all parts and close them whatever happens. `keeper`: where ends go before they are acknowledged; None: to
    the store, from which the trainer takes them. Raises UserError."""
    from ajet.backbone import open_backbone
    from ajet.rollout.served import EpisodeRegistry
    from ajet.task_judge import open_judge
    from ajet.task_judge.registry import prepare_judge
    from ajet.task_reader import open_reader

    settings = experiment.ajet
    backbone = gateway = desk = held_out = None
    try:
        require_gateway(settings)
        if "trains" in experiment.backbone.can:
            require_own_store(experiment, run.path)
        reader = open_reader(experiment) if experiment.names_tasks else None
        prepare_judge(experiment, run)
        judge: Judge = open_judge(experiment, reader_judge=reader.judge if reader else None)
        known = reader.json_tasks("train") if reader else None
        backbone = open_backbone(experiment)
        if judge.ranks is not None:
            how = (
                "ranks those at a task once all are in" if backbone.trains else "judges each by itself, and ranks none"
            )
            logger.info("Clients' attempts end one by one: {} {}.", judge.ranks, how)
        tasks = _order(experiment, reader, backbone) if reader and known else None
        store = open_store(run, tasks, run.path / "pending") if backbone.trains else RunStore(None)
        gateway = open_gateway(
            experiment, backbone.engine, backbone.tokenizer, adapters=backbone.adapters, opens_later=True
        )
        if reader is not None and backbone.trains:
            held_out = open_held_out(experiment, run, reader, judge, backbone, gateway)
        desk = EpisodeRegistry(
            experiment,
            gateway,
            judge,
            store,
            tasks,
            run_id=run.run_id,
            split="train" if backbone.trains else "debug",
            backlog=BACKLOG * settings.data.train_batch_size if backbone.trains else None,
            episode_store=keeper or store,
            held_out=_held_out(experiment, reader, backbone),
        )
        yield ServeParts(backbone, gateway, desk, store, tasks, held_out)
    finally:
        for part in (desk, held_out.rollout if held_out is not None else None, gateway, backbone):
            if part is not None:
                part.close()


def open_held_out(
    experiment: Experiment,
    run: RunDirectory,
    reader: OpenedReader,
    judge: Judge,
    backbone: Backbone,
    gateway: Gateway,
) -> Parts | None:
    """The parts by which a launch would play the held-out tasks, where there are some and the YAML names an agent.
    Raises UserError, as a launch does."""
    from ajet.commands.services import require_services
    from ajet.rollout import Rollout
    from ajet.rollout.components import workflow_of
    from ajet.train.footprint import require_tools_fit
    from ajet.train.parts import Parts, pins_of

    settings = experiment.ajet
    trainer = settings.trainer_common
    if not reader.has("validation") or not (trainer.test_freq > 0 or trainer.val_before_train):
        return None
    if settings.rollout.user_workflow is None:
        logger.info(
            "the server plays no held-out tasks: rollout.user_workflow names no agent to play them; clients may ask "
            "for them with held_out"
        )
        return None
    if settings.rollout.deterministic:
        logger.warning("rollout.deterministic: no held-out tasks are played, as clients come when they like")
        return None
    warn_of_unconfined(experiment)
    require_services(experiment)
    require_tools_fit(experiment)
    workflow = workflow_of(experiment)
    rollout = Rollout(experiment, gateway, workflow, judge, run_id=run.run_id, pins=pins_of(run))
    parts = Parts(experiment, reader, judge, workflow, backbone, gateway, rollout)
    logger.info("{} held-out tasks, which the server plays with {}", len(parts.tasks("validation")), workflow.__name__)
    return parts


def record_served(desk: EpisodeRegistry, run: RunDirectory, recording: Recording, interrupts: Interrupts) -> None:
    """Show every episode as it ends; its end was acknowledged when `recording` had it. Ends by KeyboardInterrupt, with
    what is under way recorded too."""
    run.status.set(phase="serving", step=0)

    def keep(episodes: list[Episode]) -> None:
        recording.rest(episodes)
        recording.measure()
        for episode in episodes:
            _show_episode(episode)

    try:
        with interrupts.patient(run.experiment.ajet.trainer_common.grace, worth=lambda: desk.expects):
            while True:
                keep(_alone([desk.results.get(), *take_results(desk)]))
    except KeyboardInterrupt:
        desk.close()
        keep(_alone(take_results(desk)))
        recording.measure(last=True)
        raise


def _take_up(served: ServeParts) -> None:
    """Go on with what an earlier server acknowledged and its last checkpoint has not used."""
    count = served.desk.restore()
    if count:
        logger.info("{} episodes that were finished and not trained on are taken up again", count)


def _alone(results: list[Group | Episode]) -> list[Episode]:
    return [result for result in results if isinstance(result, Episode)]


def _order(experiment: Experiment, reader: OpenedReader, backbone: Backbone) -> TaskOrder:
    from ajet.task_reader.overlong import within_prompt_length

    settings = experiment.ajet
    tasks = within_prompt_length(reader.json_tasks("train"), settings.data, backbone.tokenizer)
    return TaskOrder(tasks, seed=settings.seed, shuffle=settings.data.shuffle)


def _held_out(experiment: Experiment, reader: OpenedReader | None, backbone: Backbone) -> Sequence[Task]:
    """The held-out tasks of the task reader, for clients who ask for one. Where they cannot be read the others are
    served: a reader names a split by default that its data may not have."""
    from ajet.schema.errors import TaskError
    from ajet.task_reader.overlong import within_prompt_length

    if reader is None or not reader.has("validation"):
        return ()
    try:
        return within_prompt_length(reader.tasks("validation"), experiment.ajet.data, backbone.tokenizer)
    except TaskError as problem:
        logger.warning("there are no held-out tasks for clients that ask for one: {}", problem.what)
        return ()


def _admin_key() -> tuple[str, bool]:
    """The key, and whether the environment gave it. Raises UserError for one that is no key."""
    given = own_key(ADMIN_KEY, do="leave it out: a random one is made and shown")
    return (secrets.token_urlsafe(24), False) if given is None else (given, True)


def _open_doors(served: ServeParts, run: RunDirectory, key: str, *, given: bool) -> None:
    """Answer clients from now on, and say where."""
    from ajet.rollout.served import routes

    served.gateway.add_routes(routes(served.desk, key))
    root = served.gateway.base_url.removesuffix("/v1")
    run.status.set(phase="serving", url=root)
    trains = served.backbone.trains
    does = f" · {'training' if trains else 'recording'} in {run.path}"
    console.print(Text.assemble("Serving on ", (root, "bold"), does), soft_wrap=True)
    if not given:
        console.print(f"Admin key (shown once; {ADMIN_KEY} sets one of your own):", markup=False)
        console.print(key, markup=False, highlight=False, soft_wrap=True)
    body = "{}" if served.tasks is not None else '{"task": "What is 1 + 2?"}'
    console.print(
        f"Open an episode:  curl -X POST {root}/episodes -H \"Authorization: Bearer ${ADMIN_KEY}\" -d '{body}'",
        "\nCtrl-C ends it.",
        sep="",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _show_step(step: int, total: int, metrics: dict[str, float]) -> None:
    console.print(step_line(step, 0, metrics), markup=False, soft_wrap=True)


def _show_episode(episode: Episode) -> None:
    words = [f"{_one_line(episode.task.task_id[:40])}: {episode.status}"]
    words += [f"reward {episode.reward:g}"] if episode.reward is not None else []
    words += [f"{episode.failure.boundary}: {_one_line(episode.failure.message[:200])}"] if episode.failure else []
    words += [counted(len(episode.calls), "call"), counted(episode.sampled_tokens, "token")]
    words.append(f"{episode.ended - episode.started:.1f} s")
    console.print(", ".join(words), markup=False, soft_wrap=True)


def _one_line(text: str) -> str:
    """A client's words, which make no line of their own."""
    return " ".join(printable(text).split())
