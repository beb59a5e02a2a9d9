"""HTTP bodies as JSON within a size limit, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ajet.schema.bounded_json import LONG_BYTES, load_json
from ajet.schema.errors import AjetError

BODY_LIMIT = 4 << 20


class BodyTooLongError(AjetError):
    """The body has more than BODY_LIMIT bytes."""


class EscapingJsonResponse(JSONResponse):
    """A JSON response in UTF-8, or in escaped ASCII if a text has a lone surrogate."""

    def render(self, content: Any) -> bytes:
        """Return the body's bytes. UTF-8 cannot encode a lone surrogate, but an ASCII escape can."""
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content).encode()


async def read_json_body(request: Request) -> Any:
    """Read the request body and return the parsed JSON; an empty body is an empty object.

    Raises:
        BodyTooLongError: the body exceeds BODY_LIMIT. Raised before the complete body is read. json.JSONDecodeError:
            the body is no JSON, or is nested too deeply.
    """
    if int(request.headers.get("content-length") or 0) > BODY_LIMIT:
        raise BodyTooLongError
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_LIMIT:
            raise BodyTooLongError
        chunks.append(chunk)
    try:
        body = b"".join(chunks) or b"{}"
        # A long body is parsed in a thread, so that the event loop serves other requests meanwhile.
        return await asyncio.to_thread(load_json, body) if size > LONG_BYTES else load_json(body)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as problem:  # not UTF-8, a too long number, or too deep nesting
        raise json.JSONDecodeError(str(problem), "", 0) from problem


def build_refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build a JSON error response with an HTTP status and a reason."""
    return EscapingJsonResponse({"error": why}, status, headers=dict(headers or {}))
