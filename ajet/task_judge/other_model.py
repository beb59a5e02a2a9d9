"""Calls a model of another server for one reply, the basis of a model judge.

Invariant: any error is a judge failure, never a score; the other keys are tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ajet.config.other_models import find_other_server
from ajet.schema.errors import NO_COMPLETION, JudgeFailure

RETRIES = 3
"""Further attempts with each key, of the SDK's own, with its pauses."""
TIMEOUT = 120.0
"""Maximum seconds for a reply."""
Ask = Callable[..., dict[str, str]]


def make_model_caller(model: str, limit: int) -> Ask:
    """Return a function that requests one reply of a model from another server.

    The function takes `(messages, sampling_params_override={}, request_id="")` and returns `{"role", "content"}`. It
    samples greedily unless overridden. It raises UserError without a server, and JudgeFailure without a reply.

    Args:
        model: Name of the model at the server that the environment names (`config.other_models`).
        limit: Maximum tokens of a reply.
    """

    def ask(
        messages: Sequence[Mapping[str, Any]],
        sampling_params_override: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> dict[str, str]:
        """Return the model's reply to the messages; each API key is tried in turn."""
        from openai import APITimeoutError, OpenAI, OpenAIError

        server = find_other_server()
        history: Any = list(messages)
        settings = {"temperature": 0.0, "max_completion_tokens": limit, **(sampling_params_override or {})}
        last_error: Exception | None = None
        reason = ""
        for key in server.keys:
            with OpenAI(base_url=server.base_url, api_key=key, max_retries=RETRIES, timeout=TIMEOUT) as client:
                try:
                    answer: Any = client.chat.completions.create(model=model, messages=history, extra_body=settings)
                    message = answer.choices[0].message
                    return {"role": message.role or "assistant", "content": message.content or ""}
                except APITimeoutError as error:
                    last_error, reason = error, f"it sent nothing for {TIMEOUT:g} s, {RETRIES + 1} times"
                except OpenAIError as error:
                    last_error, reason = error, str(error)
                except (ValueError, AttributeError, TypeError, IndexError) as error:  # the reply is a page or empty
                    last_error, reason = error, NO_COMPLETION
        reason = reason.replace(key, "[redacted]")
        raise JudgeFailure(
            f"{model} at {server.base_url} does not answer: {reason}", retryable=True, own=True
        ) from last_error

    return ask
