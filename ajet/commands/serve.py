"""`ajet serve`: serves a model to external agents, and trains it on their episodes if the backbone trains.

Invariants: with a training backbone, every episode that a client finishes is trained on once or recorded with the
reason, even if the server is killed in between. The store holds the episode until a checkpoint has used it. Without
training an episode's end is acknowledged when it is recorded. The admin key is in no file and no log: it comes from the
environment, or is shown once.
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

from ajet.algorithm.staleness import log_staleness
from ajet.commands.http_server import read_key
from ajet.commands.launch import record_run, warn_of_unconfined
from ajet.commands.launch_checks import refuse_untrainable
from ajet.commands.progress import format_step
from ajet.commands.recording import EpisodeRecording
from ajet.commands.services import enter_run_hooks
from ajet.commands.summary import print_summary
from ajet.record.console import console, counted, print_line, printable
from ajet.rollout.components import open_gateway, require_gateway
from ajet.rollout.runtime import freeze_start
from ajet.schema.episode import Episode, Group
from ajet.store import RunStore, Store, require_own_store
from ajet.task_reader import OpenedReader, TaskOrder
from ajet.train.footprint import rehearse_update
from ajet.train.interrupts import Interrupts
from ajet.train.loop import train
from ajet.train.session import TrainingSession, open_store
from ajet.train.sink import RunSink
from ajet.train.sources.served import ServedSource
from ajet.train.sources.served_batch import take_results

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import Experiment
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.rollout.served import EpisodeRegistry, EpisodeStore
    from ajet.schema.task import Task
    from ajet.task_judge import Judge
    from ajet.train.parts import RunParts

ADMIN_KEY = "AJET_ADMIN_KEY"
"""Environment variable with the key for opening episodes."""
BACKLOG = 2
"""Maximum number of complete batches waiting for the trainer. Beyond the limit new episodes are refused."""


@dataclass(slots=True)
class ServeParts:
    """The opened components of a running `ajet serve`."""

    backbone: Backbone
    gateway: Gateway
    desk: EpisodeRegistry
    store: Store
    tasks: TaskOrder | None
    """Tasks of the task reader. None: clients bring all tasks."""
    held_out: RunParts | None = None
    """Plays the task reader's held-out tasks on the same gateway. None: no such tasks, or no agent for them."""


def serve(experiment: Experiment, *, resume: str | None = None, fresh: bool = False, rehearsal: bool = True) -> int:
    """Serve external agents until Ctrl-C or the last training step, and return the exit code 0.

    Args:
        resume: "auto", "never" or a checkpoint. None: as the settings say.
        fresh: True to start a new run.
        rehearsal: True to make a trial update before serving.

    Raises:
        UserError: The user can correct the cause.
        KeyboardInterrupt: At Ctrl-C, after saving.
    """
    from ajet.record import RunDirectory

    experiment.require_ready(serving=True)
    refuse_untrainable(experiment, remote=True)
    given_key = read_key(ADMIN_KEY, do="unset it: a random key is then created and shown")
    is_training = "trains" in experiment.backbone.can
    experiment = experiment.adapt_to_serve() if is_training else experiment
    run = RunDirectory.open(
        experiment,
        root=experiment.root,
        kind="train" if is_training else "serve",
        resume=resume or experiment.ajet.trainer_common.resume,
        fresh=fresh,
    )
    experiment = run.experiment
    with record_run(experiment, run, serving=True):
        run.status.set(phase="loading", step=0, pid=os.getpid())
        interrupts = Interrupts()
        recording = EpisodeRecording(run)
        with (
            interrupts.install(),
            enter_run_hooks(experiment, run.path),
            assemble_server(experiment, run, keeper=None if is_training else recording) as served,
        ):
            if is_training:
                trainer = experiment.ajet.trainer_common
                log_staleness(trainer, trainer.max_staleness)
                if rehearsal:
                    rehearse_update(experiment, served.backbone)
                sink = RunSink(experiment, run, _show_step)
                session = TrainingSession(sink, served.backbone, served.store, served.tasks, interrupts)
                if count := served.desk.restore():
                    logger.info("{} finished episodes that were not trained yet are restored", count)
            with freeze_start():
                _open_routes(served, run, given_key)
                if is_training:
                    train(session, ServedSource(served.desk, experiment.ajet, served.held_out))
                    print_summary(run, ends_idle=False)
                else:
                    record_served(served.desk, run, recording, interrupts)
    return 0


