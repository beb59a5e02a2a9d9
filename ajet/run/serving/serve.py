"""`ajet serve`: a model, and perhaps its trainer, behind an address; agents come from outside.

Invariants: with a backbone that trains, every episode that a client finished is trained on once or recorded with the
reason why not, step by step, while clients go on, whoever kills the server in between: it is kept (`ajet.store`) until
a checkpoint has used it. Without one its end is acknowledged when it is recorded. The admin key is in no file
and no log: it comes from the environment, or is shown once.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from loguru import logger
from rich.text import Text

from ajet.algorithm import discarded
from ajet.algorithm.staleness import announce
from ajet.record.console import console, counted, printable
from ajet.record.learned import is_never_right, why_nothing
from ajet.rollout.garbage_collection import frozen_start
from ajet.rollout.wiring import open_gateway, require_gateway
from ajet.run.footprint import rehearse_update
from ajet.run.interrupt import Interrupts, Preempted
from ajet.run.launch import recorded
from ajet.run.launchable import refuse_untrainable
from ajet.run.learn import FirstHalf, Unused, learn
from ajet.run.own_key import own_key
from ajet.run.progress import step_line
from ajet.run.recording import Recording
from ajet.run.run_hooks import enter_run_hooks
from ajet.run.serving.batch import Batch
from ajet.run.serving.held_out import conclude_late, validate_served, who_validates, will_validate
from ajet.run.summary import advise_given_answers, finish
from ajet.run.training import Training, open_store
from ajet.schema.episode import Episode, Group, Outcome, episodes_of
from ajet.store import RunStore, require_own_store
from ajet.task_reader import TaskOrder

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig, Experiment
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.rollout.served import Desk, Keeper
    from ajet.run.parts import Parts
    from ajet.schema.task import Task
    from ajet.store import Store
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader

ADMIN_KEY = "AJET_ADMIN_KEY"
"""Environment variable with the key that opens episodes."""
BACKLOG = 2
"""Batches of complete groups that may wait for the trainer; then new episodes are refused for a while."""


@dataclass(slots=True)
class ServeParts:
    """The parts that serving works with."""

    experiment: Experiment
    backbone: Backbone
    gateway: Gateway
    desk: Desk
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
                training = Training.begin(served, run, served.store, served.tasks, _show_step)
                _take_up(served)
            with frozen_start():
                _open_doors(served, run, key, given=given)
                if trains:
                    train_served(training, served, interrupts)
                    finish(run, ends_idle=False)
                else:
                    record_served(served.desk, run, recording, interrupts)
    return 0


@contextmanager
def assembled(experiment: Experiment, run: RunDirectory, *, keeper: Keeper | None = None) -> Iterator[ServeParts]:
    """Open all parts and close them whatever happens. `keeper`: where ends go before they are acknowledged; None: to
    the store, from which the trainer takes them. Raises UserError."""
    from ajet.backbone import open_backbone
    from ajet.rollout.served import Desk
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
        gateway = open_gateway(experiment, backbone, adapters=backbone.adapters, opens_later=True)
        if reader is not None and backbone.trains:
            held_out = who_validates(experiment, run, reader, judge, backbone, gateway)
        desk = Desk(
            experiment,
            gateway,
            judge,
            store,
            tasks,
            run_id=run.run_id,
            split="train" if backbone.trains else "debug",
            backlog=BACKLOG * settings.data.train_batch_size if backbone.trains else None,
            keeper=keeper or store,
            held_out=_held_out(experiment, reader, backbone),
        )
        yield ServeParts(experiment, backbone, gateway, desk, store, tasks, held_out)
    finally:
        for part in (desk, held_out.rollout if held_out is not None else None, gateway, backbone):
            if part is not None:
                part.close()


def record_served(desk: Desk, run: RunDirectory, recording: Recording, interrupts: Interrupts) -> None:
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
                keep(_alone([desk.results.get(), *_rest(desk)]))
    except KeyboardInterrupt:
        desk.close()
        keep(_alone(_rest(desk)))
        recording.measure(last=True)
        raise


def _can_fill(batch: Batch, desk: Desk, settings: AjetConfig) -> bool:
    """Whether what goes on at the desk may still fill the batch, or has."""
    return desk.expects or batch.whole(settings)


def _take_up(served: ServeParts) -> None:
    """Go on with what an earlier server acknowledged and its last checkpoint has not used."""
    count = served.desk.restore()
    if count:
        logger.info("{} episodes that were finished and not trained on are taken up again", count)


def train_served(training: Training, served: ServeParts, interrupts: Interrupts) -> None:
    """Train on groups as they come in, until `total_training_steps` (None: for ever). Ends by KeyboardInterrupt after
    saving, with what was not trained on recorded."""
    settings, run, desk = training.parts.experiment.ajet, training.run, served.desk
    trainer = settings.trainer_common
    last = trainer.total_training_steps
    batch, late = Batch(training.step + 1), list[Episode]()
    try:
        validate_served(training, served.held_out)
        while last is None or training.step < last:
            began = time.monotonic()
            run.status.set(phase="serving", step=batch.step)
            with interrupts.patient(trainer.grace, worth=partial(_can_fill, batch, desk, settings)):
                while not batch.whole(settings):
                    training.show_depths(closed=len(batch.groups), open=desk.playing)
                    with suppress(queue.Empty):  # its time is over
                        result = desk.results.get(timeout=batch.patience(settings.serve.batch_seconds))
                        batch.add(result, training.parts.backbone.version, trainer.max_staleness)
                if will_validate(training, served.held_out, batch.step):
                    batch.held_out, late = [], batch.held_out  # a step has the numbers of one validation
                played = FirstHalf(
                    began, batch.groups, unused=batch.unused, alone=batch.alone, held_out=batch.held_out
                )  # fmt: skip
                learn(training, played, interrupts)
            if training.exhausted:
                _warn_idle(training)
            batch, late = Batch(training.step + 1, held_out=late), []
            validate_served(training, served.held_out)
            if batch.held_out and will_validate(training, served.held_out, batch.step):
                with interrupts.held():  # there is no step between that is without the server's own
                    training.torn = True
                    conclude_late(batch.held_out, training, served.held_out)
                    served.store.use([episode.order for episode in batch.held_out], training.step)
                    batch.held_out, training.torn = [], False
            if trainer.save_freq > 0 and training.step % trainer.save_freq == 0:
                with interrupts.held():
                    training.save()
    except Preempted:
        if training.torn:
            training.warn_torn()
        else:
            logger.warning(
                "asked to end: saving step {}; what is not trained on waits for the next start", training.step
            )
        desk.close()
        if training.step and not training.torn:
            training.save()
        raise
    except KeyboardInterrupt:
        if training.torn:
            training.warn_torn()
            desk.close()  # what is not trained on waits for the next start
            raise
        logger.warning("interrupted: saving what was learned up to step {}", training.step)
        _leave(training, served, batch, late)
        raise
    _leave(training, served, batch, late)


def _warn_idle(training: Training) -> None:
    """Say it each time that so many steps have passed: the server goes on, for its clients do."""
    idle, training.idle = training.idle, 0
    rows = [row for row in training.run.metrics.rows() if "tasks" in row][-idle:]
    logger.warning("nothing could be learned in the last {} steps: {}", idle, why_nothing(rows))
    if is_never_right(rows):
        logger.warning("{}", advise_given_answers(training.run.experiment.ajet))


def _leave(training: Training, served: ServeParts, batch: Batch, late: list[Episode]) -> None:
    """End what is under way, record what was not trained on with the last step, save. Before the first step there is
    no checkpoint to record it with: then it stays in the store, too. `late`: held-out attempts that the batch was not
    to have."""
    served.desk.close()
    run, left = training.run, Batch(training.step)
    done = batch.step == training.step  # the interrupt came after its step
    for result in [*(() if done else batch.results), *late, *_rest(served.desk)]:
        left.add(result)
    unused: Unused = {"oversampled": left.groups, **left.unused}
    groups = [group for each in unused.values() for group in each]
    if groups:
        outcomes: dict[str, Outcome] = {}
        for reason, each in unused.items():
            outcomes |= discarded(each, reason)
        run.episodes.write(left.step, "train", episodes_of(groups), outcomes)
    if left.alone:
        run.episodes.write(left.step, "debug", left.alone)
    if training.step:
        conclude_late(left.held_out, training, served.held_out)
        for reason, each in unused.items():
            served.store.discard([group.order for group in each], left.step, reason)
            training.left += [group.order for group in each if group.order >= 0]
        served.store.use([episode.order for episode in (*left.alone, *left.held_out)], left.step)
        training.save()


def _rest(desk: Desk) -> list[Group | Episode]:
    """The groups and episodes that are there already."""
    found: list[Group | Episode] = []
    while True:
        try:
            found.append(desk.results.get_nowait())
        except queue.Empty:
            return found


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
