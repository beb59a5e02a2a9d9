"""Episodes: Trinity's workflow for playing a task's group behind ajet's gateway.

Invariants: an episode's failure never raises: failed or unscored episodes are recorded, and the others of the group are
trained. A group always returns a row, since Trinity treats an empty answer as a failure: an unscored group returns an
untrained row.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

from trinity.common.experience import EID, Experience
from trinity.common.workflows.workflow import Workflow

from ajet.environment.pinned import ToolPins
from ajet.record.run_directory import redactor_of
from ajet.schema.episode import Group
from ajet_ray.host import Host
from ajet_ray.mailbox import Sender
from ajet_ray.rows import NO_TOKEN, build_rows
from ajet_trinity.processes.engine import RolloutEngine
from ajet_trinity.processes.here import load_context

_lock = threading.Lock()
_host: Host | None = None


class Episodes(Workflow):
    """Implements Trinity's `default_workflow_type` with ajet's groups."""

    is_async = True
    can_repeat = True

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Set the number of the group's episodes."""
        self._repeats = repeat_times

    async def run_async(self) -> list[Experience]:
        """Return the group's timelines, with an Experience each."""
        host = _open_host(self.model)
        ticket, step = int(self.task.raw_task["ticket"]), int(self.task.batch_id)
        group = await host.play_ticket(ticket, step=step, sessions=self._repeats)
        return build_experiences(group, host.version)


def build_experiences(group: Group, version: int) -> list[Experience]:
    """Return the timelines of scored episodes. Other episodes travel with the first.

    Args:
        version: the newest policy's version.
    """
    others = [each for each in group.episodes if not each.scored]
    made: list[Experience] = []
    for place, episode in enumerate(group.scored):
        found = build_rows(
            episode, group_order=group.order, policy_version=version, others=others if place == 0 else ()
        )
        made += [_build_experience(row, run=episode.repeat, step=step) for step, row in enumerate(found)]
    return made or [build_blank()]


def build_blank() -> Experience:
    """Return an untrained row for a group."""
    return Experience(
        eid=EID(), tokens=[NO_TOKEN, NO_TOKEN], prompt_length=1, action_mask=[0], logprobs=[0.0], reward=0.0
    )


def _build_experience(row: dict[str, Any], *, run: int, step: int) -> Experience:
    extra = row["extra_fields"]
    return Experience(
        eid=EID(run=run, step=step),
        tokens=[*row["prompt_ids"], *row["response_ids"]],
        prompt_length=len(row["prompt_ids"]),
        action_mask=row["response_mask"],
        logprobs=row["response_logprobs"],
        reward=row["reward_score"],
        info={"ajet": extra["ajet"]},
    )


def _open_host(model: Any) -> Host:
    """Return the host of the current process. `model`: Trinity's wrapper of its engine."""
    global _host
    with _lock:
        if _host is None:
            sender = Sender()
            sender.introduce("explorer's runner")
            experiment, tokenizer = load_context().experiment, _load_tokenizer(load_context().experiment)
            longest = experiment.ajet.rollout.max_model_len
            engine = RolloutEngine(model.model, max_model_len=longest, vocabulary=len(tokenizer))
            pins = ToolPins(sender.pin, redactor_of(experiment).tree)
            _host = Host(
                experiment, load_context().run_id, engine, tokenizer, sender.post_async, sender.grant, None, pins
            )
            gc.collect()
            gc.freeze()  # full collections would block while they visit all objects loaded by Trinity
        return _host


def _load_tokenizer(experiment: Any) -> Any:
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_tokenizer

    model = experiment.ajet.model
    return load_tokenizer(locate_model(model.path, base=experiment.base, trust_remote_code=model.trust_remote_code))