@contextmanager
def assemble_server(
    experiment: Experiment, run: RunDirectory, *, keeper: EpisodeStore | None = None
) -> Iterator[ServeParts]:
    """Open all components of a server, and close them after the block.

    Args:
        keeper: records an episode before its end is acknowledged. None: the store that the trainer reads.

    Raises:
        UserError: a component cannot be opened.
    """
    from ajet.backbone import open_backbone
    from ajet.rollout.served import EpisodeRegistry
    from ajet.task_judge import open_judge
    from ajet.task_judge.registry import prepare_judge
    from ajet.task_reader import open_reader
    from ajet.task_reader.overlong import drop_overlong

    settings = experiment.ajet
    backbone = gateway = desk = held_out = None
    try:
        require_gateway(settings)
        if "trains" in experiment.backbone.can:
            require_own_store(experiment, run.path)
        reader = open_reader(experiment) if experiment.has_tasks else None
        prepare_judge(experiment, run)
        judge: Judge = open_judge(experiment, reader_judge=reader.judge if reader else None)
        task_list = reader.json_tasks("train") if reader else None
        backbone = open_backbone(experiment)
        if judge.ranks is not None:
            timing = (
                "ranks the attempts at a task once all of them have ended"
                if backbone.trains
                else "scores each attempt alone, without ranking"
            )
            logger.info("Clients end their attempts one by one, so the judge {} {}.", judge.ranks, timing)
        tasks = None
        if reader is not None and task_list:
            fitting_tasks = drop_overlong(task_list, settings.data, backbone.tokenizer)
            tasks = TaskOrder(fitting_tasks, seed=settings.seed, shuffle=settings.data.shuffle)
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
            held_out=list_held_out(experiment, reader, backbone),
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
) -> RunParts | None:
    """Return the components that play held-out tasks on the server, as a training run does.

    Returns:
        None if the YAML has no held-out tasks, no validation, or no agent for them.

    Raises:
        UserError: A component cannot be opened, as in a training run.
    """
    from ajet.commands.services import require_services
    from ajet.rollout import Rollout
    from ajet.rollout.components import load_workflow
    from ajet.train.footprint import require_tools_fit
    from ajet.train.parts import RunParts, pins_of

    settings = experiment.ajet
    trainer = settings.trainer_common
    if not reader.has("validation") or not (trainer.test_freq > 0 or trainer.val_before_train):
        return None
    if settings.rollout.user_workflow is None:
        logger.info(
            "the server runs no held-out tasks, because rollout.user_workflow is not set; clients can request "
            "them with held_out"
        )
        return None
    if settings.rollout.deterministic:
        logger.warning(
            "rollout.deterministic is set: the server runs no held-out tasks, because clients call at arbitrary times"
        )
        return None
    warn_of_unconfined(experiment)
    require_services(experiment)
    require_tools_fit(experiment)
    workflow = load_workflow(experiment)
    rollout = Rollout(experiment, gateway, workflow, judge, run_id=run.run_id, pins=pins_of(run))
    parts = RunParts(experiment, reader, judge, workflow, backbone, gateway, rollout)
    logger.info("the server validates on {} held-out tasks with {}", len(parts.tasks("validation")), workflow.__name__)
    return parts


def record_served(
    desk: EpisodeRegistry, run: RunDirectory, recording: EpisodeRecording, interrupts: Interrupts
) -> None:
    """Show and record episodes as they end. At an interrupt, record what is left, and raise the interrupt again.

    Args:
        desk: The server's open and ended episodes.
    """
    run.status.set(phase="serving", step=0)

    def record_results(results: list[Group | Episode]) -> None:
        episodes = [result for result in results if isinstance(result, Episode)]
        recording.record_missing(episodes)
        recording.log_metrics()
        for episode in episodes:
            _show_episode(episode)

    try:
        with interrupts.grace_period(run.experiment.ajet.trainer_common.grace, may_complete=lambda: desk.has_pending):
            while True:
                record_results([desk.results.get(), *take_results(desk)])
    except KeyboardInterrupt:
        desk.close()
        record_results(take_results(desk))
        recording.log_metrics(is_last=True)
        raise


def list_held_out(experiment: Experiment, reader: OpenedReader | None, backbone: Backbone) -> Sequence[Task]:
    """Return the held-out tasks that clients may request, or none if they cannot be read.

    A reader may name a default split that its data lack. Its other tasks can still be served.
    """
    from ajet.schema.errors import TaskError
    from ajet.task_reader.overlong import drop_overlong

    if reader is None or not reader.has("validation"):
        return ()
    try:
        return drop_overlong(reader.tasks("validation"), experiment.ajet.data, backbone.tokenizer)
    except TaskError as error:
        logger.warning("clients can request no held-out tasks: {}", error.what)
        return ()


def _open_routes(served: ServeParts, run: RunDirectory, given_key: str | None) -> None:
    """Start to answer clients, and print the address, the key if it was created, and an example.

    Args:
        given_key: Admin key from the environment. None: a random key is created and shown.
    """
    from ajet.rollout.served import make_routes

    key = secrets.token_urlsafe(24) if given_key is None else given_key
    served.gateway.add_routes(make_routes(served.desk, key))
    root = served.gateway.base_url.removesuffix("/v1")
    run.status.set(phase="serving", url=root)
    verb = "training" if served.backbone.trains else "recording"
    console.print(Text.assemble("Serving on ", (root, "bold"), f" · {verb} in {run.path}"), soft_wrap=True)
    if given_key is None:
        console.print(f"Admin key (shown only once; set {ADMIN_KEY} to use your own):", markup=False)
        print_line(key)
    body = "{}" if served.tasks is not None else '{"task": "What is 1 + 2?"}'
    console.print(
        f"Open an episode:  curl -X POST {root}/episodes -H \"Authorization: Bearer ${ADMIN_KEY}\" -d '{body}'",
        "\nPress Ctrl-C to stop the server.",
        sep="",
        markup=False,
        soft_wrap=True,
    )


def _show_step(step: int, total: int, metrics: dict[str, float]) -> None:
    """Print the line of an ended step or validation. The end of the serving is open, so no last step is shown."""
    print_line(format_step(step, 0, metrics))


def _show_episode(episode: Episode) -> None:
    """Print a line on an ended episode: task, status, reward or failure, and counts."""
    parts = [f"{_join_lines(episode.task.task_id[:40])}: {episode.status}"]
    parts += [f"reward {episode.reward:g}"] if episode.reward is not None else []
    parts += [f"{episode.failure.boundary}: {_join_lines(episode.failure.message[:200])}"] if episode.failure else []
    parts += [counted(len(episode.calls), "call"), counted(episode.sampled_tokens, "token")]
    parts.append(f"{episode.ended - episode.started:.1f} s")
    print_line(", ".join(parts))


def _join_lines(text: str) -> str:
    """Return a client's text on one line, with invisible characters replaced."""
    return " ".join(printable(text).split())
