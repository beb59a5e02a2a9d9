"""Errors in the form of Anthropic's servers.

Invariant: the type follows from the status. The parameter and the error code have no field on the wire and are in
`details`; the message names the field.
"""

from __future__ import annotations

from typing import Any

from ajet.gateway.request import Refused

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(refused: Refused, request_id: str | None = None) -> dict[str, Any]:
    """Return the body of an error in the form of Anthropic's servers.

    Args:
        request_id: None in an `error` event of a stream, which has no such field.
    """
    message = refused.message
    if refused.code == "context_length_exceeded":  # clients shorten their prompts on these words
        message = f"prompt is too long: {message}"
    kind = _TYPES.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
    if refused.code == "engine_failure" and refused.status == 503:  # the engine is broken, not overloaded
        kind = "api_error"
    error: dict[str, Any] = {"type": kind, "message": message}
    param = "output_config.format" if refused.param == "response_format" else refused.param
    details = {"error_code": refused.code, "param": param}
    if set_details := {name: value for name, value in details.items() if value is not None}:
        error["details"] = set_details
    return {"type": "error", "error": error} | ({"request_id": request_id} if request_id else {})
