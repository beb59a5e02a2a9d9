"""`trainer_common.mode: async` in one command: a sampler as a child of the trainer, over a store in its run folder.

Invariant: both sides are those of `ajet train --from-store` and `ajet sample`, and nothing else; the child ends with
the trainer, however that ends. It begins before the trainer loads anything, so that both load at once; a store that it
made for a trainer that never came goes with it, and the folder is one of which nothing came. On a CPU the cores are
dealt out by plan, half to each side, so that neither slows the other down: the engine's copy of the weights is what
that costs in memory (`ajet plan` says how much), and where both take theirs of one device's, a vLLM gets what the
trainer's plan leaves. Its own grace is none: a trainer that is asked to end has it begin nothing new, and waits for
what it plays (`StoreSource`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from loguru import logger

from ajet.backbone.decoupled.terms import OVER
from ajet.commands.kept_process import KeptProcess
from ajet.record.processors import cores
from ajet.schema.errors import UserError
from ajet.store import Address, open_shared
from ajet.train.sources.store import SamplerPool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ajet.config import Experiment
    from ajet.config.schema.trainer_common import TrainerCommon
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode

LEAST = 16
"""A sampler gets at least one part in so many of the cache that it wants; with less it samples next to nothing."""
STORE = "store.db"
"""In the run's folder."""
LITTLE = 0.1
"""Part of an agent's time that it must spend outside of the model for two sides to be worth while."""


def half_of_the_cores(experiment: Experiment) -> Experiment:
    """The settings with torch's threads of one side, where the machine's cores are to be shared and nobody said how."""
    from ajet.backbone.local.machine import choose_device

    trainer = experiment.ajet.trainer_common
    threads = threads_of_a_side(trainer)
    if threads == trainer.threads or choose_device(trainer.device).type != "cpu":
        return experiment
    return experiment.with_defaults({"ajet.trainer_common.threads": threads})


def limit_sampler_cache(experiment: Experiment) -> list[str]:
    """Return the override of a sampler whose vLLM must leave memory to the trainer; none where there is enough.

    vLLM measures what is free as it begins, before the trainer's first update takes its part of the same device.
    """
    rollout = experiment.ajet.rollout
    if rollout.engine != "vllm" or rollout.vllm.base_url is not None or rollout.vllm.cache_gib is not None:
        return []
    from ajet.train.footprint import GIB, estimate_needs

    needs = estimate_needs(experiment, train=0, validates=False)
    if needs is None or needs.local is None or needs.free is None:
        return []
    wanted = needs.local.cache
    left = needs.free - needs.local.peak - (needs.local.sampler - wanted)
    if left >= wanted:
        return []
    return [f"ajet.rollout.vllm.cache_gib={max(left, wanted // LEAST) / GIB:.6f}"]


def threads_of_a_side(trainer: TrainerCommon) -> int | Literal["auto"]:
    """If it computes on a CPU."""
    if trainer.threads != "auto" or os.environ.get("OMP_NUM_THREADS"):
        return trainer.threads
    return max(1, cores() // 2)


@contextmanager
def sampler_beside(experiment: Experiment, run: RunDirectory) -> Iterator[SamplerPool]:
    """Within the block a sampler plays for a trainer of its store. Raises UserError."""
    store = Address.of(f"sqlite:{run.path / STORE}")
    command = [sys.executable, "-m", "ajet.cli.launcher", "sample", "--conf", str(run.path / "resolved.yaml")]
    command += ["--store", store.shown, "--name", "sampler", "--no-services", "--grace", "0"]
    command += [f"ajet.trainer_common.threads={threads_of_a_side(experiment.ajet.trainer_common)}"]
    command += limit_sampler_cache(experiment)
    log = run.path / "logs" / f"{run.path.name}_sampler_0.log"
    child = KeptProcess("sampler", command, experiment.base.resolve(), log)
    anew = not (run.path / STORE).exists()
    if not _is_over(run.path / STORE):
        child.start()

    def watch() -> None:  # while groups are waited for: the policy of this run is announced
        if not child.started:
            child.start()
        child.require_running()

    try:
        yield SamplerPool(store, is_colocated=True, watch=watch, on_first_batch=warn_of_no_waiting)
    finally:
        child.close()
        if anew:
            _remove_if_untrained(run.path / STORE)


def _remove_if_untrained(path: Path) -> None:
    """A store that no trainer has opened. What cannot be opened stays: why the run ends is told, and not this."""
    if not path.exists():
        return
    with suppress(UserError):
        store = open_shared(Address(path))
        try:
            trained = store.announced() is not None or any(each.role == "trainer" for each in store.members())
        finally:
            store.disconnect()
        if not trained:
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                each.unlink(missing_ok=True)


def _is_over(path: Path) -> bool:
    """Whether the last that samplers were told is that the training has ended: one that begins before this trainer says
    otherwise would end at once."""
    if not path.exists():
        return False
    store = open_shared(Address(path))
    try:
        announced = store.announced()
    finally:
        store.disconnect()
    return announced is not None and bool(announced.policy.told.get(OVER))


def warn_of_no_waiting(episodes: Iterable[Episode]) -> None:
    """Warn where the agents of a step waited for nothing but the model."""
    shares = [
        max(0.0, 1.0 - sum(call.ended - call.started for call in each.calls) / (each.ended - each.started))
        for each in episodes
        if each.calls and each.ended > each.started
    ]
    if shares and (share := fmean(shares)) < LITTLE:
        logger.warning(
            "trainer_common.mode: async cannot win here: the agents spend {:.0%} of their time outside of the model, "
            "so there is nothing to overlap with on one device; sync is as fast, and its tokens are never old",
            share,
        )
