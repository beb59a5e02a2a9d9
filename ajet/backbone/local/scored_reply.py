"""The canary's reply on the local backbone: the engine's most likely tokens after a fixed prompt, scored by both.

Invariant: nothing of the run changes by it: no cache, no count, no random number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.backbone.canary import PROMPT, REPLY
from ajet.backbone.scoring import scored
from ajet.schema.batch import Sample
from ajet.schema.call import Floats
from ajet.schema.timeline import SampledSpan, Timeline

if TYPE_CHECKING:
    from ajet.backbone.contract import Scorer
    from ajet.backbone.local.engines import PausableEngine


def scored_reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, *, version: int, adapters: Sequence[str] = ()
) -> tuple[Floats, Floats]:
    """[T] each: the engine's logprobs of its reply at temperature 1, and the trainer's; of several adapters, of a reply
    of each. `version`: of the weights."""
    each: Sequence[str | None] = adapters or [None]
    both = [_reply(engine, scorer, tokenizer, version, adapter) for adapter in each]
    return np.concatenate([found for found, _ in both]), np.concatenate([own for _, own in both])


def _reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, version: int, adapter: str | None
) -> tuple[Floats, Floats]:
    room = engine.max_model_len
    prompt = np.asarray(tokenizer.encode(PROMPT, add_special_tokens=False), np.int32)[: max(1, room - REPLY)]
    reply, logprobs = engine.greedy(prompt, min(REPLY, room - prompt.size), adapter)
    ids = np.concatenate([prompt, np.asarray(reply, np.int32)])
    mask = np.arange(ids.size) >= prompt.size
    found = np.zeros(ids.size, np.float32)
    found[mask] = logprobs
    span = (SampledSpan(0, prompt.size, ids.size),)
    versions = np.where(mask, version, -1).astype(np.int32)
    timeline = Timeline(0, "canary", "canary", ids, mask, found, found, versions, span, adapter)
    sample = Sample(timeline, "canary", 0, np.zeros(ids.size, np.float32), 0.0)
    [own] = scored(scorer, [sample], tokens=ids.size, temperature=1.0)
    return found[mask], own[mask]
