"""`create_external_llm_fn`, by AgentJet's name: a model of another server, for judges.

Invariant: nothing is done here that `ajet.task_judge.other_model` does not do.
"""

from __future__ import annotations

from ajet.task_judge.other_model import Ask, make_model_caller


def create_external_llm_fn(alien_llm_model: str, alien_llm_response_length: int) -> Ask:
    """See `make_model_caller`."""
    return make_model_caller(alien_llm_model, alien_llm_response_length)
