"""Held-out tasks of `ajet serve`: the task reader's, which the server plays itself where the YAML names an agent, and
those that clients play, given out by the server or their own.

Invariant: the numbers of a step's validation are those of one of the two, and in one row. No update is made while the
server plays, so that a checkpoint may be picked by what it measured, as in a launch; clients go on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from ajet.run.launch import warn_of_unconfined
from ajet.schema.episode import Episode, episodes_of
from ajet.train.loop import due, owes_validation, validate
from ajet.train.validation import conclude_held_out, groups_by_task

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import Experiment
    from ajet.gateway import Gateway
    from ajet.record import RunDirectory
    from ajet.task_judge import Judge
    from ajet.task_reader import OpenedReader
    from ajet.train.parts import Parts
    from ajet.train.session import Training


def who_validates(
    experiment: Experiment,
    run: RunDirectory,
    reader: OpenedReader,
    judge: Judge,
    backbone: Backbone,
    gateway: Gateway,
) -> Parts | None:
    """The parts by which a launch would play the held-out tasks, where there are some and the YAML names an agent.
    Raises UserError, as a launch does."""
    from ajet.rollout import Rollout
    from ajet.rollout.wiring import workflow_of
    from ajet.run.services import require_services
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


def validate_served(training: Training, held_out: Parts | None) -> None:
    """Play the held-out tasks if they are due, while clients go on and no update is made."""
    last = training.parts.experiment.ajet.trainer_common.total_training_steps
    if held_out is not None and owes_validation(training, last):
        validate(training, held_out)
        training.saved_step = -1  # a checkpoint of this step there may be: it lacks what was just measured


def will_validate(training: Training, held_out: Parts | None, step: int) -> bool:
    """Whether the server plays the held-out tasks once this step, which is to come, is over."""
    trainer = training.parts.experiment.ajet.trainer_common
    last = step == trainer.total_training_steps and bool(training.last_validation)
    return held_out is not None and (due(step, trainer.test_freq) or last)


def conclude_late(episodes: list[Episode], training: Training, held_out: Parts | None) -> None:
    """Conclude clients' held-out attempts that are recorded with a step that is over: it has the numbers of one
    validation."""
    run, step = training.run, training.step
    own = will_validate(training, held_out, step)  # if not now, by the server that goes on
    if own or any(row["step"] == step and "validation/episodes" in row for row in run.metrics.rows()):
        if episodes:
            run.episodes.write(step, "validation", episodes_of(groups_by_task(episodes)))
            logger.info(
                "{} held-out attempts of clients are recorded with step {} and are no part of its validation's numbers",
                len(episodes),
                step,
            )
        return
    conclude_held_out(episodes, run, step=step, on_step=training.on_step, total=training.total_steps)
