"""LocalTeacher computes log-probabilities of given tokens with a second model in this process.

Invariant: timelines pass one by one through the trainer's own forward pass, so equal tokens get equal bits regardless
of concurrent requests. The teacher's vocabulary must equal the policy's, id by id.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.backbone.contract import score_samples
from ajet.backbone.local.requirements import teacher_source
from ajet.backbone.local.scorer import LocalScorer
from ajet.config.schema.trainer_common import LoraConfig
from ajet.engine.teacher_endpoint import build_tokenizer_error
from ajet.environment.loop import in_thread
from ajet.schema.batch import Sample

if TYPE_CHECKING:
    from ajet.backbone.local.packed_forward import PackedForward
    from ajet.config import Experiment
    from ajet.schema.call import Floats
    from ajet.schema.episode import Timeline


class LocalTeacher:
    """The model of `algorithm.teacher.path`.

    Raises:
        UserError: the model cannot be loaded or has another tokenizer.
    """

    def __init__(self, experiment: Experiment, tokenizer: Any) -> None:
        """Load the teacher's model with the run's settings, but without the policy's adapters."""
        from ajet.engine.models import load_tokenizer

        settings = experiment.ajet.model_copy(deep=True)
        settings.model.path = settings.trainer_common.algorithm.teacher.path
        require_same_vocabulary(tokenizer, load_tokenizer(teacher_source(experiment)))
        settings.trainer_common.lora = LoraConfig()
        self._tokens = settings.trainer_common.micro_batch_tokens
        self._scorer = LocalScorer(replace(experiment, ajet=settings))
        self._lock = threading.Lock()

    @property
    def forward(self) -> PackedForward:
        """The model's forward pass, for its logits."""
        return self._scorer.forward

    async def logprobs(self, lines: Sequence[Timeline]) -> list[Floats]:
        """Return logprobs at temperature 1, shape [T] per line, 0 outside the mask."""
        return await in_thread(self._compute_logprobs, lines)

    async def leave(self) -> None:
        """Does nothing, because no connection is open on any loop."""

    def close(self) -> None:
        """Release the model and its memory."""
        with self._lock:
            del self._scorer

    def _compute_logprobs(self, lines: Sequence[Timeline]) -> list[Floats]:
        """Return log-probabilities as `logprobs` does, for one caller at a time."""
        samples = [Sample(line, "", 0, np.zeros(line.ids.size, np.float32), 0.0) for line in lines]
        with self._lock:
            return score_samples(self._scorer, samples, tokens=self._tokens, temperature=1.0)


def require_same_vocabulary(policy: Any, teacher: Any) -> None:
    """Compare two tokenizers.

    Raises:
        ConfigError: an id maps to different tokens.
    """
    policy_vocabulary, teacher_vocabulary = (
        {token: text for text, token in tokenizer.get_vocab().items()} for tokenizer in (policy, teacher)
    )
    for token in sorted(policy_vocabulary.keys() | teacher_vocabulary.keys()):
        if policy_vocabulary.get(token) != teacher_vocabulary.get(token):
            policy_text, teacher_text = policy_vocabulary.get(token), teacher_vocabulary.get(token)
            raise build_tokenizer_error(
                f"token id {token} is {policy_text!r} in the policy's tokenizer and {teacher_text!r} in the teacher's"
            )
