"""The record of a verl run not launched by ajet: one actor writes, the agent-loop processes send.

Invariants: an awaited episode is on disk. A run has one writer, a named actor with the lifetime of the job, so all
processes use the same group numbers. The first log line lists the guarantees of ajet missing in such a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config import Experiment
from ajet.record import RunDirectory
from ajet.schema.episode import Group

if TYPE_CHECKING:
    from pathlib import Path

NAME = "ajet-plain-record"
FIRST = (
    "ajet did not start verl, so verl controls the steps: tokens are exact and each episode is recorded in {}, "
    "but ajet does not count tokens, check steps or resume the run, and rewards are in verl's own log. `ajet "
    "--backbone verl` does all of this."
)


class PlainRecord:
    """Ray actor that writes the run's record (episodes and status) for rollouts played in other processes."""

    def __init__(self, yaml: str, base: Path, root: Path) -> None:
        experiment = Experiment.from_text(yaml, base, root=root)
        self._run = RunDirectory.open(experiment, root=root, kind="debug")
        self._run.status.set(phase="verl's", step=0)
        self._places: dict[str, int] = {}
        logger.warning(FIRST, self._run.path)

    def run_id(self) -> str:
        """Return the id of this run."""
        return self._run.run_id

    def place(self, uid: str) -> int:
        """Return the position recorded for verl's group `uid`, assigned at the first call: 0, 1, 2, …"""
        return self._places.setdefault(uid, len(self._places))

    def keep(self, group: Group) -> None:
        """Write the episodes of a group to disk."""
        first = group.episodes[0]
        self._run.episodes.write(first.step, first.split, group.episodes)
        self._run.status.set(step=first.step)


class RecordClient:
    """Calls the record's actor from any process of the run."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def run_id(self) -> str:
        """Return the id of this run."""
        import ray

        return str(ray.get(self._actor.run_id.remote()))

    async def place(self, uid: str) -> int:
        """Return the position recorded for verl's group `uid`, equal in all processes."""
        return int(await self._actor.place.remote(uid))

    async def keep(self, group: Group) -> None:
        """Write the episodes of a group; they are on disk on return."""
        await self._actor.keep.remote(group)


def open_record(experiment: Experiment) -> RecordClient:
    """Return the run's record; the first caller creates the actor."""
    import ray

    actor: Any = ray.remote(PlainRecord)
    arguments = experiment.dump_resolved(), experiment.yaml_path, experiment.root
    return RecordClient(actor.options(name=NAME, get_if_exists=True, num_cpus=0).remote(*arguments))
