"""Export `create_external_llm_fn` under AgentJet's module name: a model of another server, for judges.

Invariant: the implementation is in `ajet.task_judge.other_model`.
"""

from __future__ import annotations

from ajet.task_judge.other_model import Ask, make_model_caller


def create_external_llm_fn(alien_llm_model: str, alien_llm_response_length: int) -> Ask:
    """Return a function that sends messages to a model of another server (`make_model_caller`)."""
    return make_model_caller(alien_llm_model, alien_llm_response_length)
