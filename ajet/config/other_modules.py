"""Modules of AgentJet's package that are not here, and what does their work.

Invariant: an import of one fails as that of any module that is not there does, and its sentence says what to write;
nothing is found that is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

_SERVED = (
    "agents elsewhere talk to `ajet serve` by ajet.client, whose `Client` is what SwarmClient was; a workflow is given "
    "its tuner"
)
_READERS = "a reader of your own is a class by reference, `task_reader.type: reader.py->MyReader`"
_INNER = "an inner module of AgentJet, and nothing stands for it"

INSTEAD: Mapping[str, str] = {
    "ajet.tuner_lib": _SERVED,
    "ajet.swarm_cli": _SERVED,
    "ajet.copilot.tinkerjet": _SERVED,
    "ajet.cli.job": "write `from ajet import AgentJetJob`",
    "ajet.default_config": "`AgentJetJob.set_data` takes the reader and its keys",
    "ajet.task_reader": _READERS,
    "ajet.data_generator": "`task_reader.type: data_generation` writes tasks",
    "ajet.task_judge.rm_auto_grader_judge": "`task_judge.judge_type: rubrics_auto_grader` chooses it",
    "ajet.utils": _INNER,
    "ajet.task_rollout": _INNER,
    "ajet.task_runner": _INNER,
    "ajet.credit_assignment": _INNER,
    "ajet.schema.trajectory": _INNER,
    "ajet.schema.extended_msg": _INNER,
    "astuner": "its name is ajet, and so is the section of its YAML",
}


def instead(name: str) -> str:
    """What does the work of a module that is not here; "" for one that is none of AgentJet's."""
    parts = name.split(".")
    above = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((INSTEAD[each] for each in above if each in INSTEAD), "")


def watch() -> None:
    """Have imports of these fail so from now on. Idempotent."""
    if not any(isinstance(finder, _Lacking) for finder in sys.meta_path):
        sys.meta_path.append(_Lacking())


class _Lacking:
    """Asked last, for what nobody has."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if said := instead(name):
            raise ModuleNotFoundError(f"No module named {name!r}: {said} (docs/agentjet.md)", name=name)
