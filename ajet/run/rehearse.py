"""Before step 1: whether an update of the longest samples that the settings allow fits into the memory.

Invariant: nothing of the run is changed by it. It is left out, and that is said in a line, where four times the
estimate is free, where it would take a processor longer than `LONGEST_S`, and where nothing is known of the model's
size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from loguru import logger

from ajet.run.footprint import SMALL, Footprint, gib
from ajet.run.outlook import span
from ajet.run.room import room_of

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig, Experiment

FLOPS = 5e10
"""A second: what a processor of few cores does in such a pass, about."""
LONGEST_S = 60.0


class Rehearsing(Protocol):
    """The parts that it needs."""

    experiment: Experiment
    backbone: Backbone


def rehearse(parts: Rehearsing) -> None:
    """Do it or say why not. Raises UserError where the memory does not suffice."""
    experiment, backbone = parts.experiment, parts.backbone
    room = room_of(experiment, train=0, validates=False)
    if room is None or room.local is None:
        logger.info("No rehearsal of an update: how large the model is cannot be told from its files.")
        return
    if why := left_out(room.local, room.memory, processor=room.processor):
        logger.info("No rehearsal of an update: {}.", why)
        return
    logger.info("Rehearsing an update: a pass over {:,} tokens (--no-rehearsal leaves it out)", room.local.longest)
    done = backbone.rehearse(lengths(room.local, experiment.ajet))
    logger.info("The rehearsal took {} and {} of memory at its peak.", span(done.seconds), gib(done.peak))


def left_out(local: Footprint, free: int | None, *, processor: bool) -> str:
    """Why there is no rehearsal; "" where there is to be one. `processor`: no GPU computes it."""
    if free is not None and SMALL * local.peak < free:
        return f"training takes about {gib(local.peak)}, and {gib(free)} are free"
    if processor and local.flops > LONGEST_S * FLOPS:
        return (
            f"a pass over {local.longest:,} tokens would take this processor about {span(local.flops / FLOPS)}; the "
            f"estimate is {gib(local.peak)}" + (f", and {gib(free)} are free" if free is not None else "")
        )
    return ""


def lengths(local: Footprint, settings: AjetConfig) -> list[int]:
    """The lengths of the samples in the largest pass: as many of the longest ones as fit into `micro_batch_tokens`."""
    count = max(1, min(settings.trainer_common.micro_batch_tokens, local.longest) // local.longest_sample)
    return [local.longest_sample] * count
