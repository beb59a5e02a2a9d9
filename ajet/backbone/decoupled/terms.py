"""Terms: what a trainer and its samplers must agree on, told with every policy that the trainer announces.

Invariant: a sampler plays for a trainer only where the tasks, how often each is played, the weights that training began
with, the tokenizer, the chat template and the sampling are the same on both sides; else one screen names what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import UserError
from ajet.store.shared import TASKS_KEY, Policy

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.task_reader import TaskOrder

BEGAN = "began"
"""In what a policy tells: the version that its trainer went on from."""
PROBE = "probe"
"""Told: what this version and some before it say of one text (`ajet.engine.probe`). verl's trainer tells it once a
sampler at a server elsewhere is there."""
SERVER = "server"
"""What a sampler says of itself: the server elsewhere that it samples from, "" for none."""
MOST = "max_staleness"
"""Told: how many versions old a token may be that is trained on; None: any number."""
OVER = "over"
"""Told with the last policy: the training has ended."""
_NAMES = {
    "content": "what the tasks say (data and task_reader)",
    "tasks": "the tasks (task_reader)",
    "seed": "seed",
    "shuffle": "data.shuffle",
    "repeats": "rollout.num_repeat",
    "sampling": "rollout.temperature, top_p and top_k",
    "lineage": "the weights that training began with (model.path)",
    "tokenizer": "the tokenizer (model.path)",
    "template": "the chat template (model.path, model.chat_template_kwargs, context_tracker.keep_thinking)",
}


@dataclass(frozen=True, slots=True)
class SamplingTerms:
    """The terms under which one side samples or trains."""

    lineage: str
    tokenizer: str
    template: str
    order: Mapping[str, Any]
    """What `TaskOrder.identity` says."""
    repeats: int
    sampling: tuple[float, float, int]

    @classmethod
    def of(cls, experiment: Experiment, tokenizer: Any, tasks: TaskOrder) -> SamplingTerms:
        """Raises UserError for a model that cannot be found."""
        from ajet.engine.models import fingerprint_tokenizer, fingerprint_weights

        settings = experiment.ajet
        rollout = settings.rollout
        return cls(
            fingerprint_weights(settings, base=experiment.base),
            fingerprint_tokenizer(tokenizer),
            fingerprint_template(settings, tokenizer),
            tasks.identity(),
            rollout.num_repeat,
            (rollout.temperature, rollout.top_p, rollout.top_k),
        )

    def policy(
        self,
        run: str,
        step: int,
        version: int,
        weights: Path | None,
        below: int,
        *,
        over: bool,
        began: int = 0,
        more: Mapping[str, Any] | None = None,
    ) -> Policy:
        """The policy of `version`, after training step `step`, with weights in a folder (None: those of model.path).
        `began`: the version that its trainer went on from; `more` to tell."""
        about = {"version": version, BEGAN: began, OVER: over, TASKS_KEY: self.order["count"]}
        facts = {**about, **self._list_shared_facts(), **(more or {})}
        return Policy(
            run,
            step,
            str(weights) if weights is not None else "",
            lineage=self.lineage,
            tokenizer=self.tokenizer,
            template=self.template,
            below=below,
            told=facts,
        )

    def require_same(self, theirs: Policy, uri: str) -> None:
        """For a sampler that would play for the trainer that announced `theirs`. Raises UserError."""
        mine = {
            **self._list_shared_facts(),
            "lineage": self.lineage,
            "tokenizer": self.tokenizer,
            "template": self.template,
        }
        announced = {
            **theirs.told,
            "lineage": theirs.lineage,
            "tokenizer": theirs.tokenizer,
            "template": theirs.template,
        }
        differing = [words for key, words in _NAMES.items() if announced.get(key) != mine[key]]
        if differing:
            raise UserError(
                f"This sampler would play something else than what is trained: {'; '.join(differing)}.",
                where=f"the policy that the trainer announced in {uri}",
                expected="the same on both sides",
                do="start the sampler with the trainer's YAML and the same files",
            )

    def _list_shared_facts(self) -> dict[str, Any]:
        order = {key: self.order[key] for key in ("content", "tasks", "seed", "shuffle")}
        return {**order, "repeats": self.repeats, "sampling": list(self.sampling)}


def fingerprint_template(settings: AjetConfig, tokenizer: Any) -> str:
    """The fingerprint of how these settings have this tokenizer render messages."""
    from ajet.engine.models import fingerprint_chat_template

    rendered = {**settings.model.chat_template_kwargs, " keep_thinking": settings.context_tracker.keep_thinking}
    return fingerprint_chat_template(tokenizer, rendered)
