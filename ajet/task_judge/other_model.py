"""A model of another server, asked for one reply: what a judge by model is made of.

Invariant: whatever goes wrong there is the judge's failure, never a score; the next key is tried before it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ajet.config.other_models import other_server
from ajet.schema.errors import JudgeFailure

RETRIES = 3
"""Further attempts with each key, of the SDK's own, with its pauses."""
TIMEOUT = 120.0
"""Seconds that a reply may take."""
Ask = Callable[..., dict[str, str]]


def asks_other_model(model: str, longest: int) -> Ask:
    """A function `(messages, sampling_params_override={}, request_id="")` that answers `{"role", "content"}` by `model`
    at the server which the environment names (`config.other_models`), greedily unless overridden, with at most
    `longest` tokens. It raises UserError where none is named, JudgeFailure where that server does not answer."""

    def ask(
        messages: Sequence[Mapping[str, Any]],
        sampling_params_override: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> dict[str, str]:
        from openai import OpenAI, OpenAIError

        server = other_server()
        told: Any = list(messages)
        settings = {"temperature": 0.0, "max_completion_tokens": longest, **(sampling_params_override or {})}
        problem: OpenAIError | None = None
        for key in server.keys:
            with OpenAI(base_url=server.base_url, api_key=key, max_retries=RETRIES, timeout=TIMEOUT) as client:
                try:
                    answer: Any = client.chat.completions.create(model=model, messages=told, extra_body=settings)
                except OpenAIError as error:
                    problem = error
                    continue
            message = answer.choices[0].message
            return {"role": message.role, "content": message.content or ""}
        raise JudgeFailure(f"{model} at {server.base_url} does not answer: {problem}", retryable=True) from problem

    return ask
