"""Self-distillation: the teacher is the policy itself, with the task's answer in its context.

Self-Distillation Enables Continual Learning (SDFT), arXiv 2601.19897; On-Policy Self-Distillation (OPSD), arXiv
2601.18734. As in `distillation`, A_t = weight (log p(token | answer, context) - log p(token | context)), constants in
the gradient, here both by the policy before the update at the rollout's temperature. The policy samples without the
answer, and learns to reply as it would with the answer. The answer is the field `teacher.field` of the task, written
by `teacher.template` as a system message before the first token of the attempt. The attempt's own tokens stay as
sampled, so the number of turns does not matter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ajet.algorithm.distillation import Distillation
from ajet.schema.batch import Sample
from ajet.schema.call import Ids
from ajet.schema.episode import SampledSpan


class SelfDistillation(Distillation):
    """Trains the policy towards its own distribution with the answer. `penalties_E_T` holds log policy - log teacher.

    A single attempt at a task is enough.
    """

    formula = (
        "of its token t: `weight` × (log π given the task's answer − log π), plus `reward_weight` × that of `grpo`"
    )
    paper = "SDFT, arXiv 2601.19897; OPSD, arXiv 2601.18734"
    needs = frozenset({"privileged"})


def prepend_context(sample: Sample, context: Ids) -> Sample:
    """Return the sample with a text before its first token, to score the same trained tokens in another context."""
    own_timeline, context_size = sample.timeline, context.size
    zeros = np.zeros(context_size, np.float32)
    timeline = replace(
        own_timeline,
        ids=np.concatenate([context, own_timeline.ids]),
        mask=np.concatenate([np.zeros(context_size, np.bool_), own_timeline.mask]),
        logprobs=np.concatenate([zeros, own_timeline.logprobs]),
        logprobs_unit=np.concatenate([zeros, own_timeline.logprobs_unit]),
        versions=np.concatenate([np.full(context_size, -1, np.int32), own_timeline.versions]),
        spans=tuple(
            SampledSpan(span.call, span.start + context_size, span.stop + context_size) for span in own_timeline.spans
        ),
    )
    return Sample(timeline, sample.episode, sample.group, np.concatenate([zeros, sample.advantages]), sample.weight)
