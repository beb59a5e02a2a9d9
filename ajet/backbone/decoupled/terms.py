"""The terms shared by a trainer and its samplers; the trainer announces the terms with every policy.

Invariant: a sampler works for a trainer only if both sides have the same tasks, repeats, initial weights, tokenizer,
chat template and sampling parameters. Otherwise an error lists all differences.
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
"""Key in a policy: the version at the trainer's start or resume."""
PROBE = "probe"
"""Key in a policy: logprobs of one text by the latest versions (`ajet.engine.probe`).

verl's trainer announces logprobs once a sampler at a remote server is present.
"""
SERVER = "server"
"""Key in a sampler's details: the remote server used for sampling, "" for none."""
MOST = "max_staleness"
"""Key in a policy: the maximum age in versions of a trained token; None for unlimited."""
OVER = "over"
"""Key in the last policy: the training has ended."""
_NAMES = {
    "content": "the content of the tasks (data and task_reader)",
    "tasks": "the tasks (task_reader)",
    "seed": "seed",
    "shuffle": "data.shuffle",
    "repeats": "rollout.num_repeat",
    "sampling": "rollout.temperature, top_p and top_k",
    "lineage": "the initial weights (model.path)",
    "tokenizer": "the tokenizer (model.path)",
    "template": "the chat template (model.path, model.chat_template_kwargs, context_tracker.keep_thinking)",
}


@dataclass(frozen=True, slots=True)
class SamplingTerms:
    """The settings and fingerprints that a trainer and its samplers must share."""

    lineage: str
    tokenizer: str
    template: str
    order: Mapping[str, Any]
    """Identifies the training tasks and their order; samplers must have the same (`TaskOrder.identity`)."""
    repeats: int
    sampling: tuple[float, float, int]

    @classmethod
    def of(cls, experiment: Experiment, tokenizer: Any, tasks: TaskOrder) -> SamplingTerms:
        """Collect the terms from an experiment.

        Raises:
            UserError: the model cannot be found.
        """
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
        order_limit: int,
        *,
        is_last: bool,
        first_version: int = 0,
        extra_facts: Mapping[str, Any] | None = None,
    ) -> Policy:
        """Build the announcement of the policy `version`, as it is after training step `step`.

        Args:
            run: Identity of the run.
            weights: folder of the weights. None for the weights of model.path.
            order_limit: first position of the training order that samplers must not start.
            is_last: True for the last policy: the training has ended.
            first_version: version at the trainer's start or resume.
            extra_facts: further facts to announce.
        """
        about = {"version": version, BEGAN: first_version, OVER: is_last, TASKS_KEY: self.order["count"]}
        facts = {**about, **self._list_shared_facts(), **(extra_facts or {})}
        return Policy(
            run,
            step,
            str(weights) if weights is not None else "",
            lineage=self.lineage,
            tokenizer=self.tokenizer,
            template=self.template,
            below=order_limit,
            told=facts,
        )

    def require_same(self, other_policy: Policy, uri: str) -> None:
        """Compare a sampler's terms with the policy announced by a trainer.

        Args:
            other_policy: The announced policy.
            uri: Address of the store, for the error.

        Raises:
            UserError: the terms differ.
        """
        mine = {
            **self._list_shared_facts(),
            "lineage": self.lineage,
            "tokenizer": self.tokenizer,
            "template": self.template,
        }
        announced = {
            **other_policy.told,
            "lineage": other_policy.lineage,
            "tokenizer": other_policy.tokenizer,
            "template": other_policy.template,
        }
        differing = [words for key, words in _NAMES.items() if announced.get(key) != mine[key]]
        if differing:
            raise UserError(
                f"The settings of this sampler differ from the trainer's in: {'; '.join(differing)}.",
                where=f"the policy that the trainer announced in {uri}",
                expected="the same settings on both sides",
                do="start the sampler with the trainer's YAML and the same data files",
            )

    def _list_shared_facts(self) -> dict[str, Any]:
        """Return the settings that a policy announces besides its fingerprints: task order, repeats and sampling."""
        order = {key: self.order[key] for key in ("content", "tasks", "seed", "shuffle")}
        return {**order, "repeats": self.repeats, "sampling": list(self.sampling)}


def fingerprint_template(settings: AjetConfig, tokenizer: Any) -> str:
    """Return a fingerprint of the rendering of messages under the given settings and tokenizer."""
    from ajet.engine.models import fingerprint_chat_template

    # The space keeps this key apart from every argument of a template.
    rendered = {**settings.model.chat_template_kwargs, " keep_thinking": settings.context_tracker.keep_thinking}
    return fingerprint_chat_template(tokenizer, rendered)
