"""The model list and errors without a dialect: which shape a client of the plain routes expects.

Invariant: a request that says `anthropic-version` is answered as Anthropic would, any other as OpenAI would.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ajet.gateway.dialects import anthropic, chat
from ajet.gateway.exchange import REQUEST_ID
from ajet.gateway.serving import Serving
from ajet.gateway.session import Session
from ajet.gateway.turn import Refused


def list_models(request: Request, serving: Serving, session: Session) -> dict[str, Any]:
    """The models that a session's clients know: one, or those that it names."""
    told = [describe_model(request, serving, name) for name in session.models or [session.model_name]]
    return anthropic.model_page(told) if _for_anthropic(request) else {"object": "list", "data": told}


def describe_model(request: Request, serving: Serving, name: str) -> dict[str, Any]:
    """A model of a session."""
    if _for_anthropic(request):
        return anthropic.model_info(name, serving.max_model_len, serving.max_response_tokens)
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}


def error_body(request: Request, refused: Refused) -> dict[str, Any]:
    """An error outside of any dialect's route."""
    if _for_anthropic(request):
        return anthropic.error_body(refused, request.scope["state"][REQUEST_ID])
    return chat.error_body(refused)


def _for_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers
