"""Scores samples by the policy with the task's answer in its context, for self-distillation.

Invariant: both log-probabilities of a token come from the same weights, those before the update. The differences are
recorded with the outcomes, so credit can be recomputed without a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ajet.algorithm.self_distillation import prepend_context
from ajet.backbone.contract import score_samples
from ajet.rollout.components import make_renderer
from ajet.schema.errors import UserError
from ajet.tokens import TemplateRefused

if TYPE_CHECKING:
    from ajet.algorithm.credit_assignment import LogprobPairs
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.batch import Sample
    from ajet.schema.call import Floats, Ids
    from ajet.schema.episode import Group
    from ajet.schema.task import Task
    from ajet.tokens import Renderer

KEY = "ajet.trainer_common.algorithm.teacher"


def make_privileged_scorer(backbone: Backbone, groups: Sequence[Group], settings: AjetConfig) -> LogprobPairs:
    """Return a function that gives logprobs of the policy, and of the policy with the answer in its context.

    Raises:
        UserError: a task has no answer, or the model's chat template refuses it.
    """
    renderer = make_renderer(settings, backbone.tokenizer)
    contexts: Mapping[str, Ids] = {
        episode.uuid: context
        for group in groups
        if group.scored
        for context in [_encode_answer(group.task, renderer, settings)]
        for episode in group.scored
    }

    def score(samples: list[Sample]) -> tuple[list[Floats], list[Floats]]:
        """Return the logprobs [T] of each sample by the policy, and by the policy with the answer in its context."""
        hinted_samples = [prepend_context(sample, contexts[sample.episode]) for sample in samples]
        tokens, temperature = settings.trainer_common.micro_batch_tokens, settings.rollout.temperature
        with backbone.scorer() as scorer:
            policy_rows = score_samples(scorer, samples, tokens=tokens, temperature=temperature)
            hinted_rows = score_samples(scorer, hinted_samples, tokens=tokens, temperature=temperature)
        return policy_rows, [
            row[contexts[sample.episode].size :] for row, sample in zip(hinted_rows, samples, strict=True)
        ]

    return score


def _encode_answer(task: Task, renderer: Renderer, settings: AjetConfig) -> Ids:
    """Return the ids of a system message with the task's answer. Raises UserError if there is none or it is refused."""
    teacher = settings.trainer_common.algorithm.teacher
    answer = task.metadata.get(teacher.field)
    if answer is None:
        raise UserError(
            f"The task has no field {teacher.field!r}, which self-distillation shows to the teacher.",
            where=f"task {task.task_id}, {KEY}.field",
            expected=f"one of the task's fields: {', '.join(task.metadata) or 'it has none'}",
            do="name the field with the answer or a demonstration, or add it to every task",
        )
    message = {"role": "system", "content": teacher.template.replace("{answer}", str(answer))}
    try:
        return renderer.encode(renderer.template.text([message], prompt=False))
    except TemplateRefused as problem:
        raise UserError(
            f"The answer cannot be written as a system message: {problem}",
            where=f"task {task.task_id}, {KEY}.template",
            expected="a model whose chat template takes a conversation of one system message",
        ) from problem
