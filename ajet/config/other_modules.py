"""Modules of AgentJet's package that do not exist here, each with what to write instead.

The sentences are shown where a reference of the YAML leads to a file that imports one.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    """Return what to write instead of a module of AgentJet's; "" for any other name."""
    parts = name.split(".")
    above = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((INSTEAD[each] for each in above if each in INSTEAD), "")
