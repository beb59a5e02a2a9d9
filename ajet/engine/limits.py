"""How long a reply may be, and which requests no engine can answer.

Invariant: a request is refused before it takes a slot, with the number that is wrong in the message; a repetition
would be refused again, so no retry is asked for.
"""

from __future__ import annotations

import numpy as np

from ajet.engine.contract import TokenRequest
from ajet.schema.errors import EngineFailure


def reply_limit(request: TokenRequest, *, max_model_len: int, vocabulary: int) -> int:
    """Tokens the reply may have: its own bound, or what the context leaves. Raises EngineFailure."""
    ids = request.prompt_ids
    room = max_model_len - len(ids)
    problem = ""
    if not len(ids):
        problem = "the prompt is empty"
    elif int(np.min(ids)) < 0 or int(np.max(ids)) >= vocabulary:
        wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
        problem = f"the prompt has the token id {wrong}, beyond the model's vocabulary of {vocabulary}"
    elif room <= 0:
        problem = f"the prompt has {len(ids)} tokens, the context {max_model_len}"
    elif request.sampling.max_tokens <= 0:
        problem = "max_tokens must be at least 1"
    if problem:
        raise EngineFailure(problem, retryable=False)
    return min(request.sampling.max_tokens, room)
