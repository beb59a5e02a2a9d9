"""The record of a verl that ajet did not launch: one process of the run writes it, the agent-loop processes hand in.

Invariants: what a session awaited is on the disk; one writer a run (a named actor of the job, which ends with it), so
that groups have the same number in all processes; the first line says what ajet does not promise here.
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
    "verl was not launched by ajet and owns the steps: tokens are exact and each episode is recorded in {}; there is "
    "no accounting of tokens, no proof of a step, and no resume by ajet, and rewards stand in verl's own log. "
    "`ajet --backbone verl` has them."
)


class PlainRecord:
    """Lives in an actor."""

    def __init__(self, yaml: str, base: Path, root: Path) -> None:
        experiment = Experiment.from_text(yaml, base, root=root)
        self._run = RunDirectory.open(experiment, root=root, kind="debug")
        self._run.status.set(phase="verl's", step=0)
        self._places: dict[str, int] = {}
        logger.warning(FIRST, self._run.path)

    def run_id(self) -> str:
        """The id of this run."""
        return self._run.run_id

    def place(self, uid: str) -> int:
        """The number of verl's group."""
        return self._places.setdefault(uid, len(self._places))

    def keep(self, group: Group) -> None:
        """Write its episodes. On return they are on the disk."""
        first = group.episodes[0]
        self._run.episodes.write(first.step, first.split, group.episodes)
        self._run.status.set(step=first.step)


class RecordClient:
    """The actor that keeps the record, from any process of the run."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def run_id(self) -> str:
        """See PlainRecord."""
        import ray

        return str(ray.get(self._actor.run_id.remote()))

    async def place(self, uid: str) -> int:
        """See PlainRecord."""
        return int(await self._actor.place.remote(uid))

    async def keep(self, group: Group) -> None:
        """See PlainRecord."""
        await self._actor.keep.remote(group)


def open_record(experiment: Experiment) -> RecordClient:
    """The run's, made by whoever asks first."""
    import ray

    actor: Any = ray.remote(PlainRecord)
    arguments = experiment.dump_resolved(), experiment.yaml_path, experiment.root
    return RecordClient(actor.options(name=NAME, get_if_exists=True, num_cpus=0).remote(*arguments))
