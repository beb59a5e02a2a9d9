"""`trainer_common.mode: async` in one command: a sampler as a child process of the trainer, on the same machine.

Both exchange episodes through a store in the run folder. Invariants: both sides are the same as in `ajet train
--from-store` and `ajet sample`. The child ends with the trainer. It starts before the trainer loads anything, and both
load in parallel. A store that no trainer opened is removed with the child. On a CPU each side gets half of the cores,
to avoid slowing the other side down. On one GPU, vLLM gets the memory that the trainer's estimate leaves. The child has
no grace period: a trainer that is to end starts no new groups, and waits for the groups in flight (`StoreSource`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from loguru import logger

from ajet.backbone.decoupled.terms import OVER
from ajet.commands.supervised_process import SupervisedProcess
from ajet.record.processors import count_cores
from ajet.schema.errors import UserError
from ajet.store import Address, open_shared
from ajet.train.sources.store import SamplerPool

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.config.schema.trainer_common import TrainerConfig
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode

LEAST = 16
"""A sampler gets at least the fraction 1/LEAST of the desired cache. With less a sampler can hardly sample."""
STORE = "store.db"
"""File in the run's folder."""
LITTLE = 0.1
"""Minimum share of time spent by agents outside of the model for the mode to pay off."""


def share_cores(experiment: Experiment) -> Experiment:
    """Return the experiment with half of the cores for torch, if trainer and sampler share a CPU.

    A configured number of threads is not changed.
    """
    from ajet.backbone.local.machine import choose_device

    trainer = experiment.ajet.trainer_common
    threads = count_threads_per_side(trainer)
    if threads == trainer.threads or choose_device(trainer.device).type != "cpu":
        return experiment
    return experiment.replace_defaults({"ajet.trainer_common.threads": threads})


def limit_sampler_cache(experiment: Experiment) -> list[str]:
    """Return overrides for the sampler that leave the trainer its GPU memory, or [] if all fits.

    vLLM measures free memory at its start, before the trainer's first update takes memory of the same device.
    """
    rollout = experiment.ajet.rollout
    if rollout.engine != "vllm" or rollout.vllm.base_url is not None or rollout.vllm.cache_gib is not None:
        return []
    from ajet.train.footprint import GIB, estimate_needs

    needs = estimate_needs(experiment, train=0, validates=False)
    if needs is None or needs.local is None or needs.free is None:
        return []
    requested_cache = needs.local.cache
    available_cache = needs.free - needs.local.peak - (needs.local.sampler - requested_cache)
    if available_cache >= requested_cache:
        return []
    return [f"ajet.rollout.vllm.cache_gib={max(available_cache, requested_cache // LEAST) / GIB:.6f}"]


def count_threads_per_side(trainer: TrainerConfig) -> int | Literal["auto"]:
    """Return the number of torch threads that trainer and sampler get each on a CPU, or "auto" as configured."""
    if trainer.threads != "auto" or os.environ.get("OMP_NUM_THREADS"):
        return trainer.threads
    return max(1, count_cores() // 2)


@contextmanager
def run_colocated_sampler(experiment: Experiment, run: RunDirectory) -> Iterator[SamplerPool]:
    """Within the block, run a sampler process for the run's store. Yield the sampler pool for the trainer.

    Raises:
        UserError: The store cannot be opened.
    """
    store = Address.of(f"sqlite:{run.path / STORE}")
    command = [sys.executable, "-m", "ajet.cli.launcher", "sample", "--conf", str(run.path / "resolved.yaml")]
    command += ["--store", store.shown, "--name", "sampler", "--no-services", "--grace", "0"]
    command += [f"ajet.trainer_common.threads={count_threads_per_side(experiment.ajet.trainer_common)}"]
    command += limit_sampler_cache(experiment)
    log = run.path / "logs" / f"{run.path.name}_sampler_0.log"
    child = SupervisedProcess("sampler", command, experiment.base.resolve(), log)
    is_new_store = not (run.path / STORE).exists()
    if not _is_over(run.path / STORE):
        child.start()

    def watch() -> None:  # called at the announcement of the run's policy
        if not child.started:
            child.start()
        child.require_running()

    try:
        yield SamplerPool(store, is_colocated=True, watch=watch, on_first_batch=warn_of_no_waiting)
    finally:
        child.close()
        if is_new_store:
            _remove_if_untrained(run.path / STORE)


def _remove_if_untrained(path: Path) -> None:
    """Remove the run's store if no trainer has opened it.

    An unreadable store stays; the run reports the reason for its end.
    """
    if not path.exists():
        return
    with suppress(UserError):
        store = open_shared(Address(path))
        try:
            was_trained = store.announced() is not None or any(member.role == "trainer" for member in store.members())
        finally:
            store.disconnect()
        if not was_trained:
            for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
                file.unlink(missing_ok=True)


def _is_over(path: Path) -> bool:
    """Return True if the store says that the training has ended, so that a new sampler would end at once."""
    if not path.exists():
        return False
    store = open_shared(Address(path))
    try:
        announced = store.announced()
    finally:
        store.disconnect()
    return announced is not None and bool(announced.policy.told.get(OVER))


def warn_of_no_waiting(episodes: Iterable[Episode]) -> None:
    """Warn if agents spend little time outside of the model, so that sampling and training cannot overlap."""
    shares = [
        max(0.0, 1.0 - sum(call.ended - call.started for call in episode.calls) / (episode.ended - episode.started))
        for episode in episodes
        if episode.calls and episode.ended > episode.started
    ]
    if shares and (share := fmean(shares)) < LITTLE:
        logger.warning(
            "trainer_common.mode: async cannot save time here: the agents spend {:.0%} of their time outside of "
            "the model, so sampling and training cannot overlap on one device; mode: sync is as fast and has no "
            "stale samples",
            share,
        )
